"""The zeros of a combination over all its runs: held, broken or not proven, and what broke them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sysmeter.analysis.counters import MEASURED
from sysmeter.analysis.sums import combined
from sysmeter.analysis.swapruns import PROCESS_ZEROS, ZEROS
from sysmeter.records import THREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sysmeter.analysis.swapruns import SwapRun

# Breaking these takes two threads that meet, which may happen to fail; all others the message file decides.
BROKEN_BY_CHANCE = {"voluntary_switches": "no thread ever had to sleep"}

ALLOCATIONS = "allocations"
INVOLUNTARY = "involuntary_switches"

_MAX_NAMES = 4

# Witnesses that count just what the value counts. That of the faults counts minor and major ones together.
_WITNESSES_OF_THE_SAME = ("getrusage", "perf counter", "gc.get_stats")


def parts(runs: Sequence[SwapRun], name: str) -> list[dict[str, Any]]:
    """The single counters behind a zero: of each run and, for a zero of the threads, of each thread.

    Allocations come from the audit pass, where there is one, and everything else from the timing passes: the
    audit's uprobes trap into the kernel, which is nothing the program does.
    """
    audit, timing = [run for run in runs if run.is_audit], [run for run in runs if not run.is_audit]
    if name in PROCESS_ZEROS:
        chosen = (audit or timing) if name == ALLOCATIONS else timing
        return [run.counters["process"][name] for run in chosen]
    return [run.counters[thread][name] for run in timing for thread in THREADS]


def is_broken(counters: Sequence[dict[str, Any]]) -> bool:
    """Somewhere more than none was counted, and the second source says so too."""
    return any(part["status"] == MEASURED and part["agrees"] is True and part["value"] > 0 for part in counters)


def why_unproven(counters: Sequence[dict[str, Any]]) -> str | None:
    """Why neither "held" nor "broken" can be said; None where two sources agree everywhere."""
    if not counters:
        return "there was no run to count in"
    for part in counters:
        if part["status"] != MEASURED:
            return str(part["reason"] or "no reason was recorded")
    if all(part["agrees"] is True for part in counters):
        return None
    alone = next(part for part in counters if part["agrees"] is not True)
    return str(alone["reason"] or f"counted by {alone['source']} alone")


def why_not_audited(runs: Sequence[SwapRun], reason: str | None) -> str | None:
    """Why calls of libc's allocator were not counted; None where they were. ``reason``: why there was no audit."""
    if reason is not None:
        return f"allocations were not audited: {reason}"
    audits = [run for run in runs if run.is_audit]
    for run in audits:
        probe = run.probes.get("allocations") or {}
        if probe.get("status") != "ok":
            return f"allocations were not audited: {probe.get('reason') or 'the probe was off'}"
    return None if audits else "allocations were not audited"


def describe_counters(runs: Sequence[SwapRun]) -> dict[str, Any]:
    """The result's ``counters``: each zero summed over threads and runs; involuntary switches with ``by_host``."""
    described = {name: combined(parts(runs, name)) for name in ZEROS}
    taken: dict[str, int] = {}
    for run in runs:
        if not run.is_audit:
            for task, time_ns in run.preempted_by.items():
                taken[task] = taken.get(task, 0) + time_ns
    names = sorted(taken, key=lambda task: (-taken[task], task))
    described[INVOLUNTARY] = {**combined(parts(runs, INVOLUNTARY)), "by_host": names}
    return described


def extra_breaks(runs: Sequence[SwapRun], predicted: str | None) -> list[dict[str, Any]]:
    """Each zero beyond the predicted one that broke, by thread, with its cause; those not proven are marked so."""
    found = []
    timing = [run for run in runs if not run.is_audit]
    for name in ZEROS:
        if name == predicted:
            continue
        if name == ALLOCATIONS and any(run.is_audit for run in runs):
            found += _timing_allocations(timing)
        whos = ("process",) if name in PROCESS_ZEROS else THREADS
        for who in whos:
            counters = parts(runs, name) if who == "process" else [run.counters[who][name] for run in timing]
            total = combined(counters)
            seen = [value for part in counters if (value := _at_least_one_source(part))]
            if seen:
                cause = "; ".join(filter(None, (total["reason"], _cause(timing, name, who))))
                row = {"counter": name, "thread": who, "value": sum(seen), "status": total["status"]}
                found.append({**row, "n_runs": len(seen), "cause": cause})
    return found


def _timing_allocations(timing: Sequence[SwapRun]) -> list[dict[str, Any]]:
    """What numba counted in the timing passes, which are longer than the audit: that is not to be hidden either."""
    counters = [run.counters["process"][ALLOCATIONS] for run in timing]
    seen = [part["value"] for part in counters if part["value"]]
    if not seen:
        return []
    cause = "counted by numba in the timing passes"
    row = {"counter": ALLOCATIONS, "thread": "process", "value": sum(seen), "status": combined(counters)["status"]}
    return [{**row, "n_runs": len(seen), "cause": cause}]


def _at_least_one_source(part: dict[str, Any]) -> int:
    """The larger one of what two sources counted of the same; a break that one of them saw is not to be hidden."""
    value, witness = part["value"] or 0, part["witness"] or {}
    is_same = part["agrees"] is False and witness.get("source") in _WITNESSES_OF_THE_SAME
    return max(value, witness.get("value") or 0) if is_same else value


def _cause(timing: Sequence[SwapRun], name: str, who: str) -> str:
    if name == ALLOCATIONS:
        return "calls of libc's allocator by the measured threads"
    if name == "gc_collections":
        return "the workload's Python collected beside the loop"
    words = _calls([run.syscalls.get(who, {}) for run in timing])
    if not words and (outside := _calls([run.syscalls_outside.get(who, {}) for run in timing])):
        words = f"in the window not named, outside of it {outside}"
    if name == "syscalls":
        return words or "not named"
    if name == "voluntary_switches":
        return f"slept in a system call: {words}" if words else "slept; its system calls were not recorded"
    traps, in_kernel, pages = (sum(run.faults.get(who, (0, 0, 0))[k] for run in timing) for k in range(3))
    what = f"{traps:,} traps, {in_kernel:,} of them in kernel mode, on {pages:,} pages"
    fresh = ", each page once: touched for the first time" if traps == pages > 0 else ""
    return f"{what}{fresh}; its system calls: {words or 'none'}"


def _calls(by_run: Sequence[dict[str, int]]) -> str:
    calls: dict[str, int] = {}
    for run in by_run:
        for call, count in run.items():
            calls[call] = calls.get(call, 0) + count
    ordered = sorted(calls, key=lambda call: (-calls[call], call))
    words = ", ".join(f"{call} {calls[call]:,}x" for call in ordered[:_MAX_NAMES])
    return words + (f" and {len(ordered) - _MAX_NAMES} others" if len(ordered) > _MAX_NAMES else "")
