"""Large Recordings, made by arithmetic, and how long their diagnosis takes.

    python -m tests.support.largeruns [BATCHES [EVENTS]]

prints CPU time and memory of a diagnosis (by default of two million batches and a million events).
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from typing import Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.diagnosis import diagnose
from sysmeter.hist import LatencyHistogram
from sysmeter.recording import Recording
from tests.support.kernelevents import COMM, CPUS, TIDS
from tests.support.loop import PREEMPTED
from tests.support.runs import SUB_BITS, T_START, Run, build

PERIOD_NS = 10_000
SERVICE_NS = 200
# Events come in groups, each in a gap: a tick with a softirq, a preemption by one of some tasks, a trap.
GROUP = 8
TASKS = 300


def large_recording(n_batches: int, n_events: int) -> Recording:
    """``n_batches`` batches of one message and some ``n_events`` kernel events, in gaps of both threads."""
    recording = build(Run(n_messages=600, n_warmup=100))
    number = np.arange(n_batches, dtype=np.int64)
    t0 = T_START + number * PERIOD_NS
    n_groups = n_events // GROUP
    group = np.arange(n_groups, dtype=np.int64)
    at = T_START + (group * n_batches // n_groups) * PERIOD_NS + 3_000
    length = 9_000 + group * 7_919 % 90_000
    length = np.minimum(length, np.diff(at, append=at[-1] + 100_000) - 2_000)
    is_feed = group % 2 == 1
    # Nobody answers while the strategy thread is away, nor releases while the feed thread is.
    released = _after(t0 + 40, at[is_feed], length[is_feed])
    popped = np.maximum.accumulate(_after(released + 60, at[~is_feed], length[~is_feed]))
    decided = popped + SERVICE_NS
    popped[1:] = np.maximum(popped[1:], decided[:-1])
    batches = np.zeros(n_batches, records.BATCH)
    columns = {"t_popped_ns": popped, "t_decided_ns": popped + SERVICE_NS, "n_messages": 1}
    columns |= {"first_message": number, "first_seq": number, "last_seq": number}
    for name, values in columns.items():
        batches[name] = values
    recording.arrays |= {
        "batches": batches,
        "releases": released,
        "release_offsets": number,
        "kernel_events": _events(at, length, is_feed),
    }
    for thread, chosen in (("feed", is_feed), ("strategy", ~is_feed)):
        gaps = np.zeros(int(chosen.sum()), records.GAP)
        gaps["t_start_ns"], gaps["t_end_ns"] = at[chosen], (at + length)[chosen]
        recording.arrays[f"gaps_{thread}"] = gaps
    _describe(recording, t0, batches)
    return recording


def _after(t_ns: Any, away_ns: Any, length_ns: Any) -> Any:
    last = np.searchsorted(away_ns, t_ns, side="right") - 1
    until = np.where(last >= 0, (away_ns + length_ns)[np.maximum(last, 0)], 0)
    return np.maximum(t_ns, until)


def _events(at: Any, length: Any, is_feed: Any) -> np.ndarray[Any, Any]:
    """Eight events a gap: a tick, a softirq, a trap, a system call, and two tasks that have the CPU in turn."""
    n = len(at)
    events = np.zeros((n, GROUP), records.KERNEL_EVENT)
    tid = np.where(is_feed, TIDS["feed"], TIDS["strategy"])[:, None]
    events["tid"], events["comm"] = tid, COMM
    events["cpu"] = np.where(is_feed, CPUS["feed"], CPUS["strategy"])[:, None]
    step = (length // 10)[:, None]
    events["t_ns"] = at[:, None] + step * np.arange(1, GROUP + 1)
    task = 5_000 + np.arange(n) % TASKS
    kinds = (
        *(records.EVENT_INTERRUPT, records.EVENT_SOFTIRQ, records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL),
        *(records.EVENT_SWITCH, records.EVENT_SWITCH, records.EVENT_SWITCH, records.EVENT_INTERRUPT),
    )
    events["kind"] = kinds
    events["detail"][:, 0], events["value"][:, 0] = records.INTERRUPT_LOCAL_TIMER, length // 20
    events["detail"][:, 1], events["value"][:, 1] = np.arange(n) % 10, length // 30
    events["value"][:, 2] = 0x7F0000000000 + np.arange(n) % 50 * (1 << 24)
    events["value"][:, 3] = np.arange(n) % 40
    events["value"][:, 4], events["other_tid"][:, 4], events["other_comm"][:, 4] = PREEMPTED, task, b"task"
    events["tid"][:, 5], events["comm"][:, 5], events["other_tid"][:, 5] = task, b"task", task + TASKS
    events["other_comm"][:, 5] = b"other"
    events["tid"][:, 6], events["comm"][:, 6] = task + TASKS, b"other"
    events["other_tid"][:, 6], events["other_comm"][:, 6] = tid[:, 0], COMM
    events["detail"][:, 7], events["value"][:, 7] = records.INTERRUPT_RESCHEDULE, length // 40
    return events.reshape(-1)


def _describe(recording: Recording, t0: Any, batches: np.ndarray[Any, Any]) -> None:
    meta, n = recording.meta, len(batches)
    total = batches["t_decided_ns"] - t0
    think = batches["t_decided_ns"] - batches["t_popped_ns"]
    for name, values in (("think", think[100:]), ("total", total[100:])):
        recording.arrays[f"{name}_counts"] = _counts(values)
        described = {"count": len(values), "min_ns": int(values.min()), "max_ns": int(values.max())}
        meta["histograms"][name] |= {**described, "sum_ns": int(values.sum())}
    t_end = int(batches["t_decided_ns"][-1])
    meta["run"] |= {"n_planned": n, "n_released": n, "n_popped": n, "t_end_ns": t_end}
    meta["run"] |= {"n_window_messages": n - 100, "n_window_batches": n - 100}
    for thread in TIDS:
        meta["edges"][thread]["close"] |= {"t_before_ns": t_end + 300, "t_after_ns": t_end + 9_300}


def _counts(values: Any) -> np.ndarray[Any, Any]:
    found = LatencyHistogram(SUB_BITS)
    found.record_many(values)
    return np.asarray(found.counts)


def cost(recording: Recording, above_ns: int | None = None) -> tuple[float, int]:
    """CPU seconds of a diagnosis (the least of three) and the most memory it took, in bytes."""
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        diagnose(recording, above_ns)
        seconds.append(time.process_time() - begin)
    tracemalloc.start()
    try:
        diagnose(recording, above_ns)
        return min(seconds), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main(n_batches: int = 2_000_000, n_events: int = 1_000_000) -> None:
    """Print what a diagnosis costs: of the slowest 0.1 %, and of every sample."""
    recording = large_recording(n_batches, n_events)
    print(f"{n_batches:,} batches, {len(recording['kernel_events']):,} events")
    for words, above_ns in (("p99.9 and slower", None), ("all samples", 1)):
        tail = diagnose(recording, above_ns)["tail"]
        seconds, n_bytes = cost(recording, above_ns)
        print(f"  {words}: {tail['samples']:,} samples: {seconds:.2f} s of CPU, {n_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
