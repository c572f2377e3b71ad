"""The text and the JSON of a comparison of swaps, from runs made to order."""

from __future__ import annotations

import json

import pytest

from sysmeter.analysis.counters import not_measured
from sysmeter.analysis.swapruns import DEFAULT
from sysmeter.analysis.swaps import Prediction, judge, worst
from sysmeter.report.json import dump
from sysmeter.report.layout import cells
from sysmeter.report.verify import render_verification, run_line
from tests.support.swapruns import agreed, comparison, with_counter


def result_of(runs, *predictions):
    entries = [judge(prediction, runs) for prediction in (Prediction(DEFAULT), *predictions)]
    return {
        "schema": "sysmeter.verify/1",
        "settings": {"rounds": 4, "rate_hz": 100_000, "seconds": 3.0, "warmup_seconds": 0.5, "cpus": [0, 1]},
        "host": {"hostname": "testhost", "kernel": "6.18.0", "virtualization": "kvm"},
        "method": "How the interval was made.",
        "swaps": entries,
        "claims": [],
        "notes": ["tree: something to know"],
        "verdict": worst([entry["verdict"] for entry in entries]),
    }


@pytest.fixture
def result():
    runs = with_counter(comparison("tree", {"think": 90.0}), "tree", "process", "allocations", agreed(40_000))
    return result_of(runs, Prediction("tree", "allocations", "think", "think", by_ns=57.0))


def test_a_row_says_what_broke_what_moved_by_how_much_and_the_verdict(result):
    lines = render_verification(result).splitlines()
    row = next(line for line in lines if line.startswith("tree ") and "think" in line)
    assert row.startswith("tree     allocations 40,000")
    assert row.endswith("as predicted")
    assert "+9" in row
    assert ".." in row
    assert lines[-1] == "Verdict: as predicted."


def test_the_piece_alone_stands_beside_the_move(result):
    assert "the piece alone +57 ns" in " ".join(render_verification(result).split())


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_too_wide_whatever_the_figures(width):
    runs = with_counter(comparison("stall", {"stall": 9.9e9}, noise=1e8), "stall", "feed", "syscalls", agreed(10**12))
    runs = with_counter(runs, DEFAULT, "process", "allocations", not_measured("a reason of some length " * 9))
    result = result_of(runs, Prediction("stall", None, "total", "stall", stays="think", by_ns=5e6))
    assert all(cells(line) <= width for line in render_verification(result, width).splitlines())


def test_a_difference_of_decisions_is_shown_with_both_lines():
    first = {"seq": 7, "a": {"text": "7,1,2"}, "b": {"text": "7,1,3"}}
    runs = comparison("tree", {"think": 90.0}, decisions={"common": 9, "equal": 8, "first_difference": first})
    text = " ".join(render_verification(result_of(runs, Prediction("tree", "allocations", "think", "think"))).split())
    assert "5 DIFFER; first at sequence number 7: default 7,1,2, here 7,1,3" in text


def test_the_json_has_the_schemas_keys_and_says_the_same(result):
    loaded = json.loads(dump(result))
    assert render_verification(loaded) == render_verification(result)
    assert [entry["name"] for entry in loaded["swaps"]] == ["default", "tree"]
    for entry in loaded["swaps"]:
        assert {"name", "predicts", "observed", "decisions", "verdict", "reason"} <= set(entry)
        assert {"breaks", "histogram", "by_ns"} <= set(entry["predicts"])
        assert {"counters", "extra_breaks", "histogram", "by_ns", "interval_ns"} <= set(entry["observed"])
        assert {"common", "equal"} <= set(entry["decisions"])


def test_the_line_of_a_run():
    levels = {"think": 170.4, "total": 300.0, "stall": None}
    assert run_line(2, 22, "tree", False, levels) == "run 2 of 22, tree: think 170 ns, total 300 ns"
    assert run_line(19, 22, "tree", True, levels) == "run 19 of 22, tree: allocations counted"
