"""Recordings of the live workload made to order: one worker, told when it did not get on, and why.

As in tests.support.runs the parts fit together as those of a real run do, and nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sysmeter import records
from sysmeter.hist import LatencyHistogram
from sysmeter.recording import Recording
from tests.support import runs
from tests.support.runs import T_START, event, switch

MS = 1_000_000
WORKER, OTHER = 3001, 3002
CPU = 1
COMM = b"sysmeter-worker"
FUTEX = 202
LOCK_ADDRESS, LOCK_BYTES = 0x7F0000000000, 0x28000
SERVICE_NS = 11_000
READ_NS = 100
GAP_THRESHOLD_NS = 20_000
SUB_BITS = 7
PREEMPTED, ASLEEP = 0x100, 1


@dataclass
class Stop:
    """A stretch in which the worker does not get on: a gap of its own.

    ``runner`` None: no switch, as in a collection of its own. ``futex``: it entered this system call first, with
    this address. The switch-out comes ``entry_ns`` after the stretch began, the switch-in ``exit_ns`` before its end.
    """

    t_start_ns: int
    length_ns: int
    runner: tuple[int, bytes] | None = None
    state: int = PREEMPTED
    futex: int | None = None
    woken_before_end_ns: int | None = None
    entry_ns: int = 1_000
    exit_ns: int = 500
    fault_after_call: bool = False

    @property
    def t_end_ns(self) -> int:
        return self.t_start_ns + self.length_ns

    def waited_ns(self) -> int:
        """Time on the run queue, as schedstat has it."""
        if self.runner is None:
            return 0
        if self.state == PREEMPTED:
            return self.length_ns - self.entry_ns - self.exit_ns
        return 0 if self.woken_before_end_ns is None else self.woken_before_end_ns - self.exit_ns

    def events(self) -> list[np.void]:
        me, rows = (WORKER, COMM), []
        t_out, t_in = self.t_start_ns + self.entry_ns, self.t_end_ns - self.exit_ns
        if self.futex is not None:
            t_call = t_out - self.entry_ns // 2
            rows.append(
                event(t_ns=t_call, kind=records.EVENT_SYSCALL, cpu=CPU, tid=WORKER, value=FUTEX, value2=self.futex)
            )
            if self.fault_after_call:
                rows.append(event(t_ns=t_call + 1, kind=records.EVENT_PAGE_FAULT, cpu=CPU, tid=WORKER, value=0x1000))
        if self.runner is not None:
            away = switch(t_out, CPU, me, self.runner, self.state)
            if self.futex is not None:
                away["detail"], away["value2"] = 1 + FUTEX, self.futex
            rows += [away, switch(t_in, CPU, self.runner, me)]
        if self.woken_before_end_ns is not None:
            t_woken = self.t_end_ns - self.woken_before_end_ns
            rows.append(event(t_ns=t_woken, kind=records.EVENT_WAKEUP, cpu=CPU, tid=WORKER, value=CPU))
        return rows


@dataclass
class LiveRun:
    """What :func:`build_live` makes a Recording of. ``collections`` are ``(start, end, generation, tid)``."""

    n_messages: int = 2_500
    n_warmup: int = 500
    rate_hz: int = 10_000
    mode: str = "paced"
    stops: list[Stop] = field(default_factory=list)
    collections: list[tuple[int, int, int, int]] = field(default_factory=list)
    probes: bool = True
    lock_known: bool = True
    gc: str = "default"


def intended(run: LiveRun, message: int) -> int:
    return T_START + message * 10**9 // run.rate_hz


def build_live(run: LiveRun) -> Recording:
    """Work through the messages and record it."""
    stops = sorted(run.stops, key=lambda stop: stop.t_start_ns)
    begins, ends = _work_through(run, stops)
    batches = np.zeros(run.n_messages, records.BATCH)
    numbers = np.arange(run.n_messages)
    batches["t_popped_ns"], batches["t_decided_ns"], batches["n_messages"] = begins, ends, 1
    for name in ("first_message", "first_seq", "last_seq"):
        batches[name] = numbers
    t0 = np.array([intended(run, n) for n in range(run.n_messages)]) if run.mode == "paced" else begins
    events = runs.events_array([row for stop in stops for row in stop.events()]) if run.probes else None
    service, response = LatencyHistogram(SUB_BITS), LatencyHistogram(SUB_BITS)
    service.record_many((ends - begins)[run.n_warmup :])
    if run.mode == "paced":
        response.record_many((ends - t0)[run.n_warmup :])
    gaps = [
        (stop.t_start_ns, stop.t_end_ns, records.GAP_IN_SPIN) for stop in stops if stop.length_ns > GAP_THRESHOLD_NS
    ]
    collections = np.array(run.collections, records.COLLECTION) if run.collections else np.empty(0, records.COLLECTION)
    arrays = {
        "batches": batches,
        "releases": np.ascontiguousarray(t0, np.int64),
        "release_offsets": numbers.astype(np.int64),
        "gaps_worker": np.array(gaps, records.GAP) if gaps else np.empty(0, records.GAP),
        "kernel_events": np.empty(0, records.KERNEL_EVENT) if events is None else events,
        "collections": collections,
        "service_counts": service.counts,
        "response_counts": response.counts,
    }
    return Recording(_meta(run, begins, ends, collections, {"service": service, "response": response}), arrays)


def _work_through(run: LiveRun, stops: list[Stop]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    begins, ends = [], []
    t = T_START - 1_000
    for number in range(run.n_messages):
        t = max(t + READ_NS, intended(run, number) if run.mode == "paced" else 0)
        for stop in stops:
            if stop.t_start_ns <= t < stop.t_end_ns:
                t = stop.t_end_ns
        begins.append(t)
        t += SERVICE_NS + number % 97
        for stop in stops:
            if begins[-1] < stop.t_start_ns < t:
                t += stop.length_ns
        ends.append(t)
    return np.array(begins), np.array(ends)


def _meta(
    run: LiveRun,
    begins: np.ndarray[Any, Any],
    ends: np.ndarray[Any, Any],
    collections: np.ndarray[Any, Any],
    histograms: dict[str, LatencyHistogram],
) -> dict[str, Any]:
    meta = runs.build(runs.Run(n_messages=600, probes=run.probes)).meta
    meta["syscall_names"] = {str(FUTEX): "futex"}
    t_window = intended(run, run.n_warmup) if run.mode == "paced" else int(begins[run.n_warmup])
    opened = {**meta["edges"]["strategy"]["open"], "t_before_ns": t_window - 500_000, "t_after_ns": t_window - 300_000}
    opened |= {"rss_bytes": 80 << 20, "gc_collections": [10, 2, 0], "cpu": CPU}
    closed = {
        **opened,
        "t_before_ns": int(ends[-1]) + 200,
        "t_after_ns": int(ends[-1]) + 200_000,
        "rss_bytes": 83 << 20,
    }
    inside = [row for row in collections.tolist() if opened["t_after_ns"] <= row[0] <= closed["t_before_ns"]]
    closed["gc_collections"] = [
        n + sum(1 for row in inside if row[2] == k) for k, n in enumerate(opened["gc_collections"])
    ]
    closed["voluntary_switches"] += sum(1 for stop in run.stops if stop.runner and stop.state != PREEMPTED)
    closed["involuntary_switches"] += sum(1 for stop in run.stops if stop.runner and stop.state == PREEMPTED)
    closed["syscalls"] += sum(1 for stop in run.stops if stop.futex is not None)
    closed["minor_faults"] += sum(1 for stop in run.stops if stop.fault_after_call)
    closed["runq_delay_ns"] += sum(stop.waited_ns() for stop in run.stops)
    n_window = run.n_messages - run.n_warmup
    return {
        **meta,
        "workload": "live",
        "settings": {
            "cpus": [CPU],
            "mode": run.mode,
            "rate_hz": run.rate_hz,
            "seconds": run.n_messages / run.rate_hz,
            "warmup_seconds": run.n_warmup / run.rate_hz,
            "precision_bits": SUB_BITS,
            "probes": run.probes,
            "gap_threshold_ns": GAP_THRESHOLD_NS,
            "gc": run.gc,
            "threads": 1,
            "orders": 20_000,
            "housekeeping_cpus": [0],
        },
        "threads": {"worker": {"tid": WORKER, "cpu": CPU}, "tgid": 3000},
        "interpreter_lock": {
            "address": LOCK_ADDRESS if run.lock_known else None,
            "n_bytes": LOCK_BYTES if run.lock_known else None,
            "reason": None if run.lock_known else "no file that process 3000 has mapped exports _PyRuntime",
        },
        "edges": {"worker": {"open": opened, "close": closed}},
        "run": {
            "t_start_ns": T_START,
            "t_window_ns": t_window,
            "t_end_ns": int(ends[-1]),
            "elapsed_ns": int(ends[-1] - begins[run.n_warmup]),
            "n_planned": run.n_messages,
            "n_warmup": run.n_warmup,
            "n_done": run.n_messages,
            "n_window_messages": n_window,
            "n_window_batches": n_window,
            "storage": "full",
            "tail_floor_ns": 0,
            "gaps_lost": {"worker": 0},
            "gap_floor_ns": {"worker": 0},
            "stopped_by": None,
        },
        "histograms": {
            name: {
                "sub_bits": SUB_BITS,
                "count": found.count,
                "min_ns": found.min or 0,
                "max_ns": found.max or 0,
                "sum_ns": found.sum,
                "n_negative": 0,
            }
            for name, found in histograms.items()
        },
        "process": {
            "gc_collections_lost": 0,
            "gc_collections_before": opened["gc_collections"],
            "gc_collections_after": closed["gc_collections"],
            "gc_thresholds": [700, 10, 10],
            "gc_frozen": 0,
            "gc_enabled": run.gc != "off",
            "thread_names": {str(WORKER): "worker", str(OTHER): "other-1", "3000": "main"},
            "has_interpreter_lock": True,
            "switch_interval_ns": 5_000_000,
        },
    }
