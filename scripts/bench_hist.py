#!/usr/bin/env python3
"""Speed of the histogram, as ratios to `record_value` of the package hdrhistogram.

Run it with the project's Python: ``.venv/bin/python scripts/bench_hist.py [--rounds N] [--json]``.
The values lie between 1 ns and 1 h, as many in each power of ten, and hdrhistogram has that range with 2 and with 3
significant digits. In each round all are timed one after the other, in turns forwards and backwards, and the ratios are
taken within the round, so that a host that changes its speed does not look like a difference between them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from capstone.compiled import compiled, record_value
from sysmeter.hist import LatencyHistogram

_LOWEST_NS, _HIGHEST_NS = 1, 3_600 * 10**9
_N_LOOPED = 50_000  # values for a loop in Python
_N_VALUES = 2_000_000  # values for the fast ways
_RESAMPLES = 10_000
_YARDSTICKS = {2: "hdrhistogram, 2 digits", 3: "hdrhistogram, 3 digits"}
TARGETS = {"record": 2.0, "record_many": 100.0, "compiled": 100.0}


def _record_all(counts: Any, stats: Any, values: Any, sub_bits: Any) -> None:
    for value in values:
        record_value(counts, stats, value, sub_bits)


def main() -> int:
    """Print ratio, interval and verdict for each way to record; exit 1 where a target is not reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of all (default 15, at least 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    if options.rounds < 5:
        parser.error("--rounds must be 5 or more, or there is no interval")
    costs = measure(options.rounds)
    rows = [row for digits in _YARDSTICKS for row in compare(costs, digits)]
    if options.json:
        medians = {name: float(np.median(values)) for name, values in costs.items()}
        print(json.dumps({"schema": "sysmeter.bench_hist/1", "rounds": options.rounds, "ns": medians, "ratios": rows}))
    else:
        print_results(costs, rows, options.rounds)
    return 0 if all(row["verdict"] == "reached" for row in rows) else 1


def measure(n_rounds: int) -> dict[str, list[float]]:
    """ns per value of each way to record, one figure a round."""
    generator = np.random.default_rng(1)
    values = np.exp(generator.uniform(math.log(_LOWEST_NS), math.log(_HIGHEST_NS), _N_VALUES)).astype(np.int64)
    looped = values[:_N_LOOPED].tolist()
    record_all = compiled(_record_all)
    ways: dict[str, Callable[[], float]] = {
        **{name: partial(time_hdr, looped, digits) for digits, name in _YARDSTICKS.items()},
        "record": partial(time_record, looped),
        "record_many": partial(time_record_many, values),
        "compiled": partial(time_compiled, record_all, values),
    }
    for way in ways.values():  # compile, and touch all memory once
        way()
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(n_rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            costs[name].append(ways[name]())
    return costs


def time_hdr(values: Sequence[int], digits: int) -> float:
    """ns per value of the yardstick."""
    histogram = HdrHistogram(_LOWEST_NS, _HIGHEST_NS, digits)
    cost = _time_loop(histogram.record_value, values)
    assert histogram.total_count == len(values)
    return cost


def time_record(values: Sequence[int]) -> float:
    """ns per value, from a loop in Python."""
    histogram = LatencyHistogram()
    cost = _time_loop(histogram.record, values)
    assert histogram.count == len(values)
    return cost


def _time_loop(record: Callable[[int], Any], values: Sequence[int]) -> float:
    began_ns = time.perf_counter_ns()
    for value in values:
        record(value)
    return (time.perf_counter_ns() - began_ns) / len(values)


def time_record_many(values: npt.NDArray[np.int64]) -> float:
    """ns per value of an array."""
    histogram = LatencyHistogram()
    began_ns = time.perf_counter_ns()
    histogram.record_many(values)
    cost = (time.perf_counter_ns() - began_ns) / len(values)
    assert histogram.count == len(values)
    return cost


def time_compiled(record_all: Callable[..., None], values: npt.NDArray[np.int64]) -> float:
    """ns per value of a compiled loop that records one after the other."""
    histogram = LatencyHistogram()
    began_ns = time.perf_counter_ns()
    record_all(histogram.counts, histogram.stats, values, histogram.sub_bits)
    cost = (time.perf_counter_ns() - began_ns) / len(values)
    assert histogram.count == len(values)
    return cost


def compare(costs: dict[str, list[float]], digits: int) -> list[dict[str, Any]]:
    """The median of the rounds' ratios for each target, with the 95 % bootstrap interval of that median.

    A target is reached where the whole interval lies at or above it, missed where it lies below, else not shown.
    """
    rows = []
    for name, target in TARGETS.items():
        ratios = np.array(costs[_YARDSTICKS[digits]]) / np.array(costs[name])
        generator = np.random.default_rng(1)
        medians = np.median(generator.choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
        low, high = np.quantile(medians, (0.025, 0.975))
        verdict = "reached" if low >= target else "missed" if high < target else "not shown"
        rows.append(
            {
                "way": name,
                "digits": digits,
                "ratio": float(np.median(ratios)),
                "low": float(low),
                "high": float(high),
                "target": target,
                "verdict": verdict,
            }
        )
    return rows


def print_results(costs: dict[str, list[float]], rows: Sequence[dict[str, Any]], n_rounds: int) -> None:
    """The figures as text."""
    for name, values in costs.items():
        print(f"{name:<24}{np.median(values):8.1f} ns a value (median of {n_rounds} rounds)")
    print()
    for row in rows:
        print(
            f"{row['way']:<12} {row['ratio']:7.1f} times as fast as {_YARDSTICKS[row['digits']]}"
            f" ({row['low']:.1f} to {row['high']:.1f}); target {row['target']:.0f}: {row['verdict']}"
        )


if __name__ == "__main__":
    sys.exit(main())
