"""The Recordings whose reports are stored word for word, and the tool that stores them again.

    python -m tests.golden.build

writes the texts and JSON objects beside this file; read the difference before committing it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sysmeter.analysis.summary import summarize
from sysmeter.recording import Recording
from sysmeter.report.json import dump
from sysmeter.report.live import render_live
from sysmeter.report.text import render_run
from tests.support.liveruns import ASLEEP, LOCK_ADDRESS, OTHER, WORKER, LiveRun, Stop, build_live
from tests.support.runs import COMM, T_START, TIDS, Away, Run, build, event

HERE = Path(__file__).parent
MS = 1_000_000
WINDOW = T_START + 5 * MS


def everything() -> Recording:
    """All kinds of slices, each way a chain breaks, a theft, faults, system calls, collections."""
    away = [
        Away(
            "strategy",
            WINDOW + 3 * MS,
            3_004_000,
            [
                (123, b"kworker/1:1", 2_400_000),
                (18, b"migration/1", 202_000),
                (77, b"a-very-long-nam", 400_000),
            ],
            lose_switch_between=1,
        ),
        Away("feed", WINDOW + 9 * MS, 3_002_000, [(55, b"systemd-journal", 3_000_000)], lose_switch_in=True),
        Away("strategy", WINDOW + 15 * MS, 3_000_000, None),
        Away(
            "strategy",
            WINDOW + 21 * MS,
            502_000,
            [(0, b"swapper/1", 300_000), (99, b"bash", 200_000)],
            prev_state=1,
            woken_after_ns=280_000,
            faults=[(600, 0x7F0012345000, 0)],
        ),
        Away("strategy", WINDOW + 26 * MS, 1_002_000, [(0, b"swapper/1", 1_000_000)]),
        Away(
            "feed",
            WINDOW + 31 * MS,
            802_000,
            [(0, b"swapper/0", 800_000)],
            prev_state=4,
            woken_after_ns=790_000,
        ),
    ]
    calls = [
        event(t_ns=WINDOW + 40 * MS + k, kind=4, cpu=1, tid=TIDS["strategy"], comm=COMM, value=number)
        for k, number in enumerate((202, 202, 35))
    ]
    collections = [(WINDOW + 15 * MS, WINDOW + 15 * MS + 400_000, 0)]
    recording = build(Run(n_messages=6_000, away=away, extra_events=calls, collections=collections))
    recording.meta["notes"] = ["The CPUs of both threads are not isolated."]
    recording.meta["syscall_names"] = {"202": "futex"}
    recording.path = Path("/var/lib/sysmeter/run-1")
    return recording


def unproven() -> Recording:
    """Losses, sources that differ, a missing probe, no allocation counter, a slow clock; stopped early."""
    away = [Away("strategy", WINDOW + 3 * MS, 2_002_000, [(123, b"kworker/1:1", 2_000_000)])]
    recording = build(Run(away=away, lost=3, missed=1, n_messages=1_600))
    recording.meta["edges"]["strategy"]["close"]["involuntary_switches"] += 2
    recording.meta["probes"]["syscalls"] = {
        "status": "unavailable",
        "reason": "the self-test made one system call and the probe saw none: raw_syscalls is compiled out "
        "of this kernel (CONFIG_FTRACE_SYSCALLS)",
    }
    recording.meta["edges"]["strategy"]["close"]["syscalls"] = None
    recording.meta["process"].update(allocations=None, allocations_reason="NUMBA_NRT_STATS was not set")
    recording.meta["clock"].update(source="acpi_pm", fast=False)
    recording.meta["interrupted"] = True
    recording.meta["run"].update(stopped_by="stop_above", gaps_lost={"feed": 0, "strategy": 12})
    recording.meta["run"]["gap_floor_ns"]["strategy"] = 60_000
    recording.meta["settings"]["stop_above_ns"] = 2 * MS
    return recording


def without_probes() -> Recording:
    """``--no-probes``: the witnesses alone."""
    away = [
        Away("strategy", WINDOW + 3 * MS, 2_002_000, [(123, b"kworker/1:1", 2_000_000)]),
        Away(
            "feed",
            WINDOW + 8 * MS,
            902_000,
            [(0, b"swapper/0", 900_000)],
            prev_state=1,
            woken_after_ns=800_000,
        ),
    ]
    return build(Run(away=away, probes=False))


def nothing() -> Recording:
    """Interrupted in the warm-up: no zero may appear where nothing was counted."""
    recording = build(Run(n_messages=600))
    run = recording.meta["run"]
    run.update(t_window_ns=None, t_end_ns=None, n_window_messages=0, n_window_batches=0, elapsed_ns=0)
    recording.meta["edges"] = {thread: {"open": None, "close": None} for thread in ("feed", "strategy")}
    for name in ("think", "total"):
        recording.arrays[f"{name}_counts"] = np.zeros_like(recording[f"{name}_counts"])
        recording.meta["histograms"][name].update(count=0, min_ns=0, max_ns=0, sum_ns=0)
    recording.meta["interrupted"] = True
    return recording


def live() -> Recording:
    """A live run: collections of its own and of another thread, the lock waited for, a preemption, a theft, faults."""
    at = T_START + 100 * MS
    stops = [
        Stop(at, 10 * MS, (77, b"bash"), entry_ns=3 * MS, exit_ns=2 * MS),
        Stop(
            at + 30 * MS,
            6 * MS,
            (OTHER, b"sysmeter-oth1"),
            ASLEEP,
            LOCK_ADDRESS + 640,
            woken_before_end_ns=2_000,
        ),
        Stop(at + 60 * MS, 2 * MS),
        Stop(at + 80 * MS, 40_000),
    ]
    collections = [
        (at + 1_000, at + 10 * MS - 1_000, 2, WORKER),
        (at + 31 * MS, at + 34 * MS, 1, OTHER),
        (at + 80 * MS + 1_000, at + 80 * MS + 31_000, 0, WORKER),
    ]
    faults = [
        event(t_ns=at + 2_000 + k, kind=3, cpu=1, tid=WORKER, comm=b"sysmeter-worker", value=0x7F0012345000 + k)
        for k in range(3)
    ]
    recording = build_live(LiveRun(stops=stops, collections=collections))
    events = recording["kernel_events"]
    recording.arrays["kernel_events"] = np.sort(np.concatenate((events, np.array(faults, events.dtype))), order="t_ns")
    recording.meta["edges"]["worker"]["close"]["minor_faults"] += len(faults)
    recording.meta["syscall_names"] = {"202": "futex"}
    recording.path = Path("/var/lib/sysmeter/live-1")
    return recording


def live_flat() -> Recording:
    """Flat, without probes, on a slow clock, interrupted: no response time, and nothing that nobody saw."""
    run = LiveRun(mode="flat", gc="off", probes=False, stops=[Stop(T_START + 15 * MS, 3 * MS)])
    recording = build_live(run)
    recording.meta["clock"].update(source="hpet", fast=False)
    recording.meta["interrupted"] = True
    recording.meta["run"]["stopped_by"] = "interrupt"
    return recording


def live_nothing() -> Recording:
    """Interrupted in the warm-up."""
    recording = build_live(LiveRun(n_messages=501))
    run = recording.meta["run"]
    run.update(t_window_ns=None, t_end_ns=None, n_done=300, n_window_messages=0, n_window_batches=0, elapsed_ns=0)
    recording.meta["edges"] = {"worker": {"open": None, "close": None}}
    recording.meta["process"].update(gc_collections_before=None, gc_collections_after=None)
    for name in ("service", "response"):
        recording.arrays[f"{name}_counts"] = np.zeros_like(recording[f"{name}_counts"])
        recording.meta["histograms"][name].update(count=0, min_ns=0, max_ns=0, sum_ns=0)
    recording.meta["interrupted"] = True
    return recording


def render(result: dict[str, Any], width: int = 80) -> str:
    return render_live(result, width) if result.get("workload") == "live" else render_run(result, width)


GOLDEN: dict[str, Callable[[], Recording]] = {
    "everything": everything,
    "unproven": unproven,
    "without_probes": without_probes,
    "nothing": nothing,
    "live": live,
    "live_flat": live_flat,
    "live_nothing": live_nothing,
}


def main() -> None:
    for name, make in GOLDEN.items():
        result = summarize(make())
        (HERE / f"{name}.txt").write_text(render(result) + "\n")
        (HERE / f"{name}.json").write_text(dump(result) + "\n")


if __name__ == "__main__":
    main()
