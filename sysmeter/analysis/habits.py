"""One habit of honest measuring each: whether a Recording shows that it was kept, and why.

``YES`` is said only where the Recording shows it: a habit of which it holds no evidence is not shown to have been
kept, and is answered ``NO`` with "not shown". What cannot apply to the run is ``NOT_APPLICABLE``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.counters import usable_probes
from sysmeter.analysis.evidence import (
    filled_buckets,
    instants_in_order,
    kept_schedule,
    n_after_warm_up,
    recount_responses,
)
from sysmeter.analysis.summary import summarize
from sysmeter.records import EVENT_ALLOCATION
from sysmeter.units import format_ns

if TYPE_CHECKING:
    from sysmeter.recording import Recording

YES, NO, NOT_APPLICABLE = "yes", "no", "not_applicable"

# The workload whose loop is compiled; others are run by the interpreter. Recordings without the key are of it.
_COMPILED = "capstone"

# A read of a coarser clock says little of a loop that takes less than a microsecond.
_COARSE_NS = 1_000

Answer = tuple[str, str]  # status, and why


class Evidence:
    """A Recording, the result of its analysis, and what several habits ask of both."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.meta: dict[str, Any] = recording.meta
        self.run: dict[str, Any] = recording.meta["run"]
        self.settings: dict[str, Any] = recording.meta["settings"]
        self.result = summarize(recording)
        self.latency: dict[str, dict[str, Any]] = self.result["latency"]
        self.service, self.response = self.latency
        self.workload: str = recording.meta.get("workload") or _COMPILED
        self.is_paced = self.settings["mode"] == "paced"

    @property
    def timed(self) -> dict[str, dict[str, Any]]:
        """The latencies that exist: without a schedule some workloads have no response time."""
        return {name: row for name, row in self.latency.items() if row["count"] is not None}

    @property
    def samples(self) -> int:
        """How many samples there are of whatever was timed."""
        return max(row["count"] or 0 for row in self.latency.values())

    @property
    def quoted(self) -> str:
        """The latency that the tail is read from: the response time, or where there is none the service time."""
        name: str = self.response if self.latency[self.response]["count"] else self.service
        return name


def monotonic_clock(evidence: Evidence) -> Answer:
    """The recorded clock's name, and whether any kept instant went back."""
    name = (evidence.meta["clock"] or {}).get("name")
    if name != "CLOCK_MONOTONIC":
        return NO, f"the instants are read from {name or 'a clock that is not recorded'}"
    order = instants_in_order(evidence.recording)
    n_negative = sum(row["n_negative"] or 0 for row in evidence.latency.values())
    if order.n_backward or n_negative:
        return NO, (
            f"{name}, and yet {order.n_backward:,} of {order.n_instants:,} instants lie before the one they follow and"
            f" {n_negative:,} samples are negative"
        )
    if not order.n_instants:
        return NOT_APPLICABLE, f"{name}, but the run ended before an instant was kept"
    return (
        YES,
        f"{name}: none of {order.n_instants:,} kept instants lies before the one it follows, no sample is negative",
    )


def fast_clock(evidence: Evidence) -> Answer:
    """The clock source, and what it costs to read it."""
    clock = evidence.meta["clock"] or {}
    source, cost_ns, resolution_ns = clock.get("source"), clock.get("python_read_cost_ns"), clock.get("resolution_ns")
    figures = f"resolution {format_ns(resolution_ns)}, a read from Python costs {format_ns(cost_ns)}"
    if source in (None, "unknown") or resolution_ns is None:
        return NO, "not shown: what the clock's source is was not recorded"
    if not clock.get("fast"):
        return NO, f"clock source {source}: every read enters the kernel, and its cost is in what is timed; {figures}"
    if resolution_ns > _COARSE_NS:
        return NO, f"clock source {source} is too coarse: {figures}"
    return YES, f"clock source {source}, read without entering the kernel; {figures}"


def one_host(evidence: Evidence) -> Answer:
    """Whose instants are subtracted, and whether the kernel's events share their clock."""
    clock, threads = evidence.meta["clock"] or {}, evidence.meta["threads"]
    host = (evidence.meta["host"] or {}).get("hostname") or "a host without a name"
    if threads.get("tgid") is None:
        return NO, "not shown: which process the measured threads belong to was not recorded"
    own = f"every latency is the difference of two instants of one process ({threads['tgid']}) on {host}"
    checks = [clock.get("checked_start"), clock.get("checked_end")]
    if False in checks:
        reason = clock.get("reason") or "the check failed"
        return NO, f"the kernel's clock is not the threads' ({reason}), so no kernel event was used; {own}"
    if all((probe or {}).get("status") == "off" for probe in (evidence.meta["probes"] or {}).values()):
        return YES, f"{own}; no kernel event was recorded that could be compared to it"
    if checks != [True, True]:
        return NO, f"not shown: the kernel's clock and the threads' were not compared at both ends of the run; {own}"
    return YES, f"{own}, and the kernel's events are on the same clock, checked at both ends of the run"


def warm_up(evidence: Evidence) -> Answer:
    """Whether exactly the messages after the warm-up are in the figures."""
    n_warmup = evidence.run.get("n_warmup")
    if not n_warmup:
        return NO, "there was no warm-up: cold caches and first page faults are in the figures"
    if not evidence.samples:
        return NOT_APPLICABLE, "the run ended within its warm-up, so nothing was measured"
    row = evidence.latency[evidence.quoted]
    count, known = row["count"] + (row["n_negative"] or 0), n_after_warm_up(evidence.recording)
    if known is not None and known != count:
        return NO, f"{count:,} samples of {evidence.quoted} are not the {known:,} messages after the warm-up"
    return YES, (
        f"the first {n_warmup:,} messages ({evidence.settings['warmup_seconds']:g} s at the run's rate) are in no"
        f" figure; {count:,} samples of {evidence.quoted} come after them"
    )


def optimised_build(evidence: Evidence) -> Answer:
    """Whether the window lies in the time in which the threads were in compiled code."""
    if evidence.workload != _COMPILED:
        return (
            NOT_APPLICABLE,
            "the workload is Python, which the interpreter runs as it is: there is no build to choose",
        )
    numba, loop_ns = (evidence.meta["host"] or {}).get("numba"), evidence.meta["process"].get("loop_ns")
    t_window_ns, t_end_ns = evidence.run.get("t_window_ns"), evidence.run.get("t_end_ns")
    if not t_window_ns or not t_end_ns:
        return NOT_APPLICABLE, "the run ended before its window"
    if not numba or not loop_ns:
        return NO, "not shown: when the threads were in compiled code was not recorded"
    if not loop_ns[0] <= t_window_ns <= t_end_ns <= loop_ns[1]:
        return NO, "the window reaches beyond the time in which both threads were in compiled code"
    return YES, (
        f"machine code by numba {numba}: both threads were in it from {format_ns(t_window_ns - loop_ns[0])} before the"
        " window to its end, so nothing was compiled meanwhile"
    )


def no_debugger(evidence: Evidence) -> Answer:
    """Whether anything stopped or trapped the measured threads."""
    n_traps = int(np.count_nonzero(evidence.recording["kernel_events"]["kind"] == EVENT_ALLOCATION))
    if evidence.settings.get("audit") or n_traps:
        return NO, (
            f"--audit: {n_traps:,} calls of libc's allocator were traps of microseconds in the measured threads; take"
            " latencies from a run without it"
        )
    tracers = evidence.meta["process"].get("tracer_pids")
    if tracers is None:
        return NO, "not shown: whether a debugger was attached was not recorded"
    if tracers:
        return (
            NO,
            f"process {', '.join(map(str, tracers))} traced the measured threads (a debugger, strace or the like)",
        )
    probes = [name for name, probe in usable_probes(evidence.meta).items() if probe.get("status") == "ok"]
    watched = f"; the kernel's probes ({', '.join(probes)}) ran inside the events they count" if probes else ""
    return YES, f"no process traced the measured threads, and no call of theirs was a trap{watched}"


def histogram(evidence: Evidence) -> Answer:
    """Whether the histograms hold what they count, in how much memory."""
    if not evidence.samples:
        return NOT_APPLICABLE, "no sample was recorded"
    words, bad = [], []
    for name, row in evidence.timed.items():
        found = filled_buckets(evidence.recording, name)
        if found["in_buckets"] != found["count"]:
            bad.append(f"{name} has {found['in_buckets']:,} samples in its buckets and counts {found['count']:,}")
        error = 100 / 2 ** row["sub_bits"]
        words.append(
            f"{name} {found['count']:,} samples in {found['n_bytes']:,} bytes whatever their number"
            f" ({found['n_buckets']:,} buckets, at most {error:.2g} % wide)"
        )
    return (NO, "; ".join(bad)) if bad else (YES, "; ".join(words))


def percentiles(evidence: Evidence) -> Answer:
    """Whether there are enough samples for more than a mean."""
    if not evidence.samples:
        return NOT_APPLICABLE, "no sample was recorded"
    row = evidence.latency[evidence.quoted]
    if row["p99_ns"] is None:
        return NO, f"{row['count']:,} samples of {evidence.quoted} are too few for p99"
    return YES, (
        f"{evidence.quoted}: p50 {format_ns(row['p50_ns'])}, p90 {format_ns(row['p90_ns'])},"
        f" p99 {format_ns(row['p99_ns'])} beside the mean of {format_ns(row['mean_ns'])}"
    )


def tail_with_collections(evidence: Evidence) -> Answer:
    """The tail's three figures and the collections, where all were measured."""
    if not evidence.samples:
        return NOT_APPLICABLE, "no sample was recorded"
    row, collections = evidence.latency[evidence.quoted], evidence.result["gc"]["collections"]
    counted = evidence.result["counters"]["process"]["gc_collections"]
    if row["p99_9_ns"] is None:
        return NO, f"{row['count']:,} samples of {evidence.quoted} are too few for p99.9, which takes 1,000"
    if collections is None or counted["status"] != "measured":
        return NO, f"collections are not {'measured' if collections is None else 'proven'}: {counted['reason']}"
    each = ", ".join(f"{n:,} of generation {generation}" for generation, n in enumerate(collections))
    return YES, (
        f"{evidence.quoted}: p99 {format_ns(row['p99_ns'])}, p99.9 {format_ns(row['p99_9_ns'])},"
        f" max {format_ns(row['max_ns'])}; collections in the window: {each}"
    )


def fixed_rate(evidence: Evidence) -> Answer:
    """Whether there was a schedule, and whether the releases keep to it."""
    if not evidence.is_paced:
        return NO, (
            "a flat run sends as fast as its messages are taken, so a slow moment slows the load down with it; paced"
            " mode keeps a schedule"
        )
    rate_hz = evidence.settings["rate_hz"]
    # In the live workload nothing is released; what is kept there is the schedule itself.
    schedule = kept_schedule(evidence.recording) if evidence.recording.kind.feeder is not None else None
    if schedule is not None and schedule.n_early:
        return NO, f"{schedule.n_early:,} of {schedule.n_releases:,} messages were released before they were due"
    words = f"{rate_hz:,} messages/s by a schedule that was fixed before the run"
    if schedule is not None:
        latest = format_ns(schedule.max_late_ns)
        words += f": none of {schedule.n_releases:,} was released before it was due, the latest {latest} after"
    waits = evidence.run.get("ring_full_waits")
    if waits:
        words += f"; {waits:,} found the queue full and kept their intended times"
    return YES, words


def intended_time(evidence: Evidence) -> Answer:
    """Whether the histogram follows from the intended times, by working it out again."""
    if not evidence.is_paced:
        return NO, (
            "a flat run intends no message for any instant: what was not sent during a slow moment is in no figure"
            " (coordinated omission)"
        )
    if not evidence.latency[evidence.response]["count"]:
        return NOT_APPLICABLE, "no response was recorded"
    recount = recount_responses(evidence.recording, evidence.response)
    if recount.differences:
        return NO, f"the responses do not follow from the intended times: {'; '.join(recount.differences)}"
    return YES, (
        f"worked out again from the intended times of {recount.n_messages:,} kept messages, {evidence.response} has the"
        f" same {recount.what}"
    )


def interval(evidence: Evidence) -> Answer:
    """The words that go with each latency."""
    words = {name: row.get("interval") for name, row in evidence.timed.items()}
    silent = [name for name, text in words.items() if not text]
    if silent:
        return NO, f"nothing says what {' and '.join(silent)} covers"
    return YES, "; ".join(f"{name}: {text}" for name, text in words.items())


def live_path(evidence: Evidence) -> Answer:
    """Whether this is a program at its real work."""
    what = "a replayed message file" if evidence.workload == _COMPILED else "a made-up workload"
    return NOT_APPLICABLE, (
        f"this is a run of {what} on a test host; a program of your own records where it works with"
        " sysmeter.hist.LatencyHistogram"
    )


def complete(evidence: Evidence) -> Answer:
    """Everything that the figures lack."""
    meta, run, result = evidence.meta, evidence.run, evidence.result
    missing = []
    if meta["interrupted"]:
        missing.append(f"it was interrupted after {result['messages'] or 0:,} of its messages")
    elif run.get("stopped_by"):
        missing.append("it was stopped by its first response above the limit, so the slow end is what it stopped at")
    row = evidence.latency[evidence.response]
    if row["count"] is not None:
        without = (result["messages"] or 0) - row["count"] - (row["n_negative"] or 0)
        if without > 0:
            missing.append(f"{without:,} messages have no response time")
    for name, latency in evidence.latency.items():
        if latency["n_negative"]:
            missing.append(f"{latency['n_negative']:,} samples of {name} are negative and in no figure")
        overflow = meta["histograms"][name].get("n_overflow")
        if overflow:
            missing.append(f"{overflow:,} samples of {name} are above 2^63 - 1 ns and in no figure")
    for thread, lost in (run.get("gaps_lost") or {}).items():
        if lost:
            missing.append(f"{lost:,} gaps of the {thread} thread were not kept")
    lost_collections = meta["process"].get("gc_collections_lost")
    if lost_collections:
        missing.append(f"{lost_collections:,} collections were not recorded")
    missing += _probe_losses(meta["probes"] or {})
    if missing:
        return NO, "; ".join(missing)
    return (
        YES,
        "run to its planned end; no message without a time, no negative sample, no gap, event or collection lost",
    )


def _probe_losses(probes: dict[str, Any]) -> list[str]:
    """What the kernel's probes lack. Those that are had on request only lack nothing where nobody asked."""
    words = []
    off = [name for name, probe in probes.items() if probe.get("status") == "off" and name != "allocations"]
    if off:
        words.append(f"not watched by {', '.join(off)} ({probes[off[0]].get('reason') or 'switched off'})")
    for name, probe in probes.items():
        if probe.get("status") not in ("ok", "off"):
            words.append(f"probe {name} is {probe.get('status')}: {probe.get('reason') or 'no reason is known'}")
        counts = [(probe.get(key) or 0, key) for key in ("lost", "missed")]
        lacks = " and ".join(f"{key} {n:,} events" for n, key in counts if n)
        if lacks:
            words.append(f"probe {name} {lacks}")
    # One chain of switches serves several probes, so each of them tells the same number.
    n_broken = max((probe.get("broken_links") or 0 for probe in probes.values()), default=0)
    if n_broken:
        words.append(f"{n_broken:,} context switches of other tasks reached no probe (broken links)")
    return words
