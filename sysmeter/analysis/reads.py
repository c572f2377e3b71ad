"""What the clock reads of a measured thread prove: at the instant of each it was running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.recording import Recording

# bpf_ktime_get_ns() reads the clock in a form that is safe in interrupts and may be off by some nanoseconds
# while the kernel adjusts it (kernel/time/timekeeping.c, ktime_get_mono_fast_ns). No thread leaves and
# re-enters a CPU in this time, so instants of both sources closer than it are not told apart.
CLOCK_SLACK_NS = 1_000

NEVER_NS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class ThreadReads:
    """Instants at which one thread ran, and its gaps; every array int64 nanoseconds, ascending."""

    gap_start_ns: npt.NDArray[np.int64]
    gap_end_ns: npt.NDArray[np.int64]
    instants_ns: tuple[npt.NDArray[np.int64], ...]  # gap edges among them
    t_loop_start_ns: int  # within [start, end) each gap above the resolution is in the arrays above
    t_loop_end_ns: int
    resolution_ns: int  # clock reads outside the gaps are never further apart than this

    def first_after(self, t_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each instant the first one later than it, by more than the slack, at which the thread ran.

        :data:`NEVER_NS` where none is known. Shape and order of ``t_ns`` are kept.
        """
        first = np.full(len(t_ns), NEVER_NS, np.int64)
        for instants in self.instants_ns:
            at = np.searchsorted(instants, t_ns + CLOCK_SLACK_NS, side="right")
            found = at < len(instants)
            first[found] = np.minimum(first[found], instants[at[found]])
        return first

    def gap_of(self, t_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each instant the index of the gap that contains it, give or take the slack, or -1."""
        at = np.searchsorted(self.gap_end_ns, t_ns + CLOCK_SLACK_NS, side="right")
        index = np.full(len(t_ns), -1, np.int64)
        found = np.flatnonzero(at < len(self.gap_end_ns))
        found = found[self.gap_start_ns[at[found]] <= t_ns[found] + CLOCK_SLACK_NS]
        index[found] = at[found]
        return index

    def provably_in_no_gap(self, t_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """True where the thread was in its loop and no gap contains the instant."""
        in_loop = (t_ns >= self.t_loop_start_ns) & (t_ns < self.t_loop_end_ns)
        return in_loop & (self.gap_of(t_ns) < 0)


def thread_reads(
    recording: Recording, thread: str, events: npt.NDArray[Any], batches: npt.NDArray[Any] | None = None
) -> ThreadReads:
    """Collect what ``recording`` tells of the clock reads of ``thread``, one of its workload's.

    ``events`` are the kernel events, by time. Own reads: gap edges, edges of the window, pops and decisions
    (strategy, and a live run's worker), releases (feed). From the kernel: faults and system calls of the thread,
    which only a running thread can take.
    """
    meta = recording.meta
    run = meta["run"]
    gaps = disjoint_gaps(recording, thread)
    gap_start, gap_end = column(gaps, "t_start_ns"), column(gaps, "t_end_ns")
    instants = [gap_start, gap_end]
    edges = edge_brackets(meta, thread)
    instants.append(np.array(sorted(t for bracket in edges for t in bracket), np.int64))
    if thread == recording.kind.worker:
        batches = recording["batches"] if batches is None else batches
        decided = column(batches, "t_decided_ns")
        instants += [column(batches, "t_popped_ns"), decided[decided >= 0]]
    else:
        instants.append(np.ascontiguousarray(recording["releases"], np.int64))
    tid = meta["threads"][thread]["tid"]
    by_thread = (events["tid"] == tid) & np.isin(events["kind"], (records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL))
    instants.append(column(events[by_thread], "t_ns"))
    t_close = (edges[1] if len(edges) == 2 else (run.get("t_end_ns") or 0,))[0]
    return ThreadReads(
        gap_start,
        gap_end,
        tuple(_ascending(part) for part in instants),
        run.get("t_start_ns") or 0,
        t_close,
        max(meta["settings"]["gap_threshold_ns"], (run.get("gap_floor_ns") or {}).get(thread) or 0),
    )


def edge_brackets(meta: dict[str, Any], thread: str) -> list[tuple[int, int]]:
    """``(t_before_ns, t_after_ns)`` of the edges of the thread's window that were taken: open, then close."""
    edges = (meta.get("edges") or {}).get(thread) or {}
    taken = [edges.get(side) for side in ("open", "close")]
    return [(edge["t_before_ns"], edge["t_after_ns"]) for edge in taken if edge and edge.get("t_after_ns")]


def disjoint_gaps(recording: Recording, thread: str) -> npt.NDArray[Any]:
    """The thread's gap records, shape ``(n,)`` of ``records.GAP``, by start."""
    gaps = recording[f"gaps_{thread}"]
    starts = column(gaps, "t_start_ns")
    return gaps if _is_ascending(starts) else gaps[starts.argsort(kind="stable")]


def column(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.int64]:
    """One field of a record array as contiguous int64."""
    return np.ascontiguousarray(array[name]).astype(np.int64, copy=False)


def by_time(events: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Kernel events in order of time; events of the same nanosecond keep their order."""
    times = np.ascontiguousarray(events["t_ns"])
    return events if _is_ascending(times) else events[times.argsort(kind="stable")]


def _ascending(instants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return instants if _is_ascending(instants) else np.sort(instants)


def _is_ascending(values: npt.NDArray[Any]) -> bool:
    return bool((values[1:] >= values[:-1]).all())
