"""A live run's timeline against rules stated once more, instant by instant; and nothing is lost or counted twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sysmeter.analysis.attribution import attribute
from sysmeter.analysis.kernelevidence import kernel_evidence
from sysmeter.analysis.summary import summarize
from sysmeter.analysis.tail import slow_messages
from tests.support.liveruns import ASLEEP, LOCK_ADDRESS, MS, OTHER, PREEMPTED, WORKER, LiveRun, Stop, build_live
from tests.support.runs import T_START

BASH = (77, b"bash")


@st.composite
def live_runs(draw: st.DrawFn) -> LiveRun:
    stops, collections = [], []
    t = T_START + 60 * MS
    for _ in range(draw(st.integers(1, 6))):
        t += draw(st.integers(30_000, 12 * MS))
        length = draw(st.integers(25_000, 8 * MS))
        kind = draw(st.sampled_from(["collection", "preempted", "lock", "futex", "stolen"]))
        stop = Stop(t, length)
        if kind == "preempted":
            stop = Stop(t, length, BASH, PREEMPTED)
        elif kind in ("lock", "futex"):
            address = LOCK_ADDRESS + draw(st.integers(0, 1_000)) if kind == "lock" else 4_096
            woken = draw(st.integers(500, length - 1_500))
            stop = Stop(t, length, BASH, ASLEEP, futex=address, woken_before_end_ns=woken)
        stops.append(stop)
        t += length
    t = T_START + 60 * MS
    for _ in range(draw(st.integers(0, 8))):
        t += draw(st.integers(1, 9 * MS))
        length = draw(st.integers(1, 5 * MS))
        collections.append((t, t + length, draw(st.integers(0, 2)), draw(st.sampled_from([WORKER, OTHER]))))
        t += length
    return LiveRun(stops=stops, collections=collections, probes=draw(st.booleans()))


def expected(run: LiveRun, t_ns: float) -> str:
    """What held the worker at an instant, by the rules."""
    stop = next((stop for stop in run.stops if stop.t_start_ns <= t_ns < stop.t_end_ns), None)
    collection = next((row for row in run.collections if row[0] <= t_ns < row[1]), None)
    is_foreign = collection is not None and collection[3] == OTHER
    if stop is not None and run.probes and stop.runner is not None:
        t_out, t_in = stop.t_start_ns + stop.entry_ns, stop.t_end_ns - stop.exit_ns
        if t_out <= t_ns < t_in:
            if stop.state == PREEMPTED:
                return "preempted"
            assert stop.woken_before_end_ns is not None
            assert stop.futex is not None
            if is_foreign and stop.futex >= LOCK_ADDRESS:
                return "collection witnessed"
            if t_ns >= stop.t_end_ns - stop.woken_before_end_ns:
                return "run queue"
            return "voluntary" if stop.futex < LOCK_ADDRESS else "interpreter lock"
    if collection is not None and not is_foreign:
        return "collection witnessed"
    if stop is None:
        return "own service"
    return "collection inferred" if is_foreign else "gap"


# What the kernel did not see of a stop is the edge of what it saw, or the system call, or not told apart any further.
REST = {"outside the guest", "unexplained", "system call"}
MAX_EDGE_NS = 50_000


def allowed(run: LiveRun, t_ns: float) -> set[str]:
    """The causes that an instant may have: the rules' one, and in the rest of a stop also those close beside it."""
    own = expected(run, t_ns)
    if own != "gap":
        return {own}
    stop = next(stop for stop in run.stops if stop.t_start_ns <= t_ns < stop.t_end_ns)
    cuts = {stop.t_start_ns + stop.entry_ns, stop.t_end_ns - stop.exit_ns}
    cuts |= {t for row in run.collections for t in row[:2]}
    near = {t + shift for t in cuts for shift in (-0.5, 0.5) if abs(t - t_ns) <= MAX_EDGE_NS}
    inside = {t for t in near if stop.t_start_ns <= t < stop.t_end_ns}
    return REST | {expected(run, t) for t in inside} - {"gap"}


@settings(max_examples=150)
@given(live_runs(), st.integers(1, 3 * MS))
def test_each_instant_has_the_cause_that_the_rules_give_it(run: LiveRun, threshold_ns: int) -> None:
    recording = build_live(run)
    off_cpu, events = kernel_evidence(recording)
    found = attribute(recording, off_cpu, slow_messages(recording, threshold_ns), events)  # checks conservation itself
    timeline = found.timelines["worker"]
    for low, high, code in zip(timeline.bounds_ns[:-1], timeline.bounds_ns[1:], timeline.cause, strict=True):
        cause = timeline.causes[code]
        name = f"{cause.cause} {cause.evidence}" if cause.cause == "collection" else cause.cause
        if name != "sysmeter itself":
            assert name in allowed(run, (int(low) + int(high)) / 2)


@settings(max_examples=60)
@given(live_runs())
def test_the_parts_are_the_whole(run: LiveRun) -> None:
    result = summarize(build_live(run))
    tail = result["tail"]
    for key in ("sample_time", "wall_time"):
        row = tail[key]
        assert row["witnessed_ns"] + row["inferred_ns"] + row["unexplained_ns"] == row["whole_ns"]
    assert sum(row["wall_time_ns"] for row in tail["causes"]) == tail["wall_time"]["whole_ns"]
    assert tail["n_above_in_histogram"] == tail["n_above_found"]
    for episode in tail["episodes"]:
        assert sum(part["time_ns"] for part in episode["parts"]) == episode["duration_ns"]
    assert result["counters"]["process"]["gc_collections"]["agrees"] is True
    assert np.all(np.diff(build_live(run)["batches"]["t_decided_ns"]) > 0)
