"""Sample time, samples and episodes against oracles that look at every nanosecond or every pair."""

from __future__ import annotations

import collections
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sysmeter.analysis import causes
from sysmeter.analysis.attribution import Attribution, charge_tail, episode_parts
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.episodes import find_episodes
from sysmeter.analysis.tail import SlowMessages, Wait
from sysmeter.analysis.timeline import Timeline, build_timeline
from sysmeter.recording import Recording
from tests.support.diagnosed import attributed, diagnosed
from tests.support.layers import layers
from tests.support.madeup import runs
from tests.support.runs import Run, build


@st.composite
def slow_samples(draw: st.DrawFn) -> SlowMessages:
    """Messages in order: t0 and decisions ascend, as the queue keeps them."""
    n = draw(st.integers(1, 15))
    t0 = sorted(draw(st.lists(st.integers(0, 100), min_size=n, max_size=n)))
    decided, rows = 0, []
    for start in t0:
        decided = max(decided, start) + draw(st.integers(0, 15))
        rows.append((start, *sorted(draw(st.integers(start, decided)) for _ in range(4)), decided))
    return SlowMessages(np.arange(n), *np.array(rows, np.int64).T)


@given(slow_samples())
def test_episodes_are_the_components_and_their_holds_partition_them(slow: SlowMessages) -> None:
    found = find_episodes(slow)
    intervals = list(zip(slow.t0_ns.tolist(), slow.t_decided_ns.tolist(), strict=True))
    # Oracle: join any two that share an instant, until nothing changes.
    groups = [[pair] for pair in intervals]
    changed = True
    while changed:
        changed = False
        for a in range(len(groups)):
            for b in range(a + 1, len(groups)):
                if any(s1 <= e2 and s2 <= e1 for s1, e1 in groups[a] for s2, e2 in groups[b]):
                    groups[a] += groups.pop(b)
                    changed = True
                    break
            if changed:
                break
    expected = sorted((min(s for s, _ in g), max(e for _, e in g), len(g), max(e - s for s, e in g)) for g in groups)
    columns = (found.t_start_ns, found.t_end_ns, found.n_messages, found.peak_ns)
    assert [tuple(int(v) for v in row) for row in zip(*columns, strict=True)] == expected

    # Each instant is held by the holder of the oldest slow message that is undecided then.
    holds = [
        (*row, thread)
        for thread, hold in found.holds.items()
        for row in zip(
            hold.t_start_ns.tolist(), hold.t_end_ns.tolist(), hold.episode.tolist(), hold.wait.tolist(), strict=True
        )
    ]
    for number, (start, end, _, _) in enumerate(expected):
        for t in range(start, end):
            oldest = next(k for k in range(len(slow)) if slow.t_decided_ns[k] > t)
            thread, wait = holder(slow, oldest, t)
            assert [row[2:] for row in holds if row[0] <= t < row[1]] == [(number, wait, thread)]


def holder(slow: SlowMessages, k: int, t_ns: int) -> tuple[str, Wait]:
    """Who holds message ``k`` at an instant of its response time, and what it waits for."""
    for until, thread, wait in (
        (slow.t_room_ns, "strategy", Wait.QUEUE_FULL),
        (slow.t_free_ns, "feed", Wait.BACKLOG),
        (slow.t_released_ns, "feed", Wait.OWN),
        (slow.t_taken_ns, "strategy", Wait.BACKLOG),
    ):
        if t_ns < until[k]:
            return thread, wait
    return "strategy", Wait.OWN


Key = tuple[str, Cause]


def named(cause: Cause, wait: Wait) -> Cause:
    """As a message meets it: a thread's work on others is no service to this one."""
    if cause.cause != causes.OWN_SERVICE or wait == Wait.OWN:
        return cause
    word = causes.BACKLOG if wait == Wait.BACKLOG else causes.QUEUE_FULL
    return Cause(word, "", cause.evidence)


def without_own_words(cause: Cause) -> Cause:
    """Backlog and a full queue have words of their own, which the oracle does not repeat."""
    return Cause(cause.cause, "", cause.evidence) if cause.cause in (causes.BACKLOG, causes.QUEUE_FULL) else cause


def segments_of(found: Attribution, thread: str, start: int, end: int) -> list[tuple[int, int, Cause]]:
    """What the timeline of a thread says of an interval, piece by piece."""
    timeline = found.timelines[thread]
    bounds = timeline.bounds_ns.tolist()
    return [
        (max(start, low), min(end, high), timeline.causes[code])
        for low, high, code in zip(bounds[:-1], bounds[1:], timeline.cause.tolist(), strict=True)
        if max(start, low) < min(end, high)
    ]


def course(slow: SlowMessages, k: int, start: int, end: int) -> list[tuple[int, int, str, Wait]]:
    """Who held message ``k`` between two instants of its response time."""
    edges = [int(values[k]) for values in (slow.t_room_ns, slow.t_free_ns, slow.t_released_ns, slow.t_taken_ns)]
    cuts = sorted({start, end, *(edge for edge in edges if start < edge < end)})
    return [(low, high, *holder(slow, k, low)) for low, high in itertools.pairwise(cuts)]


@st.composite
def small_timelines(draw: st.DrawFn) -> dict[str, Timeline]:
    own = Cause(causes.OWN_SERVICE, "", causes.WITNESSED)
    return {thread: build_timeline(thread, 0, 400, draw(layers()), own) for thread in ("feed", "strategy")}


@given(slow_samples(), small_timelines())
def test_charges_are_those_of_a_count_by_the_nanosecond(slow: SlowMessages, timelines: dict[str, Timeline]) -> None:
    def held_by(k: int, t: int) -> Key:
        thread, wait = holder(slow, k, t)
        timeline = timelines[thread]
        segment = int(np.searchsorted(timeline.bounds_ns, t, side="right")) - 1
        return thread, named(timeline.causes[timeline.cause[segment]], wait)

    sample_time: collections.Counter[Key] = collections.Counter()
    samples: collections.Counter[Key] = collections.Counter()
    for k in range(len(slow)):
        keys = [held_by(k, t) for t in range(int(slow.t0_ns[k]), int(slow.t_decided_ns[k]))]
        sample_time.update(keys)
        samples.update(set(keys))
    wall: collections.Counter[Key] = collections.Counter()
    for t in range(400):
        undecided = [k for k in range(len(slow)) if slow.t0_ns[k] <= t < slow.t_decided_ns[k]]
        if undecided:
            wall[held_by(undecided[0], t)] += 1
    charges = {
        (thread, without_own_words(cause)): charge
        for (thread, cause), charge in charge_tail(slow, find_episodes(slow), timelines).items()
    }
    assert {key: charge.sample_time_ns for key, charge in charges.items()} == sample_time
    assert {key: charge.samples for key, charge in charges.items()} == samples
    assert {key: charge.wall_time_ns for key, charge in charges.items() if charge.wall_time_ns} == wall


def oracle(found: Attribution) -> tuple[dict[Key, int], dict[Key, int]]:
    """Every piece of every slow message against every segment of its holder's timeline: time and samples by cause."""
    slow = found.slow
    times: dict[Key, int] = {}
    samples: dict[Key, set[int]] = {}
    for k in range(len(slow)):
        for low, high, thread, wait in course(slow, k, int(slow.t0_ns[k]), int(slow.t_decided_ns[k])):
            for start, end, cause in segments_of(found, thread, low, high):
                key = thread, named(cause, wait)
                times[key] = times.get(key, 0) + end - start
                samples.setdefault(key, set()).add(k)
    return times, {key: len(members) for key, members in samples.items()}


def wall_oracle(found: Attribution) -> list[dict[Key, int]]:
    """The parts of each episode: at each instant what held its oldest undecided message."""
    slow, episodes = found.slow, []
    done: int | None = None
    for k in range(len(slow)):
        start, end = int(slow.t0_ns[k]), int(slow.t_decided_ns[k])
        if done is None or start > done:
            episodes.append({})
            done = start
        for low, high, thread, wait in course(slow, k, max(start, done), max(end, done)):
            for a, b, cause in segments_of(found, thread, low, high):
                key = thread, named(cause, wait)
                episodes[-1][key] = episodes[-1].get(key, 0) + b - a
        done = max(done, end)
    return episodes


@settings(max_examples=60)
@given(runs(), st.integers(1, 400_000))
def test_times_samples_and_episodes_are_the_oracles(run: Run, threshold_ns: int) -> None:
    found = attributed(build(run), threshold_ns)
    times, samples = oracle(found)
    walls = wall_oracle(found)
    charges = {(thread, without_own_words(cause)): charge for (thread, cause), charge in found.charges.items()}
    assert len(charges) == len(found.charges)
    assert {key: charge.sample_time_ns for key, charge in charges.items() if charge.sample_time_ns} == times
    assert {key: charge.samples for key, charge in charges.items() if charge.sample_time_ns} == samples
    whole: dict[Key, int] = {}
    for parts in walls:
        for key, time in parts.items():
            whole[key] = whole.get(key, 0) + time
    assert {key: charge.wall_time_ns for key, charge in charges.items() if charge.wall_time_ns} == whole
    listed = episode_parts(found, np.arange(len(found.episodes)))
    assert [
        {(thread, without_own_words(cause)): time for (thread, cause), time in listed[number].items()}
        for number in range(len(found.episodes))
    ] == walls


@settings(max_examples=60)
@given(runs(), st.one_of(st.none(), st.integers(1, 400_000)))
def test_witnessed_inferred_and_unexplained_are_the_whole(run: Run, above_ns: int | None) -> None:
    recording = build(run)
    tail = diagnosed(recording, above_ns)["tail"]
    if tail["threshold_ns"] is None:
        return
    assert tail["n_above_in_histogram"] == tail["n_above_found"]
    if not run.probes or run.lost:
        assert tail["not_inferred_because"]
        assert only_own_service(recording, above_ns)
    floor_ns = recording.meta["run"]["tail_floor_ns"]
    assert tail["threshold_ns"] > floor_ns or recording.meta["run"]["storage"] == "full"


def only_own_service(recording: Recording, above_ns: int | None) -> bool:
    """Whether nothing is inferred but a large batch's own pace, which no probe is needed for."""
    rows = diagnosed(recording, above_ns)["causes"]
    own = (causes.OWN_SERVICE, causes.BACKLOG, causes.QUEUE_FULL)
    return all(row["cause"] in own for row in rows if row["evidence"] == causes.INFERRED)
