"""The verdicts and the table of scripts/bench_probes.py, on figures made by hand."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_probes.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_probes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pairs(shifts: list[float], base: float = 200.0) -> list[tuple[float, list[float]]]:
    return [(base + shift, [base]) for shift in shifts]


@pytest.mark.parametrize(
    ("shifts", "verdict"),
    [
        ([0.1, 0.2, 0.15, 0.1], "met"),
        ([-9.0, -9.1, -9.2], "met"),
        ([9.0, 9.1, 9.2], "not met"),
        ([1.0, 3.0, 2.0], "inconclusive"),
        ([0.1], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_the_verdict_on_think_is_by_the_whole_interval(bench, shifts, verdict) -> None:
    found = bench.describe(pairs(shifts), [], [], (0, 1))["think"]
    assert found["verdict"] == verdict
    if shifts:
        assert found["shift_frac"] == pytest.approx(sum(shifts) / len(shifts) / 200)
        assert found["without_ns"] == 200


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.99, 0.991, 0.992], "met"),
        ([0.90, 0.91, 0.90], "not met"),
        ([0.90, 1.05, 0.97], "inconclusive"),
        ([0.99], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_the_verdict_on_throughput_is_by_the_whole_interval(bench, ratios, verdict) -> None:
    logs = [(math.log(2e7 * ratio), [math.log(2e7)]) for ratio in ratios]
    found = bench.describe([], logs, [], (0, 1))["flat"]
    assert found["verdict"] == verdict
    if ratios:
        assert found["ratio"] == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
        assert found["without_per_second"] == pytest.approx(2e7)


def test_the_table_of_programs(bench) -> None:
    programs = {
        "irq:softirq_entry": {"probe": "softirqs", "n": 100, "time_ns": 10_000},
        "irq:softirq_exit": {"probe": "softirqs", "n": 100, "time_ns": 30_000},
        "sched:sched_migrate_task": {"probe": "migrations", "n": 0, "time_ns": 0},
    }
    runs = [{"programs": programs, "watched_ns": 1_000_000_000}] * 2
    rows = {(row["probe"], row["tracepoint"]): row for row in bench.program_rows(runs, 2)}
    of_probe = {("softirqs", None), ("softirqs", "irq:softirq_entry"), ("softirqs", "irq:softirq_exit")}
    assert set(rows) == {("all", None), *of_probe}
    assert rows["softirqs", None]["runs_per_second"] == 200
    assert rows["softirqs", None]["mean_ns"] == 200
    assert rows["softirqs", "irq:softirq_exit"]["share_frac"] == pytest.approx(30_000 / 2e9)
    assert rows["all", None]["share_frac"] == pytest.approx(40_000 / 2e9)
    result = bench.describe(pairs([0.1, 0.2]), [], runs, (0, 1))
    text = list(bench.lines_of(result))
    assert all(len(line) <= 80 for line in text)
    assert any(line.split()[0] == "irq:softirq_exit" for line in text if line.strip())
    assert list(bench.lines_of(bench.describe([], [], [], (0, 1))))[-1] == "programs: not timed"
