"""Timelines, sample time and episodes against oracles that look at every nanosecond or every pair."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sysmeter.analysis.attribution import attribute
from sysmeter.analysis.causes import EVIDENCE, Cause
from sysmeter.analysis.episodes import find_episodes
from sysmeter.analysis.offcpu import OffCpu
from sysmeter.analysis.reads import ThreadReads, thread_reads
from sysmeter.analysis.slices import off_cpu_slices, switch_chain
from sysmeter.analysis.summary import summarize
from sysmeter.analysis.tail import SlowMessages, slow_messages
from sysmeter.analysis.timeline import Layer, Timeline, build_timeline, slice_layer
from tests.support.runs import COMM, T_START, TIDS, Away, Run, build, event, events_array, switch

SPAN = 120
REST = Cause("own service", "", "witnessed")


@st.composite
def layers(draw: st.DrawFn) -> list[Layer]:
    found = []
    for number in range(draw(st.integers(0, 3))):
        cuts = sorted(draw(st.lists(st.integers(-10, SPAN + 10), max_size=12)))
        pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
        causes = tuple(Cause(f"layer {number}", str(k), "witnessed") for k in range(3))
        codes = draw(st.lists(st.integers(0, 2), min_size=len(pairs), max_size=len(pairs)))
        start = np.array([p[0] for p in pairs], np.int64)
        end = np.array([p[1] for p in pairs], np.int64)
        found.append(Layer(start, end, np.array(codes, np.int64), causes))
    return found


INTERVALS = st.lists(
    st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(lambda pair: (min(pair), max(pair))),
    max_size=20,
)


def cause_at(t: int, found: list[Layer]) -> Cause:
    for layer in found:
        for start, end, code in zip(layer.t_start_ns, layer.t_end_ns, layer.cause, strict=True):
            if start <= t < end:
                return layer.causes[code]
    return REST


def arrays(intervals: list[tuple[int, int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pairs = np.array(intervals, np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


@given(layers())
def test_a_timeline_is_a_partition_in_which_the_first_layer_wins(found: list[Layer]) -> None:
    timeline = build_timeline("feed", 0, SPAN, found, REST)
    assert timeline.bounds_ns[0] == 0
    assert timeline.bounds_ns[-1] == SPAN
    assert (np.diff(timeline.bounds_ns) > 0).all()
    for t in range(SPAN):
        segment = int(np.searchsorted(timeline.bounds_ns, t, side="right")) - 1
        assert timeline.causes[timeline.cause[segment]] == cause_at(t, found)


@given(layers(), INTERVALS)
def test_charged_time_is_that_of_a_count_by_the_nanosecond(
    found: list[Layer], intervals: list[tuple[int, int]]
) -> None:
    timeline = build_timeline("feed", 0, SPAN, found, REST)
    expected: dict[Cause, int] = {}
    for start, end in intervals:
        for t in range(start, end):
            cause = cause_at(t, found)
            expected[cause] = expected.get(cause, 0) + 1
    charged = timeline.charge(*arrays(intervals)).tolist()
    assert {c: n for c, n in zip(timeline.causes, charged, strict=True) if n} == expected
    assert sum(charged) == sum(end - start for start, end in intervals)


@given(layers(), INTERVALS)
def test_parts_of_an_interval_add_up_to_it(found: list[Layer], intervals: list[tuple[int, int]]) -> None:
    timeline = build_timeline("feed", 0, SPAN, found, REST)
    owner, cause, time = timeline.parts(*arrays(intervals))
    assert (time > 0).all()
    for number, (start, end) in enumerate(intervals):
        mine = owner == number
        assert int(time[mine].sum()) == end - start
    totals = np.zeros(len(timeline.causes), np.int64)
    np.add.at(totals, cause, time)
    assert totals.tolist() == timeline.charge(*arrays(intervals)).tolist()


@st.composite
def slow_samples(draw: st.DrawFn) -> SlowMessages:
    """Messages in order: t0 and decisions ascend, as the queue keeps them."""
    n = draw(st.integers(1, 15))
    t0 = sorted(draw(st.lists(st.integers(0, 100), min_size=n, max_size=n)))
    decided, rows = 0, []
    for start in t0:
        decided = max(decided, start) + draw(st.integers(0, 15))
        room = draw(st.integers(start, decided))
        rows.append((start, room, draw(st.integers(room, decided)), decided))
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
        (start, end, thread)
        for thread, hold in found.holds.items()
        for start, end in zip(hold.t_start_ns.tolist(), hold.t_end_ns.tolist(), strict=True)
    ]
    for start, end, _, _ in expected:
        for t in range(start, end):
            oldest = next(k for k in range(len(slow)) if slow.t_decided_ns[k] > t)
            feed = slow.t_room_ns[oldest] <= t < slow.t_released_ns[oldest]
            assert [thread for s, e, thread in holds if s <= t < e] == ["feed" if feed else "strategy"]


CHAIN_TASKS = ((TIDS["strategy"], COMM), (11, b"one"), (12, b"two"), (0, b"swapper/1"))


@st.composite
def broken_chains(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], ThreadReads]:
    """Any switch events at all, in any disorder of links, with any gaps beside them."""
    rows = []
    for t in sorted(draw(st.lists(st.integers(0, 200_000), max_size=25, unique=True))):
        if draw(st.booleans()) and draw(st.booleans()):
            rows.append(event(t_ns=t, kind=2, cpu=1, tid=TIDS["strategy"], comm=COMM))
            continue
        pair = draw(st.lists(st.sampled_from(CHAIN_TASKS), min_size=2, max_size=2, unique=True))
        rows.append(switch(t, draw(st.integers(0, 1)), pair[0], pair[1], draw(st.sampled_from([0, 0x100, 1, 4]))))
    cuts = sorted(draw(st.lists(st.integers(0, 210_000), max_size=20, unique=True)))
    pairs = np.array(list(zip(cuts[::2], cuts[1::2], strict=False)), np.int64).reshape(-1, 2)
    start, end = pairs[:, 0].copy(), pairs[:, 1].copy()
    return events_array(rows), ThreadReads(start, end, (start, end), 0, 210_000, 5_000)


@given(broken_chains())
def test_whatever_the_chain_slices_are_disjoint_and_their_runs_cover_them(
    case: tuple[np.ndarray[Any, Any], ThreadReads],
) -> None:
    events, reads = case
    slices = off_cpu_slices(switch_chain(events), "strategy", TIDS["strategy"], reads, 210_000)
    assert (slices.t_in_ns >= slices.t_out_ns).all()
    assert (slices.t_in_ns[:-1] <= slices.t_out_ns[1:]).all()
    runs = slices.runs
    assert (runs.t_end_ns >= runs.t_start_ns).all()
    for number in range(len(slices)):
        mine = np.flatnonzero(runs.slice_index == number)
        assert runs.t_start_ns[mine[0]] == slices.t_out_ns[number]
        assert runs.t_end_ns[mine[-1]] == slices.t_in_ns[number]
        assert (runs.t_end_ns[mine[:-1]] == runs.t_start_ns[mine[1:]]).all()
    # No slice reaches past an instant at which the thread is known to have run.
    for t in np.concatenate(reads.instants_ns).tolist():
        assert not ((slices.t_out_ns + 1_000 < t) & (t < slices.t_in_ns)).any()
    layer = slice_layer(slices)
    assert (layer.t_start_ns[1:] >= layer.t_end_ns[:-1]).all()
    assert int((layer.t_end_ns - layer.t_start_ns).sum()) == int((slices.t_in_ns - slices.t_out_ns).sum())


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Whole runs: both threads away at any times, for any reason, seen by the kernel or not."""
    away = []
    for thread in ("feed", "strategy"):
        t = T_START
        for _ in range(draw(st.integers(0, 4))):
            t += draw(st.integers(10_000, 1_500_000))
            length = draw(st.integers(6_000, 900_000))
            stolen = draw(st.booleans())
            state = draw(st.sampled_from([0, 0x100, 1, 4]))
            cut = draw(st.integers(1, length - 2_001))
            taken = [(11, b"one", cut), (12, b"two", length - 2_000 - cut)]
            woken = draw(st.integers(1, length - 2_001)) if state in (1, 4) and draw(st.booleans()) else None
            lose = draw(st.sampled_from([None, None, 1]))
            lost_in = draw(st.booleans()) and draw(st.booleans())
            away.append(Away(thread, t, length, None if stolen else taken, state, woken, lost_in, lose))
            t += length
    return Run(
        n_messages=draw(st.integers(130, 900)),
        n_warmup=draw(st.integers(0, 20)),
        away=away,
        mode=draw(st.sampled_from(["paced", "paced", "flat"])),
        ring_slots=draw(st.sampled_from([16, 4_096])),
        probes=draw(st.booleans()),
    )


def oracle(slow: SlowMessages, timelines: dict[str, Timeline]) -> dict[tuple[str, Cause], int]:
    """Every piece of every slow message against every segment of its holder's timeline."""
    times: dict[tuple[str, Cause], int] = {}
    for k in range(len(slow)):
        t0, room, released, decided = (
            int(values[k]) for values in (slow.t0_ns, slow.t_room_ns, slow.t_released_ns, slow.t_decided_ns)
        )
        for thread, start, end in (
            ("strategy", t0, room),
            ("feed", room, released),
            ("strategy", released, decided),
        ):
            timeline = timelines[thread]
            bounds = timeline.bounds_ns.tolist()
            for low, high, code in zip(bounds[:-1], bounds[1:], timeline.cause.tolist(), strict=True):
                overlap = min(end, high) - max(start, low)
                if overlap > 0:
                    key = (thread, timeline.causes[code])
                    times[key] = times.get(key, 0) + overlap
    return times


@settings(max_examples=60)
@given(runs(), st.integers(1, 400_000))
def test_sample_time_is_the_oracles_and_nothing_is_lost(run: Run, threshold_ns: int) -> None:
    recording = build(run)
    events = recording["kernel_events"]
    off_cpu = {}
    for thread, tid in TIDS.items():
        reads = thread_reads(recording, thread, events)
        end = recording.meta["run"]["t_end_ns"]
        off_cpu[thread] = OffCpu(off_cpu_slices(switch_chain(events), thread, tid, reads, end), reads)
    found = attribute(recording, off_cpu, slow_messages(recording, threshold_ns))
    charged = {
        (thread, cause): time
        for thread, timeline in found.timelines.items()
        for cause, time in zip(timeline.causes, found.sample_time_ns[thread].tolist(), strict=True)
        if time
    }
    assert charged == oracle(found.slow, found.timelines)


@settings(max_examples=60)
@given(runs())
def test_witnessed_inferred_and_unexplained_are_the_whole(run: Run) -> None:
    result = summarize(build(run))
    tail = result["tail"]
    if tail["threshold_ns"] is None:
        return
    for key in ("sample_time", "wall_time"):
        assert sum(tail[key][f"{evidence}_ns"] for evidence in EVIDENCE) == tail[key]["whole_ns"]
    assert sum(row["sample_time_ns"] for row in tail["causes"]) == tail["sample_time"]["whole_ns"]
    assert sum(row["wall_time_ns"] for row in tail["causes"]) == tail["wall_time"]["whole_ns"]
    if tail["threshold_source"] == "p99.9":
        assert tail["samples"] * 1_000 >= result["latency"]["total"]["count"]
    exact = result["latency"]["total"][
        {"p99.9": "p99_9_ns", "p99": "p99_ns", "p90": "p90_ns"}[tail["threshold_source"]]
    ]
    assert tail["threshold_ns"] <= exact < tail["threshold_ns"] * 1.008 + 1
    assert tail["n_above_in_histogram"] == tail["n_above_found"]
    for episode in tail["episodes"]:
        assert sum(part["time_ns"] for part in episode["parts"]) == episode["duration_ns"]
        assert episode["peak_ns"] <= episode["duration_ns"]
    if not tail["episodes_not_listed"]:
        assert sum(episode["duration_ns"] for episode in tail["episodes"]) == tail["wall_time"]["whole_ns"]
        assert sum(episode["n_messages"] for episode in tail["episodes"]) == tail["samples"]
