"""The zero counters: each counted twice, by two sources that do not know of each other.

A number that one source alone has seen is a measurement. Two that agree make it a claim. The rules:

- A count from the kernel's events is taken between the inner sides of the window's two edges. The witness
  is read somewhere inside each edge, so it must lie between the events of the inner and of the outer sides.
- Where a probe lost records or was skipped (missed), its count is a lower bound. It is claimed all the same
  if the witness, the kernel's own counter, says exactly the same number and no event lies in the edges: a
  lost event would have raised the witness. Otherwise it is "not proven".
- Where two sources differ, nobody knows which is wrong: "not proven", with both numbers.
- A length of time agrees within a tolerance that is printed beside it and is none where nothing was counted.
  Where the tolerance is no smaller than the lengths, the witness cannot tell, and ``agrees`` is null.
  What was lost is then no more than the tolerance, so losses do not undo such an agreement either.
- Without probes the witness stands alone: measured, and ``agrees`` is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.offcpu import OffCpu, run_queue_delay_ns, switch_lead_ns, throttled_ns
from sysmeter.analysis.reads import column
from sysmeter.analysis.slices import KIND_PREEMPTED, KIND_STOPPED, KIND_THROTTLED, KIND_VOLUNTARY, classify
from sysmeter.records import workload_kind
from sysmeter.units import format_ns

if TYPE_CHECKING:
    import numpy.typing as npt

MEASURED, NOT_MEASURED, NOT_PROVEN = "measured", "not_measured", "not_proven"

GETRUSAGE = "getrusage"
BPF = "BPF"

# schedstat's run-queue delay is read off the run queue's clock, which stands still between its updates and is
# not disciplined as CLOCK_MONOTONIC is. Two true figures may lie so much apart for each wait, and besides one
# part in so many. (A busy virtual machine, 441 to 5,380 waits a thread: 0.2 to 3.2 µs a wait apart.)
#
# And schedstat lets a wait begin where the scheduler sets out to look for another task, the tracepoint only
# where it has found one. After a second in user space that code is cold: on an idle virtual machine the
# switch-out came 11 to 23 µs (median) after the thread's last clock read, and schedstat was 6 to 11 µs a wait
# above BPF. So schedstat may also be above by what passed since the threads' own last clock reads.
RUN_QUEUE_TOLERANCE_PER_WAIT_NS = 10_000
RUN_QUEUE_TOLERANCE_PART = 1_000

THREAD_COUNTERS = (
    "voluntary_switches",
    "involuntary_switches",
    "minor_faults",
    "major_faults",
    "syscalls",
    "migrations",
    "runq_delay_ns",
)


@dataclass(frozen=True)
class Window:
    """A thread's window: its two edges, each an instant before and one after the witnesses were read."""

    open: dict[str, Any]
    close: dict[str, Any]

    @property
    def inner_ns(self) -> tuple[int, int]:
        """Between the edges: what counters claim."""
        return self.open["t_after_ns"], self.close["t_before_ns"]

    @property
    def outer_ns(self) -> tuple[int, int]:
        """With the edges."""
        return self.open["t_before_ns"], self.close["t_after_ns"]

    def delta(self, name: str) -> int | None:
        """Growth of a witness over the window, or None where it could not be read."""
        before, after = self.open.get(name), self.close.get(name)
        return None if before is None or after is None else int(after) - int(before)


def thread_window(meta: dict[str, Any], thread: str) -> Window | None:
    """The thread's window, or None where the run ended before it was opened or closed."""
    edges = (meta.get("edges") or {}).get(thread) or {}
    opened, closed = edges.get("open"), edges.get("close")
    if not opened or not closed or not opened.get("t_after_ns") or not closed.get("t_before_ns"):
        return None
    return Window(opened, closed)


def counter(
    value: int | None,
    status: str,
    source: str | None,
    witness: tuple[str, int | None] | None,
    agrees: bool | None,
    reason: str | None,
) -> dict[str, Any]:
    """One counter as it stands in the result."""
    return {
        "value": value,
        "status": status,
        "source": source,
        "witness": None if witness is None else {"source": witness[0], "value": witness[1]},
        "agrees": agrees,
        "reason": reason,
    }


def not_measured(reason: str) -> dict[str, Any]:
    """A counter nobody counted."""
    return counter(None, NOT_MEASURED, None, None, None, reason)


def thread_counters(
    meta: dict[str, Any], events: npt.NDArray[Any], thread: str, off_cpu: OffCpu | None
) -> dict[str, dict[str, Any]]:
    """All counters of one thread, by name.

    ``events`` are the kernel events by time; ``off_cpu`` is None where the switches were not recorded.
    """
    window = thread_window(meta, thread)
    if window is None:
        reason = "the run ended before this thread's window was complete"
        return {name: not_measured(reason) for name in THREAD_COUNTERS}
    probes = usable_probes(meta)
    tid = meta["threads"][thread]["tid"]
    voluntary, involuntary = _switches(window, probes, events, tid)
    minor, major = _faults(window, probes, events, tid)
    return {
        "voluntary_switches": voluntary,
        "involuntary_switches": involuntary,
        "minor_faults": minor,
        "major_faults": major,
        "syscalls": _syscalls(window, probes, events, tid, workload_kind(meta)),
        "migrations": _migrations(window),
        "runq_delay_ns": _run_queue(window, probes, off_cpu),
    }


def usable_probes(meta: dict[str, Any]) -> dict[str, Any]:
    """The probes' statuses as the analysis may use them: none is ok where the clocks disagreed.

    Kernel events are joined to the threads' own times by the clock alone. Where the check at the start or the
    end of the run failed, an event's place in the run is unknown, and all of them are left out.
    """
    probes = meta.get("probes") or {}
    clock = meta.get("clock") or {}
    if clock.get("checked_start") is not False and clock.get("checked_end") is not False:
        return dict(probes)
    reason = f"the kernel's clock is not the threads' clock ({clock.get('reason') or 'the check failed'})"
    refused = {"status": "unavailable", "reason": reason}
    return {name: {**probe, **(refused if probe["status"] == "ok" else {})} for name, probe in probes.items()}


def is_ok(probes: dict[str, Any], name: str) -> bool:
    """Whether a probe was attached and proved itself before the run."""
    return (probes.get(name) or {}).get("status") == "ok"


def losses(probes: dict[str, Any], *names: str) -> str | None:
    """What the probes lost, or may have lost without a count of it, in words; None where they lost nothing."""
    words = []
    for name in names:
        if not is_ok(probes, name):
            continue
        lost, missed = probes[name].get("lost"), probes[name].get("missed")
        if lost is None or missed is None:
            # Old kernels do not count skipped programs: nothing is known, which is not the same as nothing missed.
            words.append(f"{name} may have missed events, which this kernel does not count")
        elif lost or missed:
            words.append(f"{name} lost {lost:,} and missed {missed:,} events")
    return "; ".join(words) or None


def _why_not(probes: dict[str, Any], name: str) -> str:
    probe = probes.get(name)
    if probe is None or probe.get("status") == "off":
        return "kernel probes were off"
    return f"probe {name} cannot be used: {probe.get('reason') or 'no reason known'}"


def _switches(
    window: Window, probes: dict[str, Any], events: npt.NDArray[Any], tid: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    witness = [window.delta("voluntary_switches"), window.delta("involuntary_switches")]
    if not is_ok(probes, "context_switch"):
        reason = _why_not(probes, "context_switch")
        return _alone(GETRUSAGE, witness[0], reason), _alone(GETRUSAGE, witness[1], reason)
    out = events[(events["kind"] == records.EVENT_SWITCH) & (events["tid"] == tid)]
    kind = classify(column(out, "value"), column(out, "other_tid"))
    # To getrusage a stop is voluntary (the thread's state was not "running") and throttling involuntary.
    of_kind = [
        out[(kind == KIND_VOLUNTARY) | (kind == KIND_STOPPED)],
        out[(kind == KIND_PREEMPTED) | (kind == KIND_THROTTLED)],
    ]
    inner = [_count(part, window.inner_ns) for part in of_kind]
    outer = [_count(part, window.outer_ns) for part in of_kind]
    lost = losses(probes, "context_switch")
    voluntary, involuntary = (_compare(inner[k], outer[k], BPF, GETRUSAGE, witness[k], lost) for k in range(2))
    both = [value for value in witness if value is not None]
    if len(both) == 2 and sum(inner) <= sum(both) <= sum(outer):
        for one in (voluntary, involuntary):
            if one["agrees"] is False:
                # A sleep that a pending signal cancels: getrusage says voluntary, the event says running.
                one["reason"] += "; the sum of both kinds agrees, so no switch was overlooked"
    return voluntary, involuntary


def _faults(
    window: Window, probes: dict[str, Any], events: npt.NDArray[Any], tid: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Minor and major are the kernel's verdict after the trap, which getrusage counts; a probe sees the trap.

    So getrusage gives both values and the traps, minor or major, are the witness of their sum.
    """
    accounted = [window.delta("minor_faults"), window.delta("major_faults")]
    if accounted[0] is None or accounted[1] is None:
        unread = not_measured("getrusage could not be read")
        return unread, dict(unread)
    if not is_ok(probes, "page_fault"):
        why = _why_not(probes, "page_fault")
        return _alone(GETRUSAGE, accounted[0], why), _alone(GETRUSAGE, accounted[1], why)
    traps = events[(events["kind"] == records.EVENT_PAGE_FAULT) & (events["tid"] == tid)]
    inner, outer = _count(traps, window.inner_ns), _count(traps, window.outer_ns)
    total = accounted[0] + accounted[1]
    lost = losses(probes, "page_fault")
    agrees = inner <= total <= outer
    reason: str | None = None
    if not agrees:
        reason = f"getrusage counts {total:,} faults, minor and major, and BPF saw {inner:,} traps"
        if lost:
            reason += f" ({lost})"
        elif total > outer:
            reason += ": pages mapped without a trap (as MAP_POPULATE and mlock do), or traps not seen"
        else:
            reason += ": traps that the kernel settled without counting a fault, or retried"
    elif lost and not inner == total == outer:
        reason = f"{lost}; too few to tell from the events at the window's edges"
    status = NOT_PROVEN if reason else MEASURED
    witness = ("BPF traps, minor+major", inner)
    minor, major = (counter(value, status, GETRUSAGE, witness, agrees, reason) for value in accounted)
    if agrees is False and not accounted[1]:
        # Traps cannot tell minor from major, so their number says nothing against a zero of the latter.
        why = "getrusage alone tells major faults from minor ones, and BPF's traps do not add up to their sum"
        major = counter(0, MEASURED, GETRUSAGE, None, None, why)
    return minor, major


def _syscalls(
    window: Window, probes: dict[str, Any], events: npt.NDArray[Any], tid: int, kind: records.WorkloadKind
) -> dict[str, Any]:
    witness = window.delta("syscalls")
    if not is_ok(probes, "syscalls"):
        return _alone("perf counter", witness, _why_not(probes, "syscalls"))
    entries = events[(events["kind"] == records.EVENT_SYSCALL) & (events["tid"] == tid)]
    inner = _count(entries, window.inner_ns)
    # The perf counter is corrected for a compiled edge's own calls, so there both sources speak of the same time. An
    # edge in Python makes calls of its own around that read, as the interpreter lock changes hands.
    outer = _count(entries, window.outer_ns) if kind.holds_interpreter_lock else inner
    return _compare(inner, outer, BPF, "perf counter", witness, losses(probes, "syscalls"))


def _migrations(window: Window) -> dict[str, Any]:
    """perf's software counter against the scheduler's own, in /proc/…/sched; no probe is needed."""
    value, witness = window.delta("migrations"), window.delta("nr_migrations")
    if value is None:
        return _alone("/proc sched", witness, "perf's migration counter could not be opened")
    return _compare(value, value, "perf counter", "/proc sched", witness, None)


def _run_queue(window: Window, probes: dict[str, Any], off_cpu: OffCpu | None) -> dict[str, Any]:
    witness = window.delta("runq_delay_ns")
    for name in ("context_switch", "runq_delay"):
        if off_cpu is None or not is_ok(probes, name):
            return _alone("schedstat", witness, _why_not(probes, name))
    assert off_cpu is not None
    value, n_waits, n_unknown = run_queue_delay_ns(off_cpu.slices, *window.inner_ns)
    # Lost wake-ups matter where a sleep lacks its own; others, of sleeps nobody measures, do not.
    lost = losses(probes, "context_switch")
    unknown = f"{n_unknown:,} wake-ups were not seen" if n_unknown else None
    if witness is None:
        reason = lost or unknown
        return counter(value, NOT_PROVEN if reason else MEASURED, BPF, None, None, reason)
    # schedstat takes a thread under a quota for one that waits for a CPU.
    quota_ns = throttled_ns(off_cpu.slices, *window.inner_ns)
    expected = value + quota_ns
    tolerance_ns = n_waits * RUN_QUEUE_TOLERANCE_PER_WAIT_NS + max(expected, witness) // RUN_QUEUE_TOLERANCE_PART
    if witness > expected:
        tolerance_ns += switch_lead_ns(off_cpu, *window.inner_ns)
    words = f"BPF adds up {format_ns(value)}, schedstat {format_ns(witness)}"
    if quota_ns:
        words += f", which counts {format_ns(quota_ns)} of throttling too"
    agrees: bool | None = abs(expected - witness) <= tolerance_ns
    status, reason = MEASURED, words if quota_ns else None
    if not agrees:
        status = NOT_PROVEN
        reason = f"{words}, more than the tolerance of {format_ns(tolerance_ns)} apart"
        reason += "".join(f"; {more}" for more in (lost, unknown) if more)
    elif 0 < max(expected, witness) <= tolerance_ns:
        agrees = None
        reason = f"{words}: no more than the tolerance of {format_ns(tolerance_ns)} for {n_waits:,} waits this short"
    result = counter(value, status, BPF, ("schedstat", witness), agrees, reason)
    result["tolerance_ns"] = tolerance_ns
    return result


def _compare(
    inner: int, outer: int, source: str, witness_source: str, witness: int | None, lost: str | None
) -> dict[str, Any]:
    if witness is None:
        reason = f"{lost}, and {witness_source} could not be read" if lost else None
        return counter(inner, NOT_PROVEN if lost else MEASURED, source, None, None, reason)
    agrees = inner <= witness <= outer
    reason = None
    if not agrees:
        reason = f"{source} counts {inner:,} and {witness_source} {witness:,}"
        if lost:
            reason += f"; {lost}"
            if witness > outer:
                # What was lost was never nothing: the kernel's own counter is the better figure, if not a proven one.
                return counter(witness, NOT_PROVEN, witness_source, (source, inner), False, reason)
    elif lost and not inner == witness == outer:
        reason = f"{lost}; too few to tell from the events at the window's edges"
    return counter(inner, NOT_PROVEN if reason else MEASURED, source, (witness_source, witness), agrees, reason)


def _alone(source: str, value: int | None, reason: str) -> dict[str, Any]:
    """A counter whose first source is missing: the witness alone, or nothing."""
    if value is None:
        return not_measured(f"{reason}, and {source} could not be read")
    return counter(value, MEASURED, source, (source, value), None, None)


def _count(events: npt.NDArray[Any], interval_ns: tuple[int, int]) -> int:
    t_ns = column(events, "t_ns")
    return int(np.count_nonzero((t_ns >= interval_ns[0]) & (t_ns <= interval_ns[1])))
