#!/usr/bin/env python3
"""Speed of the capstone: flat against the same loop in C++, paced response times, start-up times.

Run it with the project's Python: ``.venv/bin/python scripts/bench_capstone.py [--pairs N] [--json]``.
Needs g++ for the comparison. Two programs are compared by the ratio of interleaved pairs, so that a host
that changes its speed between runs does not look like a difference between them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sysmeter import clock, host
from sysmeter.cli.listener import ConsoleListener
from sysmeter.cli.provisions import cache_directory, default_feed
from sysmeter.hist import LatencyHistogram
from sysmeter.session import RunSettings
from sysmeter.workload import Workload, own_python

_SOURCE = Path(__file__).with_suffix(".cpp")
_RESAMPLES = 10_000
_WARMUP_SECONDS = 1.0


def main() -> int:
    """Print the figures; exit 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs of flat runs (default 15)")
    parser.add_argument("--cpus", help="A,B as for sysmeter run")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    cpus = host.choose_cpus(options.cpus)
    feed = default_feed(ConsoleListener())
    results: dict[str, Any] = {
        "flat": compare_flat(feed, cpus, options.pairs),
        "paced": measure_paced(feed, cpus),
        "help_cpu_seconds": help_cpu_seconds(),
        "start_to_window_seconds": start_to_window_seconds(cpus),
    }
    goals = {
        "flat: interval of the ratio to C++ reaches 1.0": results["flat"]["ratio_high"] >= 1.0,
        "paced: p50 of total under 1 us": results["paced"]["p50_ns"] < 1_000,
        "paced: every message released": results["paced"]["released"] == results["paced"]["planned"],
        "--help under 0.15 s of CPU time": results["help_cpu_seconds"] < 0.15,
        "start to first measured message under 2.5 s plus the warm-up": results["start_to_window_seconds"] < 2.5,
    }
    if options.json:
        print(json.dumps({"schema": "sysmeter.bench_capstone/1", **results, "goals": goals}))
    else:
        print_results(results, goals)
    return 0 if all(goals.values()) else 1


def run_workload(feed: Path, cpus: tuple[int, int], mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run of the capstone without probes: its "done" event and its arrays."""
    settings = {**RunSettings(str(feed), str(cache_directory()), cpus, mode).__dict__, "housekeeping_cpus": []}
    with Workload(own_python("capstone"), lambda text: print(f"note: {text}", file=sys.stderr)) as workload:
        workload.send("prepare", settings=settings)
        workload.receive("ready")
        workload.send("go")
        done = workload.receive("done")
        assert done is not None
        return done, workload.read_arrays(done["arrays"])


def compare_flat(feed: Path, cpus: tuple[int, int], n_pairs: int) -> dict[str, Any]:
    """Throughput of both in interleaved pairs, and the ratio capstone / C++ with its 95 % interval.

    C++ is compiled for this very CPU, as numba compiles. Both must end with the same decision and have timed
    the same number of messages.

    The interval is the bootstrap percentile interval of the geometric mean of the pairs' ratios.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise SystemExit("bench_capstone: g++ is not installed; the comparison needs it")
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "bench_capstone"
        flags = ["-O3", "-march=native", "-std=c++17", "-pthread"]
        subprocess.run([compiler, *flags, str(_SOURCE), "-o", str(program)], check=True)
        command = [str(program), str(feed), *map(str, cpus), str(round(100_000 * _WARMUP_SECONDS))]
        run_workload(feed, cpus, "flat")  # compiles, where the cache is cold
        for number in range(n_pairs):
            order = ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours")
            for who in order:
                if who == "ours":
                    done, arrays = run_workload(feed, cpus, "flat")
                    run = done["run"]
                    ours.append(run["n_window_messages"] / run["elapsed_ns"] * 1e9)
                    last = [*arrays["decisions"][-1].tolist(), done["histograms"]["total"]["count"]]
                else:
                    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                    n_messages, elapsed_ns, *theirs_last = map(int, printed)
                    theirs.append(n_messages / elapsed_ns * 1e9)
            if last != theirs_last:
                raise SystemExit(f"bench_capstone: not the same work: {last} against {theirs_last} in C++")
    logs = np.log(np.array(ours) / np.array(theirs))
    resampled = np.random.default_rng(1).choice(logs, (_RESAMPLES, n_pairs)).mean(axis=1)
    low, high = np.exp(np.percentile(resampled, (2.5, 97.5)))
    return {
        "pairs": n_pairs,
        "capstone_per_second": float(np.median(ours)),
        "cpp_per_second": float(np.median(theirs)),
        "ratio": math.exp(logs.mean()),
        "ratio_low": float(low),
        "ratio_high": float(high),
    }


def measure_paced(feed: Path, cpus: tuple[int, int]) -> dict[str, Any]:
    """One paced run at 100,000/s: percentiles of total, and the achieved rate against the target."""
    done, arrays = run_workload(feed, cpus, "paced")
    facts, run = done["histograms"]["total"], done["run"]
    total = LatencyHistogram.from_parts(
        arrays["total_counts"], facts["sub_bits"], facts["count"], facts["min_ns"], facts["max_ns"], facts["sum_ns"]
    )
    return {
        "released": run["n_released"],
        "planned": run["n_planned"],
        "achieved_hz": run["n_window_messages"] / run["elapsed_ns"] * 1e9,
        "target_hz": 100_000,
        "p50_ns": total.reportable_percentile(50),
        "p99_ns": total.reportable_percentile(99),
        "p99_9_ns": total.reportable_percentile(99.9),
        "max_ns": total.max,
    }


def help_cpu_seconds() -> float:
    """CPU time of ``sysmeter --help``, the median of seven."""
    costs = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*own_python("sysmeter"), "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return sorted(costs)[len(costs) // 2]


def start_to_window_seconds(cpus: tuple[int, int]) -> float:
    """From starting ``sysmeter run`` to its first measured message, less the warm-up; the median of three."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(3):
            out = Path(directory) / str(number)
            command = [*own_python("sysmeter"), "run", "--seconds", "2", "--out", str(out)]
            command += ["--cpus", f"{cpus[0]},{cpus[1]}"]
            if os.geteuid() != 0:
                command.append("--no-probes")
            t_start_ns = clock.now_ns()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            t_window_ns = json.loads((out / "meta.json").read_text())["run"]["t_window_ns"]
            found.append((t_window_ns - t_start_ns) / 1e9 - _WARMUP_SECONDS)
    return sorted(found)[1]


def print_results(results: dict[str, Any], goals: dict[str, bool]) -> None:
    """The figures and goals as text."""
    flat, paced = results["flat"], results["paced"]
    print(f"flat, {flat['pairs']} interleaved pairs (medians; ratio with 95 % interval)")
    print(f"  capstone  {flat['capstone_per_second'] / 1e6:6.1f} million messages/s")
    print(f"  C++ -O3   {flat['cpp_per_second'] / 1e6:6.1f} million messages/s")
    print(f"  ratio     {flat['ratio']:6.3f}  [{flat['ratio_low']:.3f}, {flat['ratio_high']:.3f}]")
    share = 100 * paced["achieved_hz"] / paced["target_hz"]
    print(f"paced at {paced['target_hz']:,}/s")
    print(f"  achieved  {paced['achieved_hz']:,.1f}/s, {share:.3f} % of target")
    print(f"  released  {paced['released']:,} of {paced['planned']:,}")
    print(f"  total     p50 {paced['p50_ns']} ns, p99 {paced['p99_ns']:,} ns, p99.9 {paced['p99_9_ns']:,} ns")
    print(f"--help: {results['help_cpu_seconds']:.3f} s of CPU time")
    print(f"start to first measured message, less the warm-up: {results['start_to_window_seconds']:.2f} s")
    for goal, is_met in goals.items():
        print(f"{'met   ' if is_met else 'MISSED'}  {goal}")


if __name__ == "__main__":
    sys.exit(main())
