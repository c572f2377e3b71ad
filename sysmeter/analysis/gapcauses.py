"""What is left of a gap when all that the kernel saw in it is taken out.

A gap is time between two clock reads of a thread that turns all the time. Slices, interrupts, softirqs, faults and
collections that lie in it take their time first. What remains is cut in three:

- The *edges* of what was seen. Before an interrupt's tracepoint the processor and the kernel enter it, after it they
  return; a switch has such edges too. They belong to the event, up to an allowance that is measured in this run, for
  each kind of event and side, from the gaps in which nothing else happened.
- In a batch, the batch's *own service*: what so many messages take at the run's own pace.
- The rest, in which the thread did not run and the kernel saw nothing: on a virtual machine the hypervisor had taken
  the CPU away. That is *inferred*, and only where each probe that could have told otherwise was there and lost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.timeline import Timeline, merge_names

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.reads import ThreadReads

# An allowance is this many times the upper quartile of the edges seen, within bounds; the quartile is deaf to the
# gaps in which the CPU was taken away as well, as long as these are fewer than a quarter.
_ALLOWANCE_FACTOR = 2
_MIN_ALLOWANCE_NS = 1_000
_MAX_ALLOWANCE_NS = 50_000
# Where fewer edges of a kind were seen, those of all kinds are taken together; and with none at all this much.
_MIN_EDGES = 20
_DEFAULT_ALLOWANCE_NS = 10_000

ENTRY, EXIT = "entry", "exit"


@dataclass(frozen=True)
class Leftover:
    """How the rest of a gap is called, and what of it is the thread's own service.

    ``own_service_ns``: for each gap of the thread's reads (0 where the thread had nothing to do), int64.
    """

    rest: Cause
    own_service: Cause
    own_service_ns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Allowance:
    """How much beside an event is counted as its edge; ``n_edges`` were measured, of all kinds if ``is_pooled``."""

    kind: str
    side: str
    ns: int
    n_edges: int
    is_pooled: bool


@dataclass(frozen=True)
class Refined:
    """A timeline whose gaps are told apart, and the allowances that were used."""

    timeline: Timeline
    allowances: tuple[Allowance, ...]


@dataclass(frozen=True)
class _Pieces:
    """What is left of gaps: int64 arrays of one length. ``before`` and ``after`` are the kinds of the events beside
    a piece, in the same gap, or -1.
    """

    segment: npt.NDArray[np.int64]
    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]
    gap: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]


def refine(timeline: Timeline, reads: ThreadReads, leftover: Leftover) -> Refined:
    """Tell apart what ``timeline`` calls a gap.

    ``timeline`` covers all of the thread's loop, so that allowances are measured over all of it.
    """
    kinds, kind_of = _kinds(timeline.causes)
    pieces = _pieces(timeline, reads, kind_of)
    allowances = _measure(pieces, kinds)
    by_side = {
        # The last entry is for -1: no event beside the piece.
        side: np.array([allowance.ns for allowance in allowances if allowance.side == side] + [0], np.int64)
        for side in (EXIT, ENTRY)
    }
    exit_ns, entry_ns = by_side[EXIT][pieces.before], by_side[ENTRY][pieces.after]
    t_exit_end = np.minimum(pieces.t_start_ns + exit_ns, pieces.t_end_ns)
    t_entry_start = np.maximum(pieces.t_end_ns - entry_ns, t_exit_end)
    own_ns = _own_service(pieces, t_entry_start - t_exit_end, leftover.own_service_ns)
    t_own_end = t_exit_end + own_ns

    names = [*timeline.causes, leftover.rest, leftover.own_service]
    rest_code, own_code = len(names) - 2, len(names) - 1
    cause = timeline.cause
    n = len(pieces.segment)
    before_code = cause[np.maximum(pieces.segment - 1, 0)]
    after_code = cause[np.minimum(pieces.segment + 1, len(cause) - 1)]
    kept = np.ones(len(cause), np.bool_)
    kept[pieces.segment] = False
    starts = [timeline.bounds_ns[:-1][kept], pieces.t_start_ns, t_exit_end, t_own_end, t_entry_start]
    ends = [timeline.bounds_ns[1:][kept], t_exit_end, t_own_end, t_entry_start, pieces.t_end_ns]
    codes = [cause[kept], before_code, np.full(n, own_code), np.full(n, rest_code), after_code]
    start, end, code = np.concatenate(starts), np.concatenate(ends), np.concatenate(codes)
    some = np.flatnonzero(end > start)
    some = some[start[some].argsort(kind="stable")]
    bounds = np.append(start[some], timeline.bounds_ns[-1:])
    return Refined(Timeline(timeline.thread, bounds, *merge_names(code[some], names)), allowances)


def _kinds(names: tuple[Cause, ...]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The kinds of event that have edges, and for each cause the index of its kind, or -1.

    Interrupts and softirqs by name; what takes the CPU away, by class.
    """
    with_names = (causes.INTERRUPT, causes.SOFTIRQ)
    without = (
        *(causes.PREEMPTED, causes.VOLUNTARY, causes.RUN_QUEUE, causes.THROTTLED, causes.STOPPED, causes.MIGRATED),
        *(causes.SYSMETER, causes.PAGE_FAULT, causes.SYSTEM_CALL, causes.INTERPRETER_LOCK),
    )
    found = {}
    for name in names:
        if name.cause in with_names:
            found[name] = f"{name.cause}: {name.detail}"
        elif name.cause in without:
            found[name] = name.cause
    kinds = sorted(set(found.values()))
    return kinds, np.array([kinds.index(found[name]) if name in found else -1 for name in names], np.int64)


def _pieces(timeline: Timeline, reads: ThreadReads, kind_of: npt.NDArray[np.int64]) -> _Pieces:
    is_gap = np.array([name.cause == causes.GAP for name in timeline.causes], np.bool_)
    segment = np.flatnonzero(is_gap[timeline.cause])
    start, end = timeline.bounds_ns[segment], timeline.bounds_ns[segment + 1]
    gap = np.maximum(np.searchsorted(reads.gap_start_ns, start, side="right") - 1, 0)
    begins, ends = start == reads.gap_start_ns[gap], end == reads.gap_end_ns[gap]
    last = len(timeline.cause) - 1
    before = np.where(begins | (segment == 0), -1, kind_of[timeline.cause[np.maximum(segment - 1, 0)]])
    after = np.where(ends | (segment == last), -1, kind_of[timeline.cause[np.minimum(segment + 1, last)]])
    return _Pieces(segment, start, end, gap, before, after)


def _measure(pieces: _Pieces, kinds: list[str]) -> tuple[Allowance, ...]:
    """The allowances of both sides, each in the order of ``kinds``."""
    length = pieces.t_end_ns - pieces.t_start_ns
    alone = {EXIT: (pieces.after < 0) & (pieces.before >= 0), ENTRY: (pieces.before < 0) & (pieces.after >= 0)}
    beside = {EXIT: pieces.before, ENTRY: pieces.after}
    found = []
    for side, chosen in alone.items():
        pooled, of_kind = length[chosen], beside[side][chosen]
        for number, kind in enumerate(kinds):
            own = pooled[of_kind == number]
            is_pooled = len(own) < _MIN_EDGES
            edges = pooled if is_pooled else own
            found.append(Allowance(kind, side, _allowance_ns(edges), len(edges), is_pooled))
    return tuple(found)


def _allowance_ns(edges_ns: npt.NDArray[np.int64]) -> int:
    if len(edges_ns) < _MIN_EDGES:
        return _DEFAULT_ALLOWANCE_NS
    quartile_ns = int(np.percentile(edges_ns, 75))
    return min(max(_ALLOWANCE_FACTOR * quartile_ns, _MIN_ALLOWANCE_NS), _MAX_ALLOWANCE_NS)


def _own_service(
    pieces: _Pieces, room_ns: npt.NDArray[np.int64], own_service_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How much of each piece is own service: each gap's share, taken from its pieces in their order."""
    if not len(room_ns):
        return room_ns
    total = np.cumsum(room_ns)
    is_first = np.append(True, pieces.gap[1:] != pieces.gap[:-1])
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    before = total - room_ns - (total[first] - room_ns[first])
    own: npt.NDArray[np.int64] = np.clip(own_service_ns[pieces.gap] - before, 0, room_ns)
    return own
