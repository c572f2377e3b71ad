"""Runs of a comparison made to order, as :mod:`sysmeter.analysis.swaps` judges them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sysmeter.analysis.counters import counter
from sysmeter.analysis.swapruns import DEFAULT, THREAD_ZEROS, SwapRun
from sysmeter.verification import schedule

FLOW = {"messages": 250_000, "sequence_gaps": 0, "duplicates": 0, "live": True}
EQUAL = {"common": 1_000, "equal": 1_000, "first_difference": None}
# No two runs are alike; which noise a run gets depends on its place alone.
NOISE_NS = (0.0, 2.0, -1.0, 1.0, 3.0, -2.0, 0.5, -0.5, 1.5)


def agreed(value: int) -> dict[str, Any]:
    """A counter on which two sources agree."""
    return counter(value, "measured", "BPF", ("getrusage", value), True, None)


def zeros() -> dict[str, dict[str, Any]]:
    threads = {
        thread: {name: agreed(0) for name in (*THREAD_ZEROS, "involuntary_switches")} for thread in ("feed", "strategy")
    }
    return {**threads, "process": {"allocations": agreed(0), "gc_collections": agreed(0)}}


def one_run(name: str, is_audit: bool = False, **changes: Any) -> SwapRun:
    run = SwapRun(
        combination=name,
        is_audit=is_audit,
        counters=zeros(),
        flow=dict(FLOW),
        probes={"allocations": {"status": "ok", "reason": None}},
        levels_ns={"think": 170.0, "total": 300.0, "one in 31": 0.0, "stall": 400.0, "stall think": 170.0},
        latency={"total": {"p99_9_ns": 40_000}},
        decisions=dict(EQUAL),
    )
    return replace(run, **changes)


def comparison(
    swap: str, moved: dict[str, float], rounds: int = 4, noise: float = 1.0, **changes: Any
) -> list[SwapRun]:
    """Runs of the default and of one swap whose levels lie ``moved`` above it; ``changes`` are of the swap's runs."""
    runs = []
    for at, name in enumerate([*schedule([swap], rounds)]):
        wobble = noise * NOISE_NS[at % len(NOISE_NS)]
        run = one_run(name) if name == DEFAULT else one_run(name, n_stalls=2, **changes)
        shift = moved if name == swap else {}
        levels = {
            key: level + wobble + shift.get(key, 0.0) for key, level in run.levels_ns.items() if level is not None
        }
        runs.append(replace(run, levels_ns=levels))
    return [*runs, one_run(DEFAULT, is_audit=True), one_run(swap, is_audit=True, **changes)]


def with_counter(runs: list[SwapRun], name: str, who: str, key: str, found: dict[str, Any]) -> list[SwapRun]:
    """The runs with one counter replaced in those of a combination."""
    return [
        replace(run, counters={**run.counters, who: {**run.counters[who], key: found}})
        if run.combination == name
        else run
        for run in runs
    ]
