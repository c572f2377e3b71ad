"""Recordings made to order: a small simulation of the two-thread loop, with what the kernel would have seen.

A test says when each thread was away (off the CPU, or stolen by the hypervisor) and why; the simulation works
out releases, batches, gaps, histograms and events from it, so that the parts of a Recording fit together as
those of a real run do. Nothing is random.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sysmeter import records
from sysmeter.hist import bucket_index, n_buckets
from sysmeter.recording import FORMAT, Recording
from tests.support.kernelevents import COMM, CPUS, TIDS, event, events_array, switch
from tests.support.loop import READ_NS, T_START, Away, Run, away_events, intended, simulate

__all__ = [
    "COMM",
    "CPUS",
    "READ_NS",
    "TIDS",
    "T_START",
    "Away",
    "Run",
    "build",
    "event",
    "events_array",
    "intended",
    "switch",
]

GAP_THRESHOLD_NS = 5_000
SUB_BITS = 7


def build(run: Run) -> Recording:
    """Simulate ``run`` and record it."""
    releases, batch_rows, full_waits = simulate(run)
    batches = np.zeros(len(batch_rows), records.BATCH)
    for column, name in enumerate(("t_popped_ns", "t_decided_ns", "first_message", "n_messages")):
        batches[name] = [row[column] for row in batch_rows]
    batches["first_seq"] = batches["first_message"]
    batches["last_seq"] = batches["first_message"] + batches["n_messages"] - 1
    t0 = np.array([intended(run, i) for i in range(run.n_messages)]) if run.mode == "paced" else np.array(releases)
    decided = np.repeat(batches["t_decided_ns"], batches["n_messages"])
    total = (decided - t0)[run.n_warmup :]
    in_window = batches["first_message"] >= run.n_warmup
    think = (batches["t_decided_ns"] - batches["t_popped_ns"])[in_window]
    peaks = np.array([int((decided - t0)[f : f + n].max()) for _, _, f, n in batch_rows])
    release_array, offsets = np.array(releases, np.int64), batches["first_message"].astype(np.int64)
    floor_ns = 0
    kept = batches
    if run.tail_batches is not None:
        order = np.argsort(-peaks, kind="stable")
        keep = np.sort(order[: run.tail_batches])
        dropped = order[run.tail_batches :]
        floor_ns = int(peaks[dropped].max()) if len(dropped) else 0
        keep = keep[peaks[keep] > floor_ns]
        kept = batches[keep]
        chunks = [release_array[f : f + n] for f, n in zip(kept["first_message"], kept["n_messages"], strict=True)]
        release_array = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        offsets = np.append(0, np.cumsum(kept["n_messages"])[:-1]).astype(np.int64)[: len(kept)]
    gaps, edges, events = {}, {}, list(run.extra_events)
    for thread in records.THREADS:
        away = sorted((a for a in run.away if a.thread == thread), key=lambda a: a.t_start_ns)
        rows = [
            (a.t_start_ns, a.t_start_ns + a.length_ns, _where(a, batch_rows))
            for a in away
            if a.length_ns > GAP_THRESHOLD_NS
        ]
        gaps[thread] = np.array(rows, records.GAP) if rows else np.empty(0, records.GAP)
        for part in away:
            events += away_events(part)
    event_array = events_array(events) if run.probes else np.empty(0, records.KERNEL_EVENT)
    all_events = events_array(events)
    t_window = int(t0[run.n_warmup])
    t_end = int(batches["t_decided_ns"][-1])
    for thread in records.THREADS:
        edges[thread] = _edges(all_events, thread, t_window, t_end, run)
    counts = {"think": _histogram(think), "total": _histogram(total)}
    ok = {"status": "ok", "reason": None, "events": len(event_array), "lost": run.lost, "missed": run.missed}
    off = {
        "status": "off",
        "reason": "--no-probes",
        "events": None,
        "lost": None,
        "missed": None,
        "broken_links": None,
    }
    n_broken = sum(1 for a in run.away if a.lose_switch_in or a.lose_switch_between is not None)
    probes = {
        "context_switch": {**ok, "broken_links": n_broken},
        "runq_delay": {**ok, "broken_links": None},
        "page_fault": {**ok, "broken_links": None},
        **{name: {**ok, "broken_links": None} for name in ("syscalls", "interrupts", "softirqs", "migrations")},
    }
    meta: dict[str, Any] = {
        "format": FORMAT,
        "sysmeter_version": "0.1.0",
        "created": "2026-11-30T12:00:00+00:00",
        "settings": {
            "mode": run.mode,
            "rate_hz": run.rate_hz,
            "seconds": run.n_messages / run.rate_hz,
            "warmup_seconds": run.n_warmup / run.rate_hz,
            "feed": "/var/cache/sysmeter/default.feed",
            "feed_sha256": None,
            "loop": False,
            "cpus": [CPUS["feed"], CPUS["strategy"]],
            "precision_bits": SUB_BITS,
            "probes": run.probes,
            "stop_above_ns": None,
            "gap_threshold_ns": GAP_THRESHOLD_NS,
            "ring_slots": run.ring_slots,
            "book": "array",
            "queue": "ring",
            "stall": "none",
            "stall_every_ns": None,
            "stall_for_ns": 10_000_000,
        },
        "host": {
            "hostname": "testhost",
            "kernel": "6.18.0-test",
            "os": "Debian GNU/Linux 12",
            "machine": "x86_64",
            "cpu_model": "Example CPU @ 3.00GHz",
            "n_cpus_online": 2,
            "cpus": [{"cpu": 0, "smt_siblings": []}, {"cpu": 1, "smt_siblings": []}],
            "virtualization": "kvm",
            "memory_bytes": 8_000_000_000,
            "isolated_cpus": "",
            "nohz_full": "",
            "cpu_governor": None,
            "python": "3.11.2",
            "numba": "0.68.1",
            "numpy": "2.4.6",
            "clock_source": "kvm-clock",
        },
        "clock": {
            "name": "CLOCK_MONOTONIC",
            "source": "kvm-clock",
            "fast": True,
            "resolution_ns": 1,
            "python_read_cost_ns": 60,
            "checked_start": True if run.probes else None,
            "checked_end": True if run.probes else None,
            "reason": None if run.probes else "probes are off",
        },
        "threads": {
            **{thread: {"tid": TIDS[thread], "cpu": CPUS[thread]} for thread in records.THREADS},
            "tgid": 2000,
        },
        "probes": probes if run.probes else dict.fromkeys(probes, off),
        "edges": edges,
        "run": {
            "t_start_ns": T_START,
            "t_window_ns": t_window,
            "t_end_ns": t_end,
            "n_warmup": run.n_warmup,
            "n_planned": run.n_messages,
            "n_file": run.n_messages,
            "n_released": run.n_messages,
            "n_popped": run.n_messages,
            "n_window_messages": len(total),
            "n_window_batches": int(in_window.sum()),
            "ring_full_waits": full_waits,
            "sequence_gaps": 0,
            "duplicates": 0,
            "other_instruments": 0,
            "unknown_instruments": 0,
            "live": True,
            "storage": "full" if run.tail_batches is None else "tail",
            "tail_floor_ns": floor_ns,
            "gaps_lost": {"feed": 0, "strategy": 0},
            "gap_floor_ns": {"feed": 0, "strategy": 0},
            "time_bucket_ns": None,
            "stopped_by": None,
            "elapsed_ns": t_end - t_window,
        },
        "histograms": {
            name: {
                "sub_bits": SUB_BITS,
                "count": len(values),
                "min_ns": int(values.min()),
                "max_ns": int(values.max()),
                "sum_ns": int(values.sum()),
                "n_negative": 0,
            }
            for name, values in (("think", think), ("total", total))
        },
        "process": {
            "allocations": 0,
            "allocations_interval": "from the warm-up's end to the last decision",
            "heap_delta_bytes": 0,
            "allocations_reason": None,
            "gc_collections_before": [10, 2, 0],
            "gc_collections_after": [
                n + sum(1 for _, _, g in run.collections if g == k) for k, n in enumerate((10, 2, 0))
            ],
        },
        "throttled_periods": run.throttled_periods,
        "interrupted": False,
        "notes": [],
    }
    collections = [(start, end, generation, 2000) for start, end, generation in run.collections]
    arrays = {
        "batches": kept,
        "releases": release_array,
        "release_offsets": offsets,
        "decisions": np.empty(0, records.DECISION),
        "gaps_feed": gaps["feed"],
        "gaps_strategy": gaps["strategy"],
        "kernel_events": event_array,
        "collections": np.array(collections, records.COLLECTION) if collections else np.empty(0, records.COLLECTION),
        "think_counts": counts["think"],
        "total_counts": counts["total"],
        "time_buckets": np.empty(0, records.TIME_BUCKET),
        "stalls": np.empty(0, records.STALL),
    }
    return Recording(meta, arrays)


def _where(away: Away, batch_rows: list[tuple[int, int, int, int]]) -> int:
    at_work = any(popped < away.t_start_ns < decided for popped, decided, _, _ in batch_rows)
    return records.GAP_IN_BATCH if at_work and away.thread == "strategy" else records.GAP_IN_SPIN


def _histogram(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    counts = np.zeros(n_buckets(SUB_BITS), np.int64)
    for value in values.tolist():
        counts[bucket_index(value, SUB_BITS)] += 1
    return counts


def _edges(events: np.ndarray[Any, Any], thread: str, t_window: int, t_end: int, run: Run) -> dict[str, dict[str, Any]]:
    """Edges whose witnesses agree with the events, as the kernel's own counters would."""
    tid = TIDS[thread]
    spans = [(a.t_start_ns, a.t_start_ns + a.length_ns) for a in run.away if a.thread == thread]
    low, high = t_window - 900, t_end + 300
    # A thread that is away reads nothing: the edges lie before and after.
    for start, end in sorted(spans, reverse=True):
        low = start if start < low < end else low
    for start, end in sorted(spans):
        high = end if start < high < end else high
    t_first = max([low - 9_000, *(end for _, end in spans if end <= low)])
    t_last = min([high + 9_000, *(start for start, _ in spans if start >= high)])
    during = events[(events["t_ns"] >= low) & (events["t_ns"] <= high)]
    out = during[(during["kind"] == records.EVENT_SWITCH) & (during["tid"] == tid)]
    n_involuntary = int(((out["value"] == 0) | (out["value"] == 0x100)).sum())
    n_faults = int(((during["kind"] == records.EVENT_PAGE_FAULT) & (during["tid"] == tid)).sum())
    n_syscalls = int(((during["kind"] == records.EVENT_SYSCALL) & (during["tid"] == tid)).sum())
    runq_ns = 0
    for away in run.away:
        if away.thread != thread or away.runners is None or not low <= away.t_start_ns <= high:
            continue
        length = sum(duration for _, _, duration in away.runners)
        if away.woken_after_ns is not None:
            runq_ns += length - away.woken_after_ns
        elif away.prev_state in (0, 0x100):
            runq_ns += length  # schedstat takes throttling for waiting, too
    opened = {
        "t_before_ns": t_first,
        "t_after_ns": low,
        "cpu": CPUS[thread],
        "voluntary_switches": 7,
        "involuntary_switches": 40,
        "minor_faults": 900,
        "major_faults": 0,
        "syscalls": 5_000,
        "migrations": 1,
        "runq_delay_ns": 1_000_000,
        "nr_migrations": 1,
    }
    closed = {
        **opened,
        "t_before_ns": high,
        "t_after_ns": t_last,
        "voluntary_switches": 7 + len(out) - n_involuntary,
        "involuntary_switches": 40 + n_involuntary,
        "minor_faults": 900 + n_faults,
        "syscalls": 5_000 + n_syscalls,
        "runq_delay_ns": 1_000_000 + runq_ns,
    }
    return {"open": opened, "close": closed}
