"""What the interpreter does to a measured thread that runs Python: collections, and waiting for its lock.

A thread that waits for the interpreter lock sleeps in the system call futex, at an address inside ``_PyRuntime``: the
lock's mutex and condition variables lie in that one object of the interpreter (``_PyRuntime.ceval.gil`` in CPython
3.11; from 3.12 on in the main interpreter's state, which is a part of it; source: Include/internal/pycore_runtime.h).
Other locks of a Python program, of ``threading`` too, lie on the heap. So the witness of such a wait is a switch-out by
the thread's own will whose last system call is futex, with a first argument in that object.

A collection runs with the lock held, and at most one at a time in an interpreter. In the measured thread it holds that
thread up itself; in any other thread it holds up whoever waits for the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.counters import is_ok, usable_probes
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.reads import ThreadReads, column
from sysmeter.analysis.slices import KIND_VOLUNTARY, Slices

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.recording import Recording

NO_LOCK, LOCK, UNTOLD = range(3)

# Source: the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_FUTEX = {"x86_64": 202, "aarch64": 98}


@dataclass(frozen=True)
class LockWaits:
    """For each slice of a thread whether it waited for the interpreter lock: int64 of :data:`NO_LOCK`, …

    ``reason`` says why that cannot be told (:data:`UNTOLD` for each sleep in futex), or why nothing is known of any
    slice's system call; None where everything is known.
    """

    kind: npt.NDArray[np.int64]
    reason: str | None


def find_lock_waits(meta: dict[str, Any], events: npt.NDArray[Any], slices: Slices, tid: int) -> LockWaits:
    """Which slices of the thread ``tid`` are waits for the interpreter lock; ``events`` are the kernel's, by time."""
    kind = np.full(len(slices), NO_LOCK, np.int64)
    probes, futex = usable_probes(meta), _FUTEX.get(meta["host"].get("machine") or "")
    if not is_ok(probes, "syscalls"):
        probe = probes.get("syscalls") or {}
        return LockWaits(kind, f"system calls were not recorded: {probe.get('reason') or 'kernel probes were off'}")
    if futex is None:
        return LockWaits(kind, f"the number of futex on {meta['host'].get('machine')} is not known to sysmeter")
    if meta["process"].get("has_interpreter_lock") is False:
        return LockWaits(kind, "this Python has no interpreter lock")
    own = events[events["tid"] == tid]
    calls = own[own["kind"] == records.EVENT_SYSCALL]
    last = np.searchsorted(column(calls, "t_ns"), slices.t_out_ns, side="right") - 1
    asleep = np.flatnonzero((slices.kind == KIND_VOLUNTARY) & (last >= 0))
    asleep = asleep[column(calls, "value")[last[asleep]] == futex]
    # A fault in user mode after the call says that the call was over: the thread slept for a page.
    is_fault = (own["kind"] == records.EVENT_PAGE_FAULT) & ((own["flags"] & records.FLAG_KERNEL_MODE) == 0)
    t_faults = column(own[is_fault], "t_ns")
    since_call = np.searchsorted(t_faults, column(calls, "t_ns")[last[asleep]], side="right")
    asleep = asleep[since_call == np.searchsorted(t_faults, slices.t_out_ns[asleep], side="right")]
    lock = meta.get("interpreter_lock") or {"address": None, "n_bytes": None, "reason": "its address was not recorded"}
    if lock["address"] is None:
        kind[asleep] = UNTOLD
        return LockWaits(kind, lock["reason"])
    address = np.ascontiguousarray(calls["value2"])[last[asleep]]
    inside = (address >= np.uint64(lock["address"])) & (address < np.uint64(lock["address"] + lock["n_bytes"]))
    kind[asleep[inside]] = LOCK
    return LockWaits(kind, None)


def lock_layers(recording: Recording, thread: str, waits: LockWaits, slices: Slices) -> list[Layer]:
    """Layers that come before the slices: collections of other threads waited for, then the rest of the waits.

    A wait ends where the thread is woken; from there on it waits for a CPU, which the slices say. But it is woken every
    few milliseconds to look again, and as long as another thread collects a CPU would be of no use to it: that time is
    the collection's up to the thread's return.
    """
    layers = []
    t_end = np.where(slices.t_woken_ns >= 0, slices.t_woken_ns, slices.t_in_ns)
    chosen = waits.kind == LOCK
    if chosen.any():
        start, end = slices.t_out_ns[chosen], t_end[chosen]
        words = "while the lock was waited for"
        layers.append(_foreign_layer(recording, thread, start, slices.t_in_ns[chosen], words, causes.WITNESSED))
        layers.append(_single(start, end, Cause(causes.INTERPRETER_LOCK, "", causes.WITNESSED)))
    untold = waits.kind == UNTOLD
    if untold.any():
        detail = f"asleep in futex, not told apart from waiting for the interpreter lock ({waits.reason})"
        cause = Cause(causes.VOLUNTARY, detail, causes.WITNESSED)
        layers.append(_single(slices.t_out_ns[untold], t_end[untold], cause))
    return layers


def collection_layers(recording: Recording, thread: str, reads: ThreadReads) -> list[Layer]:
    """Layers that come after the slices: the thread's own collections, and others' beside its gaps.

    Whoever collects holds the lock, so a gap of this thread at that time is the collection's even where no switch
    was seen. That is an inference: the kernel did not say that the thread waited for the lock.
    """
    tid = recording.meta["threads"][thread]["tid"]
    start, end, generation, by = _collections(recording)
    own = by == tid
    names = tuple(
        Cause(causes.COLLECTION, f"generation {number}, own thread", causes.WITNESSED)
        for number in range(int(generation.max(initial=0)) + 1)
    )
    layers = [Layer(start[own], end[own], generation[own], names)]
    gap_start, gap_end = reads.gap_start_ns, np.maximum.accumulate(reads.gap_end_ns)
    if len(gap_start):
        gap_start = np.append(gap_start[:1], np.maximum(gap_start[1:], gap_end[:-1]))
        words = "which holds the interpreter lock meanwhile"
        layers.append(
            _foreign_layer(recording, thread, gap_start, np.maximum(gap_start, gap_end), words, causes.INFERRED)
        )
    return layers


def thread_name(meta: dict[str, Any], tid: int) -> str:
    """``name/tid`` of a thread of the workload's process; the measured one has the name it has in the results."""
    for thread, described in meta["threads"].items():
        if isinstance(described, dict) and described.get("tid") == tid:
            return f"{thread}/{tid}"
    names = meta["process"].get("thread_names") or {}
    return f"{names.get(str(tid), 'unnamed')}/{tid}"


def describe_lock(
    meta: dict[str, Any], waits: LockWaits | None, slices: Slices, window_ns: tuple[int, int] | None
) -> dict[str, Any]:
    """The result's ``interpreter_lock``: how often and how long the thread waited for it in its window.

    Null, with the ``reason``, where that is not known. The time that another thread collected meanwhile is part of it.
    """
    found: dict[str, Any] = {"count": None, "time_ns": None, "max_ns": None, "reason": None}
    if window_ns is None:
        return {**found, "reason": "the run ended before this thread's window was complete"}
    if waits is None or not is_ok(usable_probes(meta), "context_switch"):
        return {**found, "reason": "context switches were not measured"}
    if waits.reason is not None:
        return {**found, "reason": waits.reason}
    chosen = (waits.kind == LOCK) & (slices.t_out_ns >= window_ns[0]) & (slices.t_out_ns <= window_ns[1])
    t_end = np.where(slices.t_woken_ns >= 0, slices.t_woken_ns, slices.t_in_ns)
    length = (np.minimum(t_end, window_ns[1]) - slices.t_out_ns)[chosen]
    return {**found, "count": len(length), "time_ns": int(length.sum()), "max_ns": int(length.max(initial=0))}


def _single(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], cause: Cause) -> Layer:
    return Layer(start, end, np.zeros(len(start), np.int64), (cause,))


def _collections(recording: Recording) -> tuple[npt.NDArray[np.int64], ...]:
    """Start, end, generation and thread of each collection, by start and disjoint."""
    rows = recording["collections"]
    start, end = column(rows, "t_start_ns"), column(rows, "t_end_ns")
    order = start.argsort(kind="stable")
    start, end = start[order], end[order]
    # One at a time, by the interpreter's own rule; should two overlap all the same, the earlier one keeps both's time.
    end = np.maximum.accumulate(end) if len(end) else end
    start[1:] = np.maximum(start[1:], end[:-1])
    return start, end, np.maximum(column(rows, "generation")[order], 0), column(rows, "tid")[order]


def _foreign_layer(
    recording: Recording,
    thread: str,
    t_start_ns: npt.NDArray[np.int64],
    t_end_ns: npt.NDArray[np.int64],
    words: str,
    evidence: str,
) -> Layer:
    """What collections in other threads have in common with the disjoint intervals ``[t_start_ns, t_end_ns)``."""
    start, end, generation, by = _collections(recording)
    chosen = by != recording.meta["threads"][thread]["tid"]
    start, end, generation, by = start[chosen], end[chosen], generation[chosen], by[chosen]
    # Each collection meets the intervals from `first` up to `last`.
    first = np.searchsorted(t_end_ns, start, side="right")
    last = np.searchsorted(t_start_ns, end, side="left")
    n_met = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(start)), n_met)
    met = np.arange(len(row)) - np.repeat(np.cumsum(n_met) - n_met, n_met) + first[row]
    kinds, cause = np.unique(np.column_stack((generation, by)), axis=0, return_inverse=True)
    names = tuple(
        Cause(causes.COLLECTION, f"generation {number} in thread {thread_name(recording.meta, tid)} {words}", evidence)
        for number, tid in kinds.tolist()
    )
    return Layer(
        np.maximum(start[row], t_start_ns[met]),
        np.minimum(end[row], t_end_ns[met]),
        cause.reshape(-1).astype(np.int64)[row],
        names,
    )
