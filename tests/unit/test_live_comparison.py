"""The comparison of collector policies: order, medians, what an interrupt leaves, and the texts of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sysmeter import session
from sysmeter.analysis.summary import summarize
from sysmeter.gccomparison import GcComparison, compare, schedule
from sysmeter.report.json import dump
from sysmeter.report.live import render_live
from sysmeter.report.livegc import render_gc_comparison, run_line
from sysmeter.session import LiveSettings
from tests.golden.build import GOLDEN
from tests.support.liveruns import MS, WORKER, LiveRun, Stop, build_live
from tests.support.runs import T_START

POLICIES = ("default", "off", "freeze", "threshold:10000")


def test_each_round_has_every_policy_once_and_begins_with_another() -> None:
    order = schedule(POLICIES, 5)
    rounds = [order[at : at + 4] for at in range(0, 20, 4)]
    assert all(sorted(one) == sorted(POLICIES) for one in rounds)
    assert [one[0] for one in rounds] == [*POLICIES, "default"]


@pytest.fixture
def runs_made_to_order(monkeypatch, tmp_path):
    """`compare` without a workload: run k of policy p has a collection of p's generation, k ms long."""
    made: list[str] = []
    stop_after: list[int] = []

    def run(settings: LiveSettings, out: Any, _listener: Any) -> Any:
        if stop_after and len(made) == stop_after[0]:
            raise session.Interrupted("stopped")
        made.append(settings.gc)
        out.mkdir()
        length = len(made) * MS
        at = T_START + 100 * MS
        collections = [] if settings.gc == "off" else [(at, at + length, 2, WORKER)]
        recording = build_live(LiveRun(stops=[Stop(at, length)], collections=collections, gc=settings.gc))
        recording.path = out
        return recording

    monkeypatch.setattr(session, "run", run)
    return made, stop_after, tmp_path


def comparison(place: Any, rounds: int = 3, **options: Any) -> GcComparison:
    return GcComparison(LiveSettings(cpus=(1,)), ("default", "off"), rounds, place, **options)


def test_medians_stand_with_the_lowest_and_the_highest_of_the_rounds(runs_made_to_order) -> None:
    made, _, place = runs_made_to_order
    told: list[tuple[int, int]] = []
    result = compare(comparison(place, on_run=lambda number, total, _run: told.append((number, total))))
    assert made == ["default", "off", "off", "default", "default", "off"]
    assert told == [(number, 6) for number in range(1, 7)]
    default, off = result["policies"]
    assert default["gc_time_ns"] == {"median": 4 * MS, "low": MS, "high": 5 * MS}
    assert default["collections"] == [{"median": n, "low": n, "high": n} for n in (0, 0, 1)]
    assert off["gc_time_ns"] == {"median": 0, "low": 0, "high": 0}
    singles = [run["response"]["max_ns"] for run in result["runs"] if run["policy"] == "default"]
    assert default["response"]["max_ns"] == {
        "median": sorted(singles)[1],
        "low": min(singles),
        "high": max(singles),
    }
    assert result["interrupted"] is False
    assert not list(place.iterdir())


def test_recordings_stay_where_they_are_to_be_kept(runs_made_to_order) -> None:
    _, _, place = runs_made_to_order
    compare(comparison(place, rounds=1, keep=True))
    assert sorted(path.name for path in place.iterdir()) == ["01-default", "02-off"]


def test_an_interrupt_leaves_what_was_measured_until_then(runs_made_to_order) -> None:
    _, stop_after, place = runs_made_to_order
    stop_after.append(3)
    result = compare(comparison(place))
    assert result["interrupted"] is True
    assert [entry["n_runs"] for entry in result["policies"]] == [1, 2]
    text = render_gc_comparison(result)
    assert "INTERRUPTED after 3 runs of 6" in text
    stop_after[0] = 3  # three runs are made already
    with pytest.raises(session.Interrupted, match="nothing to compare"):
        compare(comparison(place))


def test_an_interrupt_between_two_runs_loses_none_of_them(runs_made_to_order) -> None:
    _, _, place = runs_made_to_order

    def interrupt(number: int, _total: int, _run: dict[str, Any]) -> None:
        if number == 2:
            raise KeyboardInterrupt

    result = compare(comparison(place, on_run=interrupt))
    assert result["interrupted"] is True
    assert len(result["runs"]) == 2


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_of_the_table_is_wider_than_asked_for(runs_made_to_order, width: int) -> None:
    _, _, place = runs_made_to_order
    result = compare(comparison(place))
    assert json.loads(dump(result))
    assert max(map(len, render_gc_comparison(result, width).splitlines())) <= width
    assert "run 1 of 6, --gc default: response p99.9" in run_line(1, 6, result["runs"][0])


def test_a_policy_without_a_run_is_not_run_and_no_figure_of_its_own(runs_made_to_order) -> None:
    _, stop_after, place = runs_made_to_order
    stop_after.append(1)
    result = compare(comparison(place))
    assert result["policies"][1]["service"]["p50_ns"] is None
    (row,) = [line for line in render_gc_comparison(result).splitlines() if line.startswith("off")][:1]
    assert row.split() == ["off", "not", "run"]


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("live")])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_of_a_live_report_is_wider_than_asked_for(name: str, width: int) -> None:
    text = render_live(summarize(GOLDEN[name]()), width)
    assert max(map(len, text.splitlines())) <= width


def test_the_clock_is_stated_and_a_slow_one_warned_of() -> None:
    text = render_live(summarize(GOLDEN["live"]()))
    assert "resolution 1 ns" in text
    assert "60 ns a read" in text
    assert "not a fast one" not in text
    assert "clock source hpet is not a fast one" in render_live(summarize(GOLDEN["live_flat"]()))
