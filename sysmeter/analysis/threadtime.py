"""The timeline of a measured thread: which evidence decides first, and what the gaps then turn out to be.

The order of the layers is an order of evidence. What was injected comes first: nothing inside an injected stall delays
more than the stall does. Then the thread was off the CPU, or it had the CPU and an interrupt, then a softirq took it
(an interrupt inside a softirq keeps its own time). Then what the thread itself recorded: the edges of the window, a
collection. Then the traps it took, of which only the start is known. What a gap still has left is told apart by
:mod:`sysmeter.analysis.gapcauses`, and outside gaps the thread turned, or was at work: own service.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.corroboration import NO, late_ticks
from sysmeter.analysis.counters import is_ok, usable_probes
from sysmeter.analysis.gapcauses import Leftover, refine
from sysmeter.analysis.interpreter import collection_layers, lock_layers
from sysmeter.analysis.interrupts import interrupt_layer, softirq_layer
from sysmeter.analysis.layers import Layer, disjoint_layer
from sysmeter.analysis.offcpulayer import SliceWords, slice_layer
from sysmeter.analysis.reads import ThreadReads, column, disjoint_gaps, edge_brackets
from sysmeter.analysis.sleeps import moves, sleep_reasons
from sysmeter.analysis.tail import histogram
from sysmeter.analysis.timeline import build_timeline
from sysmeter.analysis.traps import MAX_TRAP_NS, WITNESSED_TRAP_NS, trap_layer
from sysmeter.units import format_ns

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.gapcauses import Allowance
    from sysmeter.analysis.offcpu import OffCpu
    from sysmeter.analysis.slices import Slices
    from sysmeter.analysis.timeline import Timeline
    from sysmeter.recording import Recording

# Own service is a claim about the time between clock reads. Where gaps this many times longer than the
# threshold went unkept, the reads no longer show that the thread was turning all the time.
MAX_RESOLUTION_FACTOR = 10

# Without one of these, or with events of it lost, what is left of a gap may be what it would have told of.
GAP_PROBES = ("context_switch", "page_fault", "syscalls", "interrupts", "softirqs")

# The compiled loop reads the clock once in so many messages of a batch (capstone.strategy_thread).
_MESSAGES_BETWEEN_READS = 64
# Batches of at least so many messages tell what a message costs; the reads around them weigh little.
_LARGE_BATCH = 8


@dataclass(frozen=True)
class ThreadTime:
    """A thread's timeline, the edge allowances it was made with, and the second sign of each segment that is outside
    the guest: ``late_tick``, one a segment, see :func:`corroboration.late_ticks`.
    """

    timeline: Timeline
    allowances: tuple[Allowance, ...]
    late_tick: npt.NDArray[np.int64]


def thread_time(
    recording: Recording, thread: str, parts: OffCpu, events: npt.NDArray[Any], t_start_ns: int, t_end_ns: int
) -> ThreadTime:
    """The timeline of ``thread`` over ``[t_start_ns, t_end_ns)``, which should cover its loop.

    ``events`` are the kernel events, by time; ``parts`` the thread's slices and clock reads.
    """
    meta, reads = recording.meta, parts.reads
    tid = meta["threads"][thread]["tid"]
    syscall_names = meta.get("syscall_names") or {}
    events = events[events["tid"] == tid]
    words = SliceWords(
        sleep_reasons(parts.slices, events, tid, syscall_names, reads),
        moves(parts.slices, events, tid),
        _own_tasks(meta),
    )
    layers: list[Layer] = []
    if thread == recording.kind.worker and not recording.kind.holds_interpreter_lock:
        layers.append(stall_layer(recording["stalls"], meta["settings"].get("stall_for_ns") or 0))
    if recording.kind.holds_interpreter_lock and parts.lock_waits is not None:
        layers += lock_layers(recording, thread, parts.lock_waits, parts.slices)
    layers += [
        slice_layer(parts.slices, words),
        interrupt_layer(events, tid, reads, meta.get("interrupt_names") or {}),
        softirq_layer(events, tid, reads),
        edge_layer(meta, thread),
    ]
    if recording.kind.holds_interpreter_lock:
        layers += collection_layers(recording, thread, reads)
    # A gap of a thread that runs Python holds work of its own as well as the trap, and one in which events were lost
    # may hold anything.
    is_alone = not recording.kind.holds_interpreter_lock and why_not_inferred(meta) is None
    max_trap_ns = MAX_TRAP_NS if is_alone else WITNESSED_TRAP_NS
    layers += [
        trap_layer(events, tid, reads, syscall_names, max_trap_ns),
        unseen_layer(parts.slices, reads),
        gap_layer(reads),
    ]
    threshold_ns = meta["settings"]["gap_threshold_ns"]
    timeline = build_timeline(thread, t_start_ns, t_end_ns, layers, own_service(reads.resolution_ns, threshold_ns))
    refined = refine(timeline, reads, _leftover(recording, thread, reads))
    answers = late_ticks(refined.timeline, events, tid, parts.slices.t_out_ns)
    # Where a clock interrupt was due and came neither in time nor late, the inference does not hold.
    denied = Cause(causes.NOT_SEEN, "a gap in which a clock interrupt was due and not late", causes.UNEXPLAINED)
    names = (*refined.timeline.causes, denied)
    code = np.where(answers == NO, len(names) - 1, refined.timeline.cause)
    return ThreadTime(replace(refined.timeline, cause=code, causes=names), refined.allowances, answers)


def why_not_inferred(meta: dict[str, Any]) -> str | None:
    """Why the rest of a gap may be something that the kernel would have told of; None where it cannot."""
    probes = usable_probes(meta)
    for name in GAP_PROBES:
        if not is_ok(probes, name):
            return f"the probe {name} was not there"
        for what in ("lost", "missed"):
            value = probes[name].get(what)
            if value is None:
                return f"this kernel does not tell whether {name} {what} events"
            if value:
                return f"{name} {what} {value:,} events"
    return None


def _leftover(recording: Recording, thread: str, reads: ThreadReads) -> Leftover:
    meta = recording.meta
    why_not = why_not_inferred(meta)
    is_virtual = (meta["host"].get("virtualization") or "none") not in ("none", "unknown")
    if why_not is not None:
        rest = Cause(causes.NOT_SEEN, f"a gap, and {why_not}", causes.UNEXPLAINED)
    elif not is_virtual:
        detail = "a gap without a kernel event: firmware (SMI), or a non-maskable or untraced interrupt"
        rest = Cause(causes.NOT_SEEN, detail, causes.UNEXPLAINED)
    else:
        rest = Cause(causes.OUTSIDE_GUEST, "the hypervisor had the CPU", causes.INFERRED)
    own = Cause(causes.OWN_SERVICE, "of a large batch, at this run's pace", causes.INFERRED)
    if recording.kind.holds_interpreter_lock:
        # Python's own pace varies too much for a model: what of a gap at work is not seen stays its own or nobody's.
        own = Cause(causes.NOT_SEEN, "a gap at work: Python itself, or outside the guest", causes.UNEXPLAINED)
        in_work = column(disjoint_gaps(recording, thread), "where") == records.GAP_IN_BATCH
        return Leftover(rest, own, np.where(in_work, reads.gap_end_ns - reads.gap_start_ns, 0))
    return Leftover(rest, own, _batch_service_ns(recording, thread, reads))


def _batch_service_ns(recording: Recording, thread: str, reads: ThreadReads) -> npt.NDArray[np.int64]:
    """What the messages between two clock reads of a batch take at the run's own pace, for each gap; else 0."""
    gaps = disjoint_gaps(recording, thread)
    expected = np.zeros(len(gaps), np.int64)
    batches = recording["batches"]
    if thread != recording.kind.worker or not len(batches):
        return expected
    popped, decided = column(batches, "t_popped_ns"), column(batches, "t_decided_ns")
    n_messages = column(batches, "n_messages")
    usable = (decided >= 0) & (n_messages >= _LARGE_BATCH)
    if not usable.any():
        usable = (decided >= 0) & (n_messages > 0)
    if not usable.any():
        return expected
    pace_ns = float(np.median((decided - popped)[usable] / n_messages[usable]))
    # The batches may be the slowest ones only, slow by what is looked for here. No message takes longer than a batch,
    # and the loop's own histogram holds all of those.
    usual_ns = histogram(recording, recording.kind.service).percentile("50")
    pace_ns = pace_ns if usual_ns is None else min(pace_ns, usual_ns)
    batch = np.searchsorted(popped, reads.gap_start_ns, side="right") - 1
    inside = np.flatnonzero((column(gaps, "where") == records.GAP_IN_BATCH) & (batch >= 0))
    between_reads = np.minimum(n_messages[batch[inside]], _MESSAGES_BETWEEN_READS)
    expected[inside] = np.ceil(between_reads * pace_ns).astype(np.int64)
    return expected


def _own_tasks(meta: dict[str, Any]) -> dict[int, str]:
    """The threads of sysmeter itself but the measured ones, by tid."""
    measured = {row["tid"] for row in meta["threads"].values() if isinstance(row, dict)}
    own = dict.fromkeys((meta.get("observer") or {}).get("tids") or (), "the observer")
    own |= {int(tid): "the workload's other thread" for tid in meta.get("workload_tids") or {}}
    return {tid: who for tid, who in own.items() if tid not in measured}


def own_service(resolution_ns: int, threshold_ns: int) -> Cause:
    """The cause of time in which nothing else is known to have held the thread."""
    if resolution_ns > MAX_RESOLUTION_FACTOR * threshold_ns:
        detail = f"or gaps of up to {format_ns(resolution_ns)}, which were not all kept"
        return Cause(causes.OWN_SERVICE, detail, causes.UNEXPLAINED)
    detail = "" if resolution_ns == threshold_ns else f"own clock reads at most {format_ns(resolution_ns)} apart"
    return Cause(causes.OWN_SERVICE, detail, causes.WITNESSED)


def gap_layer(reads: ThreadReads) -> Layer:
    """The thread's gaps, whose rest :func:`refine` tells apart."""
    rest = (Cause(causes.GAP, "", causes.UNEXPLAINED),)
    return disjoint_layer(reads.gap_start_ns, reads.gap_end_ns, np.zeros(len(reads.gap_start_ns), np.int64), rest)


def unseen_layer(slices: Slices, reads: ThreadReads) -> Layer:
    """Where the thread was off the CPU though no switch away was seen, only the switch back to it.

    It left at some time after its last clock read, the gap's start, or after it came back the time before: nothing in
    between may be taken for the hypervisor's.
    """
    gap = reads.gap_of(slices.t_orphan_in_ns)
    t_in, gap = slices.t_orphan_in_ns[gap >= 0], gap[gap >= 0]
    came_back = np.append(slices.t_in_ns, 0)[np.searchsorted(slices.t_in_ns, t_in) - 1]
    start = np.maximum(reads.gap_start_ns[gap], came_back)
    cause = Cause(
        causes.NOT_SEEN, "a gap in which the thread left the CPU, and to whom was not seen", causes.UNEXPLAINED
    )
    return disjoint_layer(start, np.maximum(start, t_in), np.zeros(len(start), np.int64), (cause,))


def stall_layer(stalls: npt.NDArray[Any], stall_for_ns: int) -> Layer:
    """The injected stalls, each for its intended length.

    It comes before all else: a preemption inside a stall delays nothing that the stall would not. What
    lies beyond the intended length is the host's doing and is left to the other layers.
    """
    start = column(stalls, "t_start_ns")
    end = start + np.minimum(column(stalls, "duration_ns"), stall_for_ns)
    cause = Cause(causes.INJECTED_STALL, "asked for with --stall-every", causes.WITNESSED)
    return Layer(start, end, np.zeros(len(start), np.int64), (cause,))


def edge_layer(meta: dict[str, Any], thread: str) -> Layer:
    """The edges of the window: there the thread reads its own witnesses instead of working."""
    brackets = np.array(edge_brackets(meta, thread), np.int64).reshape(-1, 2)
    cause = Cause(causes.SYSMETER, "reading the witnesses at the window's edge", causes.WITNESSED)
    return Layer(brackets[:, 0], brackets[:, 1], np.zeros(len(brackets), np.int64), (cause,))
