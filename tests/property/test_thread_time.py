"""What a thread's timeline says of each instant, against an oracle that asks every event about every instant."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.diagnosis import timelines_of
from sysmeter.analysis.timeline import Timeline
from sysmeter.recording import Recording
from tests.support.loop import ASLEEP, PREEMPTED, STOPPED, THROTTLED
from tests.support.madeup import runs
from tests.support.runs import TIDS, Away, Run, build

# Too few events to measure anything by: each edge may be so long.
EDGE_NS = 10_000
MAX_TRAP_NS = 500_000
WITNESSED_TRAP_NS = 10_000  # all there is where events may have been lost
GAP = "gap"
WITH_EDGES = (
    *(causes.PREEMPTED, causes.VOLUNTARY, causes.RUN_QUEUE, causes.THROTTLED, causes.STOPPED, causes.MIGRATED),
    *(causes.SYSMETER, causes.PAGE_FAULT, causes.SYSTEM_CALL, causes.INTERRUPT, causes.SOFTIRQ),
)


@dataclass
class ThreadOracle:
    """Straight from the simulation's own orders, by linear search."""

    run: Run
    recording: Recording
    thread: str

    def __post_init__(self) -> None:
        self.gaps: list[tuple[int, int, int]] = self.recording[f"gaps_{self.thread}"].tolist()
        rows = self.recording["kernel_events"]
        self.events: list[Any] = [row for row in rows if int(row["tid"]) == TIDS[self.thread]]
        self.away = [away for away in self.run.away if away.thread == self.thread]
        self.seen = functools.cache(self.look)

    def of(self, *kinds: int) -> list[Any]:
        return [row for row in self.events if int(row["kind"]) in kinds]

    def look(self, t: int) -> str:
        """What some evidence says of the instant, before what is left of a gap is told apart."""
        return (
            self.off_cpu(t)
            or self.lasting(t, records.EVENT_INTERRUPT, causes.INTERRUPT)
            or self.lasting(t, records.EVENT_SOFTIRQ, causes.SOFTIRQ)
            or self.edge(t)
            or self.trap(t)
            or (GAP if self.gap_of(t) is not None else causes.OWN_SERVICE)
        )

    def gap_of(self, t: int) -> tuple[int, int, int] | None:
        return next((gap for gap in self.gaps if gap[0] <= t < gap[1]), None)

    def off_cpu(self, t: int) -> str | None:
        if not self.run.probes:
            return None
        for away in self.away:
            t_out, t_in = self.slice_of(away)
            if away.runners is None or not t_out <= t < t_in:
                continue
            moves = [
                self.began(away, t_out, row) for row in self.of(records.EVENT_MIGRATION) if t_out <= row["t_ns"] <= t_in
            ]
            if away.prev_state == THROTTLED and self.is_in_user_mode(t_out):
                return causes.THROTTLED
            if away.prev_state in (PREEMPTED, THROTTLED):
                return causes.MIGRATED if moves and moves[-1] <= t else causes.PREEMPTED
            if away.woken_after_ns is not None and t >= t_out + away.woken_after_ns:
                return causes.RUN_QUEUE
            return {ASLEEP: causes.VOLUNTARY, STOPPED: causes.STOPPED}[away.prev_state]
        return None

    def is_in_user_mode(self, t_out: int) -> bool:
        """Known only where the thread has taken no trap since its clock read, and none can have been lost.

        Asked only where a quota was used up.
        """
        gap = self.gap_of(t_out)
        traps = [int(row["t_ns"]) for row in self.of(records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL)]
        unknown = self.run.lost or self.run.missed or not self.run.throttled_periods or gap is None
        return not unknown and not any(gap[0] <= trap <= t_out for trap in traps)

    def began(self, away: Away, t_out: int, move: Any) -> int:
        """A move begins where the one who carries it out got the CPU, if it is the one who has it then."""
        assert away.runners is not None
        seen: list[tuple[int, int]] = []  # who has the CPU from when, as far as the switches tell
        start = t_out
        for number, (tid, _, length_ns) in enumerate(away.runners):
            if number == 0 or number != away.lose_switch_between:
                seen.append((start, tid))
            start += length_ns
        t_move = int(move["t_ns"])
        t_start, tid = [row for row in seen if row[0] <= t_move][-1]
        return t_start if tid == int(move["other_tid"]) else t_move

    def slice_of(self, away: Away) -> tuple[int, int]:
        """Without a switch-in it ends where the thread's own clock or its next trap says that it ran."""
        t_out, gap_end = away.t_start_ns + away.entry_ns, away.t_start_ns + away.length_ns
        if not away.lose_switch_in:
            ran_again = gap_end - away.exit_ns
        else:
            ran_again = gap_end
        traps = [int(row["t_ns"]) for row in self.of(records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL)]
        first = min((trap for trap in traps if trap > t_out + 1_000), default=gap_end)
        # A trap within the clocks' slack before the switch-in does not speak against it.
        if away.lose_switch_in or first < ran_again - 1_000:
            ran_again = min(ran_again, first)
        return t_out, ran_again

    def lasting(self, t: int, kind: int, name: str) -> str | None:
        covers = any(int(row["t_ns"]) <= t < self.end_of(row) for row in self.of(kind))
        return name if covers else None

    def end_of(self, row: Any) -> int:
        """Over at its exit, and at the latest where the thread takes a trap (in truth neither falls into the other)."""
        start, traps = int(row["t_ns"]), self.of(records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL)
        first = min((int(trap["t_ns"]) for trap in traps if int(trap["t_ns"]) > start + 1_000), default=2**62)
        return min(start + int(row["value"]), first)

    def edge(self, t: int) -> str | None:
        edges = self.recording.meta["edges"][self.thread].values()
        return causes.SYSMETER if any(edge["t_before_ns"] <= t < edge["t_after_ns"] for edge in edges) else None

    def trap(self, t: int) -> str | None:
        gap = self.gap_of(t)
        before = [row for row in self.of(records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL) if int(row["t_ns"]) <= t]
        if gap is None or not before:
            return None
        t_trap = int(before[-1]["t_ns"])
        if not gap[0] <= t_trap or t - t_trap >= (
            WITNESSED_TRAP_NS if self.run.lost or self.run.missed else MAX_TRAP_NS
        ):
            return None
        return causes.PAGE_FAULT if int(before[-1]["kind"]) == records.EVENT_PAGE_FAULT else causes.SYSTEM_CALL


def instants(oracle: ThreadOracle, timeline: Timeline) -> list[int]:
    """Both sides of each instant at which anything may change, by the simulation's orders or by the timeline."""
    low, high = int(timeline.bounds_ns[0]), int(timeline.bounds_ns[-1])
    cuts = set(timeline.bounds_ns.tolist())
    for row in oracle.events:
        cuts |= {int(row["t_ns"]) + length for length in (0, WITNESSED_TRAP_NS, MAX_TRAP_NS)}
        if int(row["kind"]) in (records.EVENT_INTERRUPT, records.EVENT_SOFTIRQ):
            cuts.add(int(row["t_ns"]) + int(row["value"]))
    for away in oracle.away:
        cuts |= {away.t_start_ns, away.t_start_ns + away.length_ns, *oracle.slice_of(away)}
        cuts.add(away.t_start_ns + away.entry_ns + (away.woken_after_ns or 0))
    for edge in oracle.recording.meta["edges"][oracle.thread].values():
        cuts |= {edge["t_before_ns"], edge["t_after_ns"]}
    cuts |= {cut + shift for cut in list(cuts) for shift in (-EDGE_NS, EDGE_NS)}
    return sorted({t for cut in cuts for t in (cut - 1, cut) if low <= t < high})


def expected(oracle: ThreadOracle, known: list[int], t: int) -> set[str]:
    """The causes that the instant may have. In a batch's gap own service takes its share of what no edge does."""
    what = oracle.seen(t)
    if what != GAP:
        return {what}
    gap = oracle.gap_of(t)
    assert gap is not None
    # The stretch of the gap around t in which nothing was seen; all of its edges are among the known instants.
    start = max((k for k in known if gap[0] <= k <= t and oracle.seen(k) != GAP), default=gap[0] - 1) + 1
    end = min((k for k in known if t < k < gap[1] and oracle.seen(k) != GAP), default=gap[1])
    before = oracle.seen(start - 1) if start > gap[0] else ""
    after = oracle.seen(end) if end < gap[1] else ""
    exit_end = min(start + EDGE_NS, end) if before in WITH_EDGES else start
    entry_start = max(end - EDGE_NS, exit_end) if after in WITH_EDGES else end
    if t < exit_end:
        return {before}
    if t >= entry_start:
        return {after}
    rest = {causes.OUTSIDE_GUEST if oracle.run.probes and not oracle.run.lost else causes.NOT_SEEN}
    return rest | ({causes.OWN_SERVICE} if gap[2] == records.GAP_IN_BATCH else set())


@settings(max_examples=60)
@given(runs(collections=[], tail_batches=None))
def test_each_instant_has_the_cause_that_the_simulation_gave_it(run: Run) -> None:
    recording = build(run)
    for thread, timeline in timelines_of(recording).items():
        oracle = ThreadOracle(run, recording, thread)
        known = instants(oracle, timeline)
        segment = np.searchsorted(timeline.bounds_ns, known, side="right") - 1
        found = [timeline.causes[code].cause for code in timeline.cause[segment].tolist()]
        for t, cause in zip(known, found, strict=True):
            assert cause in expected(oracle, known, t), (thread, t)
        assert int(np.diff(timeline.bounds_ns).sum()) == int(timeline.bounds_ns[-1] - timeline.bounds_ns[0])
