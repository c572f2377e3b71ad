"""Recordings made to order: a small simulation of the two-thread loop, with what the kernel would have seen.

A test says when each thread was away (off the CPU, or stolen by the hypervisor) and why; the simulation works
out releases, batches, gaps, histograms and events from it, so that the parts of a Recording fit together as
those of a real run do. Nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sysmeter import records
from sysmeter.hist import bucket_index, n_buckets
from sysmeter.recording import FORMAT, Recording

T_START = 1_000_000_000
TIDS = {"feed": 2001, "strategy": 2002}
CPUS = {"feed": 0, "strategy": 1}
COMM = b"sysmeter-load"
READ_NS = 40  # between two clock reads of a spinning thread
SERVICE_NS = 150  # a batch of one message
PER_MESSAGE_NS = 20
GAP_THRESHOLD_NS = 5_000
SUB_BITS = 7

PREEMPTED, THROTTLED, ASLEEP, STOPPED = 0x100, 0x100, 0x1, 0x4


@dataclass
class Away:
    """A stretch in which a thread does not run. ``runners`` None: stolen, no guest event is left by it.

    ``runners`` are ``(tid, comm, duration_ns)``; durations add up to the length less ``entry_ns`` and
    ``exit_ns``, which pass between the thread's clock reads and the switch events.
    """

    thread: str
    t_start_ns: int
    length_ns: int
    runners: list[tuple[int, bytes, int]] | None = None
    prev_state: int = PREEMPTED
    woken_after_ns: int | None = None  # from the switch-out
    lose_switch_in: bool = False
    lose_switch_between: int | None = None  # index of the runner whose switch-in is not seen
    faults: list[tuple[int, int, int]] = field(default_factory=list)  # (offset_ns, address, flags)
    entry_ns: int = 1_200
    exit_ns: int = 800


def event(**fields: Any) -> np.void:
    row = np.zeros(1, records.KERNEL_EVENT)
    for name, value in fields.items():
        row[name] = value
    return row[0]


def switch(t_ns: int, cpu: int, prev: tuple[int, bytes], following: tuple[int, bytes], state: int = 0) -> np.void:
    return event(
        t_ns=t_ns,
        kind=records.EVENT_SWITCH,
        cpu=cpu,
        tid=prev[0],
        comm=prev[1],
        other_tid=following[0],
        other_comm=following[1],
        value=state,
    )


def events_array(rows: list[np.void]) -> np.ndarray[Any, Any]:
    array = np.array(rows, records.KERNEL_EVENT)
    return array[array["t_ns"].argsort(kind="stable")]


def away_events(away: Away) -> list[np.void]:
    """The kernel events of one stretch, with links broken as asked."""
    rows: list[np.void] = []
    cpu, me = CPUS[away.thread], (TIDS[away.thread], COMM)
    if away.runners is not None:
        t = away.t_start_ns + away.entry_ns
        t_out = t
        previous = me
        for index, (tid, comm, duration) in enumerate(away.runners):
            if index != away.lose_switch_between:
                rows.append(switch(t, cpu, previous, (tid, comm), away.prev_state if previous == me else 0))
            previous = (tid, comm)
            t += duration
        if not away.lose_switch_in:
            rows.append(switch(t, cpu, previous, me))
        if away.woken_after_ns is not None:
            rows.append(
                event(
                    t_ns=t_out + away.woken_after_ns,
                    kind=records.EVENT_WAKEUP,
                    cpu=cpu,
                    tid=me[0],
                    comm=me[1],
                    other_tid=1,
                    other_comm=b"systemd",
                    value=cpu,
                )
            )
    for offset, address, flags in away.faults:
        rows.append(
            event(
                t_ns=away.t_start_ns + offset,
                kind=records.EVENT_PAGE_FAULT,
                cpu=cpu,
                tid=me[0],
                comm=me[1],
                value=address,
                value2=0x401000,
                flags=flags,
            )
        )
    return rows


@dataclass
class Run:
    """What :func:`build` makes a Recording of."""

    n_messages: int = 3_000
    n_warmup: int = 500
    rate_hz: int = 100_000
    mode: str = "paced"
    ring_slots: int = 4_096
    away: list[Away] = field(default_factory=list)
    extra_events: list[np.void] = field(default_factory=list)
    collections: list[tuple[int, int, int]] = field(default_factory=list)  # (start, end, generation)
    probes: bool = True
    lost: int = 0
    missed: int = 0
    tail_batches: int | None = None  # keep only so many of the slowest batches


def intended(run: Run, message: int) -> int:
    return T_START + message * 10**9 // run.rate_hz


def _free_at(t_ns: int, away: list[Away]) -> int:
    """The first instant from ``t_ns`` on at which the thread is there."""
    for part in away:
        if part.t_start_ns <= t_ns < part.t_start_ns + part.length_ns:
            t_ns = part.t_start_ns + part.length_ns
    return t_ns


def _work(t_ns: int, work_ns: int, away: list[Away]) -> int:
    """When work of a length begun at ``t_ns`` is done, with the thread away meanwhile as told."""
    end = t_ns + work_ns
    for part in away:
        if t_ns < part.t_start_ns < end:
            end += part.length_ns
    return end


def simulate(run: Run) -> tuple[list[int], list[tuple[int, int, int, int]], int]:
    """Releases by message, batches ``(popped, decided, first, n)``, and how often the ring was full."""
    feed = sorted((a for a in run.away if a.thread == "feed"), key=lambda a: a.t_start_ns)
    strategy = sorted((a for a in run.away if a.thread == "strategy"), key=lambda a: a.t_start_ns)
    releases: list[int] = []
    batches: list[tuple[int, int, int, int]] = []
    done_at: list[int] = []  # by message: when its slot came back
    full_waits = 0
    t_feed = T_START - 1_000
    t_strategy = T_START - 1_000
    popped_next = 0
    for message in range(run.n_messages):
        t = _work(t_feed, READ_NS, feed)
        if run.mode == "paced":
            t = max(t, intended(run, message))
        while True:
            blocker = message - run.ring_slots
            # Take batches until the slot this message needs is known to be free, or none is needed.
            while blocker >= len(done_at):
                t_strategy, popped_next = _take(releases, batches, done_at, strategy, t_strategy, popped_next)
            break
        if blocker >= 0 and done_at[blocker] > t:
            full_waits += 1
            t = done_at[blocker] + READ_NS
        t = _free_at(t, feed)
        releases.append(t)
        t_feed = t
        # Whatever the strategy pops before the next release is decided now.
        while popped_next < len(releases):
            t_pop = _pop_time(releases, strategy, t_strategy, popped_next)
            t_next = intended(run, message + 1) if run.mode == "paced" else t_feed + READ_NS
            t_next = _free_at(max(t_next, t_feed + READ_NS), feed)
            if t_pop >= t_next and message + 1 < run.n_messages:
                break
            t_strategy, popped_next = _take(releases, batches, done_at, strategy, t_strategy, popped_next)
    return releases, batches, full_waits


def _pop_time(releases: list[int], strategy: list[Away], t_strategy: int, first: int) -> int:
    return _free_at(max(t_strategy, releases[first] + READ_NS), strategy)


def _take(
    releases: list[int],
    batches: list[tuple[int, int, int, int]],
    done_at: list[int],
    strategy: list[Away],
    t_strategy: int,
    first: int,
) -> tuple[int, int]:
    t_pop = _pop_time(releases, strategy, t_strategy, first)
    n = int(np.searchsorted(np.array(releases[first:]), t_pop - READ_NS, side="right"))
    n = max(n, 1)
    decided = _work(t_pop, SERVICE_NS + n * PER_MESSAGE_NS, strategy)
    batches.append((t_pop, decided, first, n))
    done_at += [decided + READ_NS] * n
    return decided + READ_NS, first + n


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
            (a.t_start_ns, a.t_start_ns + a.length_ns, records.GAP_IN_SPIN)
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
        "syscalls": {**ok, "broken_links": None},
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


def _histogram(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    counts = np.zeros(n_buckets(SUB_BITS), np.int64)
    for value in values.tolist():
        counts[bucket_index(value, SUB_BITS)] += 1
    return counts


def _edges(events: np.ndarray[Any, Any], thread: str, t_window: int, t_end: int, run: Run) -> dict[str, dict[str, Any]]:
    """Edges whose witnesses agree with the events, as the kernel's own counters would."""
    tid = TIDS[thread]
    low, high = t_window - 900, t_end + 300
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
        "t_before_ns": low - 9_000,
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
        "t_after_ns": high + 9_000,
        "voluntary_switches": 7 + len(out) - n_involuntary,
        "involuntary_switches": 40 + n_involuntary,
        "minor_faults": 900 + n_faults,
        "syscalls": 5_000 + n_syscalls,
        "runq_delay_ns": 1_000_000 + runq_ns,
    }
    return {"open": opened, "close": closed}
