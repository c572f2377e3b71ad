"""What a Recording's kernel events and clock reads say of each measured thread, put in order once for all analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.counters import is_ok, usable_probes
from sysmeter.analysis.interpreter import find_lock_waits
from sysmeter.analysis.offcpu import OffCpu
from sysmeter.analysis.reads import by_time, column, thread_reads
from sysmeter.analysis.slices import off_cpu_slices, switch_chain

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.recording import Recording


def kernel_evidence(recording: Recording) -> tuple[dict[str, OffCpu], npt.NDArray[Any]]:
    """Each measured thread's slices and clock reads, and the kernel events by time (none where none may be used)."""
    meta = recording.meta
    probes = usable_probes(meta)
    events = by_time(np.asarray(recording["kernel_events"]))
    if not any(is_ok(probes, name) for name in probes):
        events = events[:0]
    t_end_ns = max(meta["run"].get("t_end_ns") or 0, int(events["t_ns"][-1]) if len(events) else 0)
    chain, parts = switch_chain(events), {}
    for thread in recording.kind.threads:
        reads = thread_reads(recording, thread, events)
        tid = meta["threads"][thread]["tid"]
        slices = off_cpu_slices(chain, thread, tid, reads, t_end_ns, _traps(meta, events, tid))
        waits = find_lock_waits(meta, events, slices, tid) if recording.kind.holds_interpreter_lock else None
        parts[thread] = OffCpu(slices, reads, waits)
    return parts, events


def _traps(meta: dict[str, Any], events: npt.NDArray[Any], tid: int) -> npt.NDArray[np.int64] | None:
    """When the thread entered the kernel by a call or a fault, as a quota used up is told by its having not.

    None where that was not recorded in full, and where no control group on the host used up a quota at the time.
    """
    if not meta.get("throttled_periods"):
        return None
    probes = usable_probes(meta)
    for name in ("syscalls", "page_fault"):
        if not is_ok(probes, name) or probes[name].get("lost") or probes[name].get("missed"):
            return None
    kinds = (records.EVENT_SYSCALL, records.EVENT_PAGE_FAULT)
    return column(events[(events["tid"] == tid) & np.isin(events["kind"], kinds)], "t_ns")
