"""What observing a run cost its threads, as far as that can be estimated from the Recording alone.

An estimate, not a measurement: the kernel timed the probes' programs while they were tested before the run, and here
that cost of one event is multiplied by the events recorded of each thread. Timing every run of the programs would
itself cost, so it happens only where somebody asked the kernel for it (``scripts/bench_probes.py`` does); the
Recording then holds the true run times too, under ``programs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.counters import thread_window
from sysmeter.analysis.reads import column

if TYPE_CHECKING:
    import numpy.typing as npt

LEAVES_OUT = (
    "the tracepoints' own work before a program begins",
    "programs that ran for tasks that are not watched",
    "what the programs drove out of the caches",
    "system calls that the kernel must take its slow path for because one of their tracepoints is in use",
)

_PROBE_OF_KIND = {
    records.EVENT_SWITCH: "context_switch",
    records.EVENT_WAKEUP: "runq_delay",
    records.EVENT_PAGE_FAULT: "page_fault",
    records.EVENT_SYSCALL: "syscalls",
    records.EVENT_ALLOCATION: "allocations",
    records.EVENT_INTERRUPT: "interrupts",
    records.EVENT_SOFTIRQ: "softirqs",
    records.EVENT_MIGRATION: "migrations",
}


def describe_observation(
    meta: dict[str, Any], events: npt.NDArray[Any], threads: tuple[str, ...] = records.THREADS
) -> dict[str, Any] | None:
    """The estimate for each thread's window; None where the Recording holds nothing to make one from.

    ``threads``: per thread ``time_ns``, its share of the window, the events it rests on and ``by_probe``. An event is
    a thread's where it concerns the thread itself; a switch between others, where it happened on the thread's CPU while
    the thread was away from it. ``uncosted``: probes of which events came, but none while costs were measured.
    ``observer_cpu_ns`` is the CPU time of sysmeter's own process while the threads ran; on a CPU of theirs it shows as
    preemption too. ``programs`` were timed, where the kernel was asked to, for ``watched_ns``.
    """
    kept = meta.get("observation")
    if not kept:
        return None
    costs = kept.get("costs")
    described: dict[str, Any] = {
        "threads": None,
        "reason": kept.get("reason"),
        "ns_per_event": None,
        "uncosted": [],
        "leaves_out": list(LEAVES_OUT),
        "observer_cpu_ns": kept.get("observer_cpu_ns"),
        "programs": kept.get("programs"),
        "watched_ns": kept.get("watched_ns"),
    }
    if costs is None:
        return described
    ns_per_event = {name: cost["ns_per_event"] for name, cost in costs.items()}
    described["ns_per_event"] = ns_per_event
    described["threads"] = {}
    uncosted: set[str] = set()
    for thread in threads:
        window = thread_window(meta, thread)
        if window is None:
            described["threads"][thread] = None
            continue
        counts = _events_by_probe(meta, events, thread, threads, *window.inner_ns)
        by_probe = {name: n * (ns_per_event.get(name) or 0.0) for name, n in counts.items()}
        uncosted |= {name for name, n in counts.items() if n and ns_per_event.get(name) is None}
        length_ns = window.inner_ns[1] - window.inner_ns[0]
        time_ns = sum(by_probe.values())
        described["threads"][thread] = {
            "time_ns": round(time_ns),
            "share_frac": time_ns / length_ns if length_ns > 0 else None,
            "n_events": sum(counts.values()),
            "by_probe": {name: {"n_events": counts[name], "time_ns": round(by_probe[name])} for name in counts},
        }
    described["uncosted"] = sorted(uncosted)
    return described


def _events_by_probe(
    meta: dict[str, Any], events: npt.NDArray[Any], thread: str, threads: tuple[str, ...], start_ns: int, end_ns: int
) -> dict[str, int]:
    tids = [meta["threads"][name]["tid"] for name in threads]
    tid, cpu = meta["threads"][thread]["tid"], meta["threads"][thread].get("cpu")
    t_ns = column(events, "t_ns")
    inside = events[(t_ns >= start_ns) & (t_ns < end_ns)]
    is_switch = inside["kind"] == records.EVENT_SWITCH
    own = inside["tid"] == tid
    concerns_other = np.isin(inside["tid"], tids) | np.isin(inside["other_tid"], tids)
    own |= is_switch & (
        (inside["other_tid"] == tid) | (~concerns_other & (inside["cpu"] == (-1 if cpu is None else cpu)))
    )
    kinds, counts = np.unique(inside["kind"][own], return_counts=True)
    return {_PROBE_OF_KIND[kind]: n for kind, n in zip(kinds.tolist(), counts.tolist(), strict=True)}
