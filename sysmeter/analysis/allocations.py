"""Allocations as an audit counts them: calls of libc's allocator by the measured threads, against numba's counter.

``malloc``, ``calloc`` and ``realloc`` by both measured threads in their windows are the value. The witness is numba's
counter, and the two differ in three ways, which the rule for their agreement has to allow for:

- numba counts the whole loop, warm-up included. So the calls are counted a second time, over the workload's
  ``loop_ns``, in which both threads were in compiled code: there each allocation of numba's is one call of malloc.
- numba counts itself alone. A call that it knows nothing of is an allocation all the same.
- numba counts the process. An allocation by another thread of it is no measured thread's call.

Over the loop the two must therefore be equal: more calls are allocations outside numba, fewer are another
thread's, or calls not seen. Unequal is "not proven", with both numbers. And where the probe lost records or was skipped
it is "not proven" even if they are equal: numba's counter would not miss a lost call that numba did not make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.counters import (
    MEASURED,
    NOT_PROVEN,
    counter,
    is_ok,
    losses,
    not_measured,
    thread_window,
    usable_probes,
)
from sysmeter.analysis.reads import column

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.recording import Recording

PROBE = "allocations"
SOURCE = "libc calls"
WITNESS = "numba, whole loop"

FUNCTIONS = {
    "malloc": records.ALLOCATION_MALLOC,
    "calloc": records.ALLOCATION_CALLOC,
    "realloc": records.ALLOCATION_REALLOC,
    "free": records.ALLOCATION_FREE,
}
_ALLOCATING = ("malloc", "calloc", "realloc")

# System calls by which an allocator gets memory from the kernel and gives it back; mprotect is how glibc's arenas of
# threads other than the first grow. Source: the kernel's
# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_SYSCALLS = {
    "x86_64": {"mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28},
    "aarch64": {"mmap": 222, "mprotect": 226, "munmap": 215, "brk": 214, "mremap": 216, "madvise": 233},
}


def describe_sources(meta: dict[str, Any]) -> dict[str, Any]:
    """``sources``: who counted allocations in this run, any of ``"numba"`` and ``"libc"``.

    And ``libc_reason``: None, or why libc's calls were not counted in an audit.
    """
    sources = meta["process"].get("allocation_sources")
    if sources is None:  # a Recording from before there was an audit
        sources = [] if meta["process"].get("allocations") is None else ["numba"]
    probe = usable_probes(meta).get(PROBE)
    counted = meta["process"].get("allocations") is not None
    usable = [source for source in sources if (is_ok({PROBE: probe}, PROBE) if source == "libc" else counted)]
    reason = None if probe is None or "libc" in usable else probe.get("reason") or "no reason known"
    return {"sources": usable, "libc_reason": reason}


def thread_allocations(recording: Recording, events: npt.NDArray[Any], thread: str) -> dict[str, dict[str, Any]]:
    """``{"allocations": counter}`` of one thread's window, or nothing in a run that was no audit.

    Beside the value, ``calls`` has the number of calls by function, and ``syscalls`` those system calls of the thread
    that move memory, by name; null where they were not counted.
    """
    meta = recording.meta
    probes = usable_probes(meta)
    if PROBE not in probes:
        return {}
    window = thread_window(meta, thread)
    if window is None:
        return {"allocations": not_measured("the run ended before this thread's window was complete")}
    if not is_ok(probes, PROBE):
        return {"allocations": not_measured(f"probe {PROBE} cannot be used: {probes[PROBE].get('reason')}")}
    tid = meta["threads"][thread]["tid"]
    calls = _calls(events, tid, window.inner_ns)
    lost = losses(probes, PROBE)
    found = counter(_allocating(calls), NOT_PROVEN if lost else MEASURED, SOURCE, None, None, lost)
    numbers = _SYSCALLS.get(meta["host"].get("machine") or "")
    by_name = None
    if numbers is not None and is_ok(probes, "syscalls"):
        mine = _values(events, records.EVENT_SYSCALL, tid, window.inner_ns)
        by_name = {name: int(np.count_nonzero(mine == number)) for name, number in numbers.items()}
    return {"allocations": {**found, "calls": calls, "syscalls": by_name}}


def audited_allocations(recording: Recording) -> dict[str, Any] | None:
    """The process's counter of an audit; None where the calls were not counted, or a window is incomplete.

    ``loop_calls`` is what the witness is compared with; ``heap_delta_bytes`` the change of the whole process's heap,
    which other threads of it can bring about.
    """
    meta = recording.meta
    probes = usable_probes(meta)
    windows = {thread: thread_window(meta, thread) for thread in records.THREADS}
    if not is_ok(probes, PROBE):
        return None
    events = np.asarray(recording["kernel_events"])
    events = events[events["kind"] == records.EVENT_ALLOCATION]
    tids = {thread: meta["threads"][thread]["tid"] for thread in records.THREADS}
    value = 0
    for thread, window in windows.items():
        if window is None:
            return None
        value += _allocating(_calls(events, tids[thread], window.inner_ns))
    process = meta["process"]
    numba, loop_ns = process.get("allocations"), process.get("loop_ns")
    in_loop, agrees, reasons = None, None, []
    if loop_ns is not None:
        loop = (loop_ns[0], loop_ns[1])
        in_loop = sum(_allocating(_calls(events, tid, loop)) for tid in tids.values())
    if numba is not None and in_loop is not None:
        agrees = in_loop == numba
        if not agrees:
            reasons.append(f"in the whole loop the threads made {in_loop:,} calls, and numba counts {numba:,}: ")
            reasons[-1] += (
                "allocations outside numba"
                if in_loop > numba
                else "another thread's allocations, or calls that were not seen"
            )
    lost = losses(probes, PROBE)
    if lost:
        reasons.append(lost)
    witness = None if numba is None else (WITNESS, numba)
    found = counter(value, NOT_PROVEN if reasons else MEASURED, SOURCE, witness, agrees, "; ".join(reasons) or None)
    return {**found, "loop_calls": in_loop, "heap_delta_bytes": process.get("heap_delta_bytes")}


def _calls(events: npt.NDArray[Any], tid: int, interval_ns: tuple[int, int]) -> dict[str, int]:
    functions = _values(events, records.EVENT_ALLOCATION, tid, interval_ns)
    return {name: int(np.count_nonzero(functions == number)) for name, number in FUNCTIONS.items()}


def _allocating(calls: dict[str, int]) -> int:
    return sum(calls[name] for name in _ALLOCATING)


def _values(events: npt.NDArray[Any], kind: int, tid: int, interval_ns: tuple[int, int]) -> npt.NDArray[np.int64]:
    own = events[(events["kind"] == kind) & (events["tid"] == tid)]
    t_ns = column(own, "t_ns")
    return column(own, "value")[(t_ns >= interval_ns[0]) & (t_ns <= interval_ns[1])]
