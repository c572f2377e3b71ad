"""What held a thread at each instant: a partition of time into causes, exact to the nanosecond.

A timeline is built from layers, each a list of disjoint intervals with a cause. At any instant the first
layer that covers it decides, and where none does, the thread was doing its own work. So slices win over
gaps, and what is left of a gap is a cause of its own. Nothing is counted twice and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.reads import ThreadReads, edge_brackets
from sysmeter.analysis.slices import (
    ENDED,
    ENDED_RUN_END,
    ENDED_SWITCH_IN,
    KIND_PREEMPTED,
    KIND_STOPPED,
    KIND_THROTTLED,
    Slices,
)
from sysmeter.units import format_ns

if TYPE_CHECKING:
    import numpy.typing as npt

# Own service is a claim about the time between clock reads. Where gaps this many times longer than the
# threshold went unkept, the reads no longer show that the thread was turning all the time.
MAX_RESOLUTION_FACTOR = 10


@dataclass(frozen=True)
class Layer:
    """Disjoint intervals ``[t_start_ns[i], t_end_ns[i])``, ascending; ``cause`` indexes ``causes``."""

    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]
    cause: npt.NDArray[np.int64]
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Timeline:
    """One thread's time in ``[bounds_ns[0], bounds_ns[-1])``, in ``n`` segments.

    ``bounds_ns`` has shape ``(n + 1,)``, strictly ascending; segment ``i`` lies in
    ``[bounds_ns[i], bounds_ns[i + 1])`` and has ``causes[cause[i]]``.
    """

    thread: str
    bounds_ns: npt.NDArray[np.int64]
    cause: npt.NDArray[np.int64]
    causes: tuple[Cause, ...]

    def charge(self, t_start_ns: npt.NDArray[np.int64], t_end_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Time of each cause summed over the intervals ``[t_start_ns[i], t_end_ns[i])``, which may overlap.

        Shape ``(len(causes),)``. The sum of the result is the sum of the intervals' lengths, exactly.

        The time that a segment ``[a, b)`` has in common with all intervals is F(b) - F(a), where
        F(x) = sum over intervals of (max(0, x - start) - max(0, x - end)). With sorted edges and their
        cumulative sums F costs one search. The sums may pass 2**63: int64 wraps, and differences stay right.
        """
        # Relative to the first bound: wrapping is sound, but small numbers are easier to look at.
        bounds = self.bounds_ns - self.bounds_ns[0]
        covered = _past(t_start_ns - self.bounds_ns[0], bounds) - _past(t_end_ns - self.bounds_ns[0], bounds)
        times = np.zeros(len(self.causes), np.int64)
        np.add.at(times, self.cause, np.diff(covered))
        return times

    def parts(
        self, t_start_ns: npt.NDArray[np.int64], t_end_ns: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cut intervals at the bounds: ``(interval, cause, time_ns)``, one row a piece, by interval and time.

        Intervals lie within the timeline; empty ones have no piece. Memory is linear in the pieces.
        """
        kept = np.flatnonzero(t_end_ns > t_start_ns)
        start, end = t_start_ns[kept], t_end_ns[kept]
        first = np.searchsorted(self.bounds_ns, start, side="right") - 1
        n_pieces = np.searchsorted(self.bounds_ns, end, side="left") - first
        row = np.repeat(np.arange(len(kept)), n_pieces)
        segment = np.repeat(first - (np.cumsum(n_pieces) - n_pieces), n_pieces) + np.arange(len(row))
        time = np.minimum(end[row], self.bounds_ns[segment + 1]) - np.maximum(start[row], self.bounds_ns[segment])
        return kept[row], self.cause[segment], time


def _past(edges_ns: npt.NDArray[np.int64], x_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum over the edges of max(0, x - edge), for each x."""
    edges = np.sort(edges_ns)
    sums = np.append(np.int64(0), np.cumsum(edges))
    n_before = np.searchsorted(edges, x_ns, side="right")
    passed: npt.NDArray[np.int64] = n_before * x_ns - sums[n_before]
    return passed


def build_timeline(thread: str, t_start_ns: int, t_end_ns: int, layers: Sequence[Layer], rest: Cause) -> Timeline:
    """Partition ``[t_start_ns, t_end_ns)``: the first layer that covers an instant decides, else ``rest``."""
    edges = [np.array([t_start_ns, t_end_ns], np.int64)]
    for layer in layers:
        edges += [layer.t_start_ns, layer.t_end_ns]
    bounds = np.sort(np.concatenate(edges), kind="stable")  # the layers are sorted, so this mostly merges
    inside = (bounds >= t_start_ns) & (bounds <= t_end_ns)
    inside[1:] &= bounds[1:] != bounds[:-1]
    bounds = bounds[inside]
    starts = bounds[:-1]
    names: list[Cause] = [rest]
    cause = np.zeros(len(starts), np.int64)
    undecided = np.ones(len(starts), np.bool_)
    for layer in layers:
        if len(layer.t_start_ns):
            at = np.searchsorted(layer.t_start_ns, starts, side="right") - 1
            covered = undecided & (at >= 0) & (starts < layer.t_end_ns[at])
            cause[covered] = layer.cause[at[covered]] + len(names)
            undecided &= ~covered
        names += layer.causes
    return Timeline(thread, bounds, *_merge_names(cause, names))


def _merge_names(cause: npt.NDArray[np.int64], names: list[Cause]) -> tuple[npt.NDArray[np.int64], tuple[Cause, ...]]:
    distinct = tuple(dict.fromkeys(names))
    place = {name: index for index, name in enumerate(distinct)}
    return np.array([place[name] for name in names], np.int64)[cause], distinct


def thread_timeline(
    meta: dict[str, Any],
    reads: ThreadReads,
    slices: Slices,
    t_start_ns: int,
    t_end_ns: int,
    before: Sequence[Layer] = (),
    after: Sequence[Layer] = (),
) -> Timeline:
    """The timeline of a measured thread from what this version can see: slices, window edges, gaps.

    ``before`` are layers that win over the slices, ``after`` those that win over the gaps alone.
    """
    layers = [*before, slice_layer(slices), edge_layer(meta, slices.thread), *after, gap_layer(reads)]
    threshold_ns = meta["settings"]["gap_threshold_ns"]
    return build_timeline(slices.thread, t_start_ns, t_end_ns, layers, own_service(reads.resolution_ns, threshold_ns))


def own_service(resolution_ns: int, threshold_ns: int) -> Cause:
    """The cause of time in which nothing else is known to have held the thread."""
    if resolution_ns > MAX_RESOLUTION_FACTOR * threshold_ns:
        detail = f"or gaps of up to {format_ns(resolution_ns)}, which were not all kept"
        return Cause(causes.OWN_SERVICE, detail, causes.UNEXPLAINED)
    detail = "" if resolution_ns == threshold_ns else f"own clock reads at most {format_ns(resolution_ns)} apart"
    return Cause(causes.OWN_SERVICE, detail, causes.WITNESSED)


def gap_layer(reads: ThreadReads) -> Layer:
    """The thread's gaps. What slices leave of them is not yet classified."""
    # Records of one thread cannot overlap; should they all the same, the earlier one keeps what both claim.
    end = np.maximum.accumulate(reads.gap_end_ns) if len(reads.gap_end_ns) else reads.gap_end_ns
    start = reads.gap_start_ns.copy()
    start[1:] = np.maximum(start[1:], end[:-1])
    return Layer(
        start,
        np.maximum(start, end),
        np.zeros(len(start), np.int64),
        (Cause(causes.GAP, "not yet classified", causes.UNEXPLAINED),),
    )


def stall_layer(stalls: npt.NDArray[Any], stall_for_ns: int) -> Layer:
    """The injected stalls, each for its intended length.

    It comes before all else: a preemption inside a stall delays nothing that the stall would not. What
    lies beyond the intended length is the host's doing and is left to the other layers.
    """
    start = np.ascontiguousarray(stalls["t_start_ns"]).astype(np.int64)
    end = start + np.minimum(np.ascontiguousarray(stalls["duration_ns"]).astype(np.int64), stall_for_ns)
    cause = Cause(causes.INJECTED_STALL, "asked for with --stall-every", causes.WITNESSED)
    return Layer(start, end, np.zeros(len(start), np.int64), (cause,))


def edge_layer(meta: dict[str, Any], thread: str) -> Layer:
    """The edges of the window: there the thread reads its own witnesses instead of working."""
    brackets = np.array(edge_brackets(meta, thread), np.int64).reshape(-1, 2)
    cause = Cause(causes.SYSMETER, "reading the witnesses at the window's edge", causes.WITNESSED)
    return Layer(brackets[:, 0], brackets[:, 1], np.zeros(len(brackets), np.int64), (cause,))


def slice_layer(slices: Slices) -> Layer:
    """Off-CPU slices, cut by what held the thread.

    A preempted thread is held by whoever runs instead, so each task is named with its own time. A sleeping,
    stopped or throttled one is not: that somebody used the CPU meanwhile is no cause. From the wake-up on the
    thread waits for the CPU, and who has it is a cause again.
    """
    runs = slices.runs
    kind, ended = slices.kind[runs.slice_index], slices.ended[runs.slice_index]
    woken = slices.t_woken_ns[runs.slice_index]
    # Up to here the run is sleep (or a stop, or throttled), from here on somebody has the CPU instead. A
    # wake-up nobody saw leaves the whole of the slice to the former.
    waits_from = np.where(woken >= 0, np.clip(woken, runs.t_start_ns, runs.t_end_ns), runs.t_end_ns)
    waits_from = np.where(kind == KIND_PREEMPTED, runs.t_start_ns, waits_from)
    waits_from = np.where(kind == KIND_THROTTLED, runs.t_end_ns, waits_from)
    # One number names a cause: kind, how it ended, and the tasks or whether a wake-up was seen.
    n_tasks = len(slices.tasks) + 1
    base = kind * len(ENDED) + ended
    asleep = (base * n_tasks + (woken < 0)) * n_tasks
    held = (base * n_tasks + runs.task + 1) * n_tasks + runs.then_task + 1
    start = np.concatenate((runs.t_start_ns, waits_from))
    end = np.concatenate((waits_from, runs.t_end_ns))
    code = np.concatenate((-1 - asleep, held))
    some = np.flatnonzero(end > start)
    some = some[start[some].argsort(kind="stable")]
    distinct, cause = np.unique(code[some], return_inverse=True)
    names = tuple(_slice_cause(slices, int(number), n_tasks) for number in distinct)
    return Layer(start[some], end[some], cause.astype(np.int64), names)


def _slice_cause(slices: Slices, code: int, n_tasks: int) -> Cause:
    is_held = code >= 0
    rest, last = divmod(code if is_held else -1 - code, n_tasks)
    base, middle = divmod(rest, n_tasks)
    kind, ended = divmod(base, len(ENDED))
    if is_held:
        return _held(slices, kind, ended, middle - 1, last - 1)
    return _asleep(kind, middle == 1, ended)


def _asleep(kind: int, no_wakeup: bool, ended: int) -> Cause:
    if kind == KIND_THROTTLED:
        return Cause(causes.THROTTLED, "CPU quota used up" + _how_ended(ended), causes.WITNESSED)
    if kind == KIND_STOPPED:
        detail = "stopped, or waiting to run after it (no wake-up seen)" if no_wakeup else "by a signal or tracer"
        return Cause(causes.STOPPED, detail + _how_ended(ended), causes.WITNESSED)
    detail = "asleep, or waiting to run after it (no wake-up seen)" if no_wakeup else "asleep"
    return Cause(causes.VOLUNTARY, detail + _how_ended(ended), causes.WITNESSED)


def _held(slices: Slices, kind: int, ended: int, task: int, then_task: int) -> Cause:
    cause = causes.PREEMPTED if kind == KIND_PREEMPTED else causes.RUN_QUEUE
    return Cause(cause, slices.task_name(task, then_task) + _how_ended(ended), causes.WITNESSED)


def _how_ended(ended: int) -> str:
    if ended == ENDED_SWITCH_IN:
        return ""
    return " (still so at the end)" if ended == ENDED_RUN_END else " (return not seen; end by own clock)"
