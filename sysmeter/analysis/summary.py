"""A whole run as one result: what `run`, `live` and `report` print, as text or as JSON.

A run of the capstone has schema ``sysmeter.run/1``, one of the live workload ``sysmeter.live/1``, whose additions are
in :mod:`sysmeter.analysis.livesummary`.

Within the schema keys are only ever added. Times are integer nanoseconds, instants CLOCK_MONOTONIC, unknown
values null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.allocations import thread_allocations
from sysmeter.analysis.counters import is_ok, losses, thread_counters, thread_window, usable_probes
from sysmeter.analysis.decisions import describe_decisions
from sysmeter.analysis.diagnosis import describe_tail
from sysmeter.analysis.kernelevidence import kernel_evidence
from sysmeter.analysis.observation import describe_observation
from sysmeter.analysis.offcpu import OffCpu, describe_off_cpu, syscalls_by_number
from sysmeter.analysis.process import describe_collections, process_counters
from sysmeter.analysis.stalls import describe_stalls
from sysmeter.analysis.tail import histogram, tail_histogram
from sysmeter.records import CAPSTONE, EVENT_ALLOCATION, LIVE, THREADS
from sysmeter.units import NS_PER_S, format_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from sysmeter.recording import Recording

SCHEMA = "sysmeter.run/1"

# Key in the result, percentile as text: exact arithmetic starts from the text (see hist.percentile_rank).
PERCENTILES = (
    ("p50_ns", "50"),
    ("p90_ns", "90"),
    ("p99_ns", "99"),
    ("p99_9_ns", "99.9"),
    ("p99_99_ns", "99.99"),
)

_RUN_KEYS = (
    "ring_full_waits",
    "sequence_gaps",
    "duplicates",
    "other_instruments",
    "unknown_instruments",
    "live",
)


def summarize(recording: Recording) -> dict[str, Any]:
    """Everything there is to say about a run of either workload, as JSON-ready values; units as above.

    Raises:
        RecordingError: the Recording contradicts itself in a way that leaves no honest result.
    """
    if recording.kind is LIVE:
        from sysmeter.analysis.livesummary import summarize_live

        return summarize_live(recording)
    meta, run = recording.meta, recording.meta["run"]
    probes = usable_probes(meta)
    off_cpu, events = kernel_evidence(recording)
    window_ns = run_window(run)
    switches_seen = is_ok(probes, "context_switch")
    elapsed_ns = run.get("elapsed_ns")
    messages = run.get("n_window_messages")
    return {
        "schema": SCHEMA,
        "sysmeter_version": meta["sysmeter_version"],
        "created": meta["created"],
        "settings": meta["settings"],
        "host": meta["host"],
        "clock": meta["clock"],
        "threads": {thread: describe_thread(recording, events, thread, off_cpu[thread]) for thread in THREADS},
        "messages": messages,
        "messages_planned": run["n_planned"],
        "messages_in_file": run.get("n_file"),
        "messages_released": run.get("n_released"),
        "elapsed_ns": elapsed_ns,
        "achieved_rate_hz": achieved_rate_hz(meta["settings"], messages, elapsed_ns),
        "batches": run.get("n_window_batches"),
        **{key: run.get(key) for key in _RUN_KEYS},
        "stopped_by": run.get("stopped_by"),
        "swaps": {slot: meta["settings"][slot] for slot in ("book", "queue")},
        "stalls": describe_stalls(recording, window_ns),
        "latency": {name: describe_latency(recording, name) for name in CAPSTONE.histograms},
        "counters": {
            **{
                thread: {
                    **thread_counters(meta, events, thread, off_cpu[thread] if switches_seen else None),
                    **thread_allocations(recording, events, thread),
                }
                for thread in THREADS
            },
            "process": process_counters(recording, window_ns),
        },
        "gc": describe_collections(recording, window_ns),
        "probes": meta["probes"],
        "observation": describe_observation(meta, events),
        "steal_ns": meta.get("steal_ns") or {},
        "time_buckets": _time_buckets(recording),
        "tail": describe_tail(recording, off_cpu, events),
        "decisions": describe_decisions(recording),
        "recording": None if recording.path is None else str(recording.path),
        "interrupted": meta["interrupted"],
        "notes": [*meta["notes"], *analysis_notes(recording, off_cpu)],
    }


def achieved_rate_hz(settings: dict[str, Any], messages: int | None, elapsed_ns: int | None) -> float | None:
    """Messages over the time they took; n of them on schedule lie n - 1 periods apart, so one period is added."""
    if not messages or not elapsed_ns:
        return None
    period_ns = NS_PER_S / settings["rate_hz"] if settings["mode"] == "paced" else 0
    return messages * NS_PER_S / (elapsed_ns + period_ns)


def run_window(run: dict[str, Any]) -> tuple[int, int] | None:
    """From the window's begin to the end of its last batch; None where it has no message."""
    start, end = run.get("t_window_ns"), run.get("t_end_ns")
    return None if not start or not end or not run.get("n_window_messages") else (start, end)


def describe_thread(recording: Recording, events: npt.NDArray[Any], thread: str, off_cpu: OffCpu) -> dict[str, Any]:
    """The result's ``threads`` entry of one thread."""
    meta = recording.meta
    probes = usable_probes(meta)
    window = thread_window(meta, thread)
    described: dict[str, Any] = {
        **meta["threads"][thread],
        "window_ns": None if window is None else list(window.inner_ns),
        "off_cpu": None,
        "syscalls": None,
        "n_gaps": len(recording[f"gaps_{thread}"]),
        "gaps_lost": (meta["run"].get("gaps_lost") or {}).get(thread),
        "gap_resolution_ns": off_cpu.reads.resolution_ns,
    }
    if window is None:
        return described
    if is_ok(probes, "context_switch"):
        described["off_cpu"] = describe_off_cpu(off_cpu.slices, *window.inner_ns)
    if is_ok(probes, "syscalls"):
        tid = meta["threads"][thread]["tid"]
        names = meta.get("syscall_names") or {}
        described["syscalls"] = syscalls_by_number(events, tid, *window.inner_ns, names)
    return described


def describe_latency(recording: Recording, name: str) -> dict[str, Any]:
    """The result's ``latency`` entry of one histogram."""
    found = histogram(recording, name)
    return {
        "interval": _interval(name, recording.meta["settings"]["mode"]),
        "count": found.count,
        "min_ns": found.min,
        "mean_ns": found.mean,
        **{key: found.reportable_percentile(percentile) for key, percentile in PERCENTILES},
        "max_ns": found.max,
        "n_negative": found.n_negative,
        "sub_bits": found.sub_bits,
    }


def _interval(name: str, mode: str) -> str:
    if name == CAPSTONE.service:
        return "batch popped -> decision made (service time, one sample a batch)"
    if name == LIVE.service:
        return "work on the message begun -> done (service time, one sample a message)"
    if name == LIVE.response:
        return "intended time -> work on the message done (response time, one sample a message)"
    if mode == "paced":
        return "intended time -> decision made (response time, one sample a message)"
    return "push -> decision made (response time without a schedule, one sample a message)"


def _time_buckets(recording: Recording) -> list[dict[str, Any]]:
    """The run in slices of time, where not every batch was kept; empty where it was."""
    run, buckets = recording.meta["run"], recording["time_buckets"]
    if run.get("t_time_buckets_ns") is None:
        return []
    rows = []
    for index, bucket in enumerate(buckets):
        n = int(bucket["n_messages"])
        rows.append(
            {
                "t_start_ns": run["t_time_buckets_ns"] + index * run["time_bucket_ns"],
                "n_messages": n,
                "n_batches": int(bucket["n_batches"]),
                "total_mean_ns": int(bucket["total_sum_ns"]) / n if n else None,
                "total_max_ns": int(bucket["total_max_ns"]) if n else None,
            }
        )
    return rows


def analysis_notes(recording: Recording, off_cpu: Mapping[str, OffCpu]) -> list[str]:
    """What a reader must know to judge the result, found by the analysis."""
    meta, run = recording.meta, recording.meta["run"]
    notes = []
    probes, clock = usable_probes(meta), meta["clock"] or {}
    if probes != (meta["probes"] or {}):
        notes.append(
            "The kernel's events were recorded but not used: their clock is not the clock of the measured "
            "threads, so none of them can be given its place in the run."
        )
    elif any(is_ok(probes, name) for name in probes) and not (clock.get("checked_start") and clock.get("checked_end")):
        notes.append("The kernel's clock and the threads' clock were not compared at both ends of the run.")
    if clock.get("fast") is False:
        notes.append(
            f"The clock source {clock.get('source')} is not a fast one: each read of the clock enters the kernel, which"
            " lengthens what is measured and shows as gaps. Where the host has another, prefer it: "
            "/sys/devices/system/clocksource/clocksource0/available_clocksource."
        )
    lost = losses(probes, *probes)
    if lost:
        notes.append(f"{lost}: what the kernel's events explain is a lower bound.")
    n_traps = int(np.count_nonzero(recording["kernel_events"]["kind"] == EVENT_ALLOCATION))
    if n_traps:
        notes.append(
            f"--audit: each of {n_traps:,} calls of libc's allocator was a trap of microseconds in a measured thread; "
            "the latencies are not those of the loop without it."
        )
    if not is_ok(probes, "context_switch"):
        notes.append(
            "Context switches were not measured: a gap may be one, and no off-CPU time can be named; "
            "such time is counted as unexplained."
        )
    for thread, parts in off_cpu.items():
        chosen = (meta["threads"].get(thread) or {}).get("cpu")
        edges = (meta["edges"] or {}).get(thread) or {}
        found = {edge["cpu"] for edge in edges.values() if edge and edge.get("cpu") is not None}
        if found - {chosen}:
            notes.append(f"The {thread} thread was to run on CPU {chosen} and found itself on {sorted(found)}.")
        n_lost = (run.get("gaps_lost") or {}).get(thread) or 0
        if n_lost:
            notes.append(
                f"{n_lost:,} gaps of the {thread} thread were not kept, none longer than "
                f"{format_ns(parts.reads.resolution_ns)}; "
                "such short ones are not told apart from service."
            )
    n_timed = meta["histograms"][tail_histogram(recording)]["count"]
    if run.get("n_window_messages") and n_timed < run["n_window_messages"]:
        notes.append(
            f"{run['n_window_messages'] - n_timed:,} messages of the window have no response time: no decision was"
            " made on them, as after a sequence gap."
        )
    for name in recording.kind.histograms:
        negative = meta["histograms"][name].get("n_negative") or 0
        if negative:
            notes.append(f"{negative:,} samples of {name} were negative and are in no figure: an error to look into.")
    return notes
