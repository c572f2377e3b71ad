"""The text of a self-test's result: what stands in it, and that it fits."""

from __future__ import annotations

from typing import Any

import pytest

from sysmeter.analysis import selftest
from sysmeter.report.layout import cells
from sysmeter.report.selftest import plan_line, render_selftest, run_line
from sysmeter.selftest import plan

CAUSES = list(plan.CAPSTONE_CAUSES)


def result(**changes: Any) -> dict[str, Any]:
    trials = [
        {"number": n, "cause": cause, "named": cause, "found": True, "reason": None}
        for cause in CAUSES
        for n in range(300)
    ]
    trials += [{"number": n, "cause": "control", "named": "nothing", "found": True, "reason": None} for n in range(300)]
    for n, trial in enumerate(trials[:25]):
        trial |= {"named": "nothing", "found": False, "reason": f"not named; the most was own service of {n}\x1b[2J"}
    return {
        "schema": "sysmeter.selftest/1",
        "settings": {"trials": 300, "seed": 5, "cpus": [0, 1], "injections_rate_hz": 50_000},
        "host": {"hostname": "vm", "kernel": "6.18", "virtualization": "kvm"},
        "goal": {"recall_frac": 0.99, "false_frac": 0.01, "explained_frac": 0.99, "is_full": True},
        **selftest.score(CAUSES[:-1], trials),
        "skipped": [{"cause": "quota", "reason": "the cpu controller of cgroup v1 is not mounted"}],
        "not_carried_out": [{"number": 3, "cause": "interrupt", "reason": "another process had the CPU"}] * 2,
        "ordinary_run": {"threshold_ns": 226_000, "threshold_source": "p99.9", "samples": 901},
        "witnessed_frac": 0.9,
        "inferred_frac": 0.0999,
        "unexplained_frac": 0.0001,
        "recordings": [],
        "verdict": "goal missed",
        "reasons": ["preemption: 25 of 300 not found"],
        "interrupted": False,
        "notes": [],
        **changes,
    }


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_too_wide_and_none_moves_the_cursor(width):
    text = render_selftest(result(), width)
    assert max(map(cells, text.splitlines())) <= width
    assert "\x1b" not in text


def test_it_says_what_was_found_missed_skipped_and_left_out():
    text = render_selftest(result())
    rows = [line.split() for line in text.splitlines()]
    assert ["preemption", "300", "275", "91.7", "%", "88.0", "%..94.3", "%"] in rows
    assert ["sleep", "300", "300", "100", "%", "98.7", "%..100", "%"] in rows
    assert ["preemption", "275", *"........", "25"] in rows  # the confusion matrix
    assert "quota was skipped: the cpu controller of cgroup v1 is not mounted" in text
    assert "0 false causes in 300 controls (0 %, at most 1.3 %)" in text
    assert "not named; the most was own service of 0\\x1b[2J" in text
    assert "preemption: 20 more, see --json" in text
    assert "interrupt: another process had the CPU, 2 times" in text
    assert "witnessed 90.0 %, inferred 10.0 %, unexplained 0.01 %" in " ".join(text.split())
    assert "Verdict: goal missed" in text
    assert "preemption: 25 of 300 not found" in text


def test_all_is_never_the_result_of_rounding():
    text = render_selftest(result(witnessed_frac=0.999999, inferred_frac=0.000001, unexplained_frac=0.0))
    assert "witnessed 99.99 %, inferred 0.01 %, unexplained 0 %" in " ".join(text.split())


def test_what_was_not_done_is_said():
    assert "ordinary run  not carried out" in render_selftest(result(ordinary_run=None))
    text = render_selftest(result(interrupted=True))
    assert "interrupted: the trials so far" in " ".join(text.split())


def test_lines_said_meanwhile():
    assert plan_line(["sleep"], 1, 9, 18.4) == "1 trial each of 1 cause and as many controls, seed 9; takes about 18 s"
    assert run_line("live-1", 300, 299) == "run live-1: 299 of 300 trials as they should be"
