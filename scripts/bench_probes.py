#!/usr/bin/env python3
"""What the default probes cost the capstone: runs with them against runs without, in interleaved rounds.

Run it as root with the project's Python, on a quiet machine: ``.venv/bin/python scripts/bench_probes.py [--rounds N]``.

- *think* in paced runs: by how much the mean of its undisturbed middle half moves (see sysmeter/analysis/intervals.py),
  with Student's interval over the rounds' differences. Goal: at most 1 %.
- Throughput of flat runs: the ratio with / without, with the interval over the rounds. Goal: at least 0.97.
- The time that the programs themselves ran, as the kernel counts it, in runs of their own, because the counting costs
  too. The kernel sums over all CPUs: where others than the measured ones are online, the share is an upper bound.

A goal is met or not met where the whole interval says so, else the verdict is "inconclusive": more rounds or a quieter
machine may tell. Exit code 1: a goal is not met.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sysmeter import host, session
from sysmeter.analysis.intervals import Move, interquartile_mean_ns, paired_move
from sysmeter.analysis.tail import histogram
from sysmeter.cli.listener import ConsoleListener
from sysmeter.cli.provisions import cache_directory, default_feed
from sysmeter.errors import EXIT_INTERRUPTED, SysmeterError
from sysmeter.kernel.progstats import timed_runs
from sysmeter.recording import Recording
from sysmeter.report.layout import columns, wrap
from sysmeter.session import RunSettings

MAX_THINK_SHIFT = 0.01
MIN_FLAT_RATIO = 0.97

_FLAT_SECONDS = 100.0  # at the paced rate: ten million messages, half a second of flat work


class _Listener(session.RunListener):
    """Silent but for notes: two dozen runs would say the same over and over."""

    def note(self, text: str) -> None:
        print(f"note: {text}", file=sys.stderr)


def main() -> int:
    """Print the figures; exit 1 where a goal is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help="rounds of a run with and one without (default 16)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each paced run (default 3)")
    parser.add_argument("--timed-runs", type=int, default=3, help="paced runs with programs timed (default 3)")
    parser.add_argument("--cpus", help="A,B as for sysmeter run")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    try:
        return bench(options)
    except SysmeterError as error:
        print(f"bench_probes: {error.message}\n{error.hint}".rstrip(), file=sys.stderr)
        return error.exit_code


def bench(options: argparse.Namespace) -> int:
    """Carry out all runs and print what they show; what there is of it after an interrupt."""
    cpus = host.choose_cpus(options.cpus)
    common: dict[str, Any] = {"feed": str(default_feed(ConsoleListener())), "cache_dir": str(cache_directory())}
    paced = RunSettings(**common, cpus=cpus, seconds=options.seconds, warmup_seconds=0.5)
    flat = RunSettings(**common, cpus=cpus, mode="flat", loop=True, seconds=_FLAT_SECONDS)
    think: list[tuple[float, list[float]]] = []
    throughput: list[tuple[float, list[float]]] = []
    timed: list[dict[str, Any]] = []
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="sysmeter-bench-") as directory:
        runs = _Runs(Path(directory))
        try:
            for number in range(options.rounds):
                think.append(round_of(runs, paced, number, think_figure))
                throughput.append(round_of(runs, flat, number, log_throughput))
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            with timed_runs():
                found = [program_times(runs.run(paced)) for _ in range(options.timed_runs)]
            timed += [run for run in found if run["programs"]]
        except session.Interrupted:
            interrupted = True
        except OSError as error:
            raise SysmeterError(f"the kernel does not time BPF programs: {error.strerror}", "Linux 5.8 does") from error
    result = describe(think, throughput, timed, cpus)
    result["interrupted"] = interrupted
    if options.json:
        print(json.dumps(result))
    else:
        print("\n".join(lines_of(result)))
    if interrupted:
        return EXIT_INTERRUPTED
    return 1 if "not met" in (result["think"]["verdict"], result["flat"]["verdict"]) else 0


class _Runs:
    """Runs whose Recordings are not kept on the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, settings: RunSettings) -> Recording:
        """One run. Raises Interrupted where it was ended early, SysmeterError where a probe was not at work."""
        with tempfile.TemporaryDirectory(dir=self._directory) as place:
            recording = session.run(settings, Path(place) / "recording", _Listener())
        if recording.meta["interrupted"] or recording.was_signalled:
            raise session.Interrupted("interrupted")
        for name, status in recording.meta["probes"].items() if settings.probes else ():
            if status["status"] != "ok":
                raise SysmeterError(f"the probe {name} is {status['status']}: {status['reason']}")
        return recording


def round_of(runs: _Runs, settings: RunSettings, number: int, figure: Any) -> tuple[float, list[float]]:
    """The figure with probes and the one without, in an order that alternates from round to round."""
    found: dict[bool, float] = {}
    for probes in (True, False) if number % 2 == 0 else (False, True):
        found[probes] = figure(runs.run(_with_probes(settings, probes)))
    return found[True], [found[False]]


def _with_probes(settings: RunSettings, probes: bool) -> RunSettings:
    from dataclasses import replace

    return replace(settings, probes=probes)


def think_figure(recording: Recording) -> float:
    """The mean of think's undisturbed middle half, ns."""
    found = interquartile_mean_ns(histogram(recording, "think"), recording.meta["settings"]["gap_threshold_ns"])
    if found is None:
        raise SysmeterError("a run decided on no message", "make the runs longer with --seconds")
    return found


def log_throughput(recording: Recording) -> float:
    """The logarithm of messages per second, so that a difference is a ratio."""
    run = recording.meta["run"]
    return math.log(run["n_window_messages"] / run["elapsed_ns"] * 1e9)


def program_times(recording: Recording) -> dict[str, Any]:
    """What the kernel timed in one run."""
    found = recording.meta["observation"]
    return {"programs": found["programs"] or {}, "watched_ns": found["watched_ns"], "costs": found["costs"]}


def describe(
    think: list[tuple[float, list[float]]],
    throughput: list[tuple[float, list[float]]],
    timed: list[dict[str, Any]],
    cpus: tuple[int, int],
) -> dict[str, Any]:
    """The result, schema ``sysmeter.bench_probes/1``: figures with 95 % intervals and verdicts; null without rounds."""
    moved, ratio = paired_move(think), paired_move(throughput)
    shift: dict[str, Any] = {"shift_frac": None, "interval_frac": None, "without_ns": None}
    if moved is not None:
        shift = {
            "shift_frac": moved.by_ns / moved.base_ns,
            "interval_frac": [end / moved.base_ns for end in moved.interval_ns] if moved.interval_ns else None,
            "without_ns": moved.base_ns,
        }
    rates: dict[str, Any] = {"ratio": None, "interval": None, "without_per_second": None}
    if ratio is not None:
        rates = {
            "ratio": math.exp(ratio.by_ns),
            "interval": [math.exp(end) for end in ratio.interval_ns] if ratio.interval_ns else None,
            "without_per_second": math.exp(ratio.base_ns),
        }
    others = sorted(set(host.online_cpus()) - set(cpus))
    return {
        "schema": "sysmeter.bench_probes/1",
        "rounds": min(len(think), len(throughput)),
        "think": {**shift, "goal_frac": MAX_THINK_SHIFT, "verdict": think_verdict(moved)},
        "flat": {**rates, "goal": MIN_FLAT_RATIO, "verdict": flat_verdict(ratio)},
        "programs": program_rows(timed, len(cpus)),
        "cpus": list(cpus),
        "other_cpus": others,
    }


def think_verdict(moved: Move | None) -> str:
    """By the whole interval of the shift."""
    if moved is None or moved.low_ns is None or moved.high_ns is None:
        return "inconclusive"
    limit_ns = MAX_THINK_SHIFT * moved.base_ns
    return "met" if moved.high_ns <= limit_ns else "not met" if moved.low_ns > limit_ns else "inconclusive"


def flat_verdict(ratio: Move | None) -> str:
    """By the whole interval of the ratio, given as its logarithm."""
    if ratio is None or ratio.low_ns is None or ratio.high_ns is None:
        return "inconclusive"
    limit = math.log(MIN_FLAT_RATIO)
    return "met" if ratio.low_ns >= limit else "not met" if ratio.high_ns < limit else "inconclusive"


def program_rows(timed: list[dict[str, Any]], n_cpus: int) -> list[dict[str, Any]]:
    """One row a program that ran, one for each probe and one for all: runs a second, mean, share of the CPUs' time."""
    watched_ns = sum(run["watched_ns"] for run in timed)
    sums: dict[tuple[str, str | None], list[int]] = {}
    for run in timed:
        for hook, program in run["programs"].items():
            for key in (("all", None), (program["probe"], None), (program["probe"], hook)):
                found = sums.setdefault(key, [0, 0])
                found[0] += program["n"]
                found[1] += program["time_ns"]
    return [
        {
            "probe": probe,
            "tracepoint": hook,
            "runs_per_second": n / watched_ns * 1e9,
            "mean_ns": time_ns / n,
            "share_frac": time_ns / (watched_ns * n_cpus),
        }
        for (probe, hook), (n, time_ns) in sums.items()
        if n
    ]


def lines_of(result: dict[str, Any]) -> Iterator[str]:
    """The result as text of 80 columns."""
    think, flat = result["think"], result["flat"]
    yield f"default probes against none, {result['rounds']} interleaved rounds (95 % intervals)"
    if think["shift_frac"] is not None:
        yield f"  think  without probes {think['without_ns']:,.1f} ns; with them {_percent([think['shift_frac']])}" + (
            f"  [{_percent(think['interval_frac'])}]" if think["interval_frac"] else ""
        )
    if flat["ratio"] is not None:
        yield f"  flat   without probes {flat['without_per_second'] / 1e6:,.1f} million messages/s; ratio" + (
            f" {flat['ratio']:.3f}  [{flat['interval'][0]:.3f}, {flat['interval'][1]:.3f}]"
            if flat["interval"]
            else f" {flat['ratio']:.3f}"
        )
    yield f"{think['verdict']:<13} think moves by at most {100 * MAX_THINK_SHIFT:.0f} %"
    yield f"{flat['verdict']:<13} flat throughput is at least {MIN_FLAT_RATIO} of that without probes"
    yield ""
    if not result["programs"]:
        yield "programs: not timed"
        return
    widths = (-44, 9, 10, 12)
    yield columns(["programs, as the kernel times them", "runs/s", "mean", "share"], widths)
    for row in sorted(result["programs"], key=_order(result["programs"])):
        name = f"    {row['tracepoint']}" if row["tracepoint"] else f"  {row['probe']}"
        figures = [f"{row['runs_per_second']:,.1f}", f"{row['mean_ns']:,.0f} ns", f"{100 * row['share_frac']:.4f} %"]
        yield columns([name, *figures], widths)
    words = f"share: of the time of CPUs {host.format_cpu_list(result['cpus'])}"
    if result["other_cpus"]:
        words += f"; an upper bound, as runs on CPUs {host.format_cpu_list(result['other_cpus'])} are in it"
    yield from wrap(words, 80)


def _order(rows: Iterable[dict[str, Any]]) -> Any:
    whole = {row["probe"]: row["share_frac"] for row in rows if row["tracepoint"] is None}
    return lambda row: (
        -whole[row["probe"]] if row["probe"] != "all" else 1.0,
        row["probe"],
        row["tracepoint"] is not None,
        -row["share_frac"],
    )


def _percent(shares: list[float]) -> str:
    return ", ".join(f"{100 * share:+.2f} %" for share in shares)


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("bench_probes: the probes need root; run it with sudo")
    sys.exit(main())
