"""The estimate of what observing a run cost, on events made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis.observation import describe_observation
from sysmeter.kernel.catalogue import CATALOGUE
from sysmeter.report.observation import observation_lines

FEED, STRATEGY, OTHER = 11, 12, 99
EDGE = {"t_before_ns": 0, "t_after_ns": 1_000}
CLOSING_EDGE = {"t_before_ns": 1_001_000, "t_after_ns": 1_002_000}
META = {
    "threads": {"feed": {"tid": FEED, "cpu": 0}, "strategy": {"tid": STRATEGY, "cpu": 1}, "tgid": 10},
    "edges": {name: {"open": EDGE, "close": CLOSING_EDGE} for name in ("feed", "strategy")},
    "observation": {
        "costs": {
            name: {"ns_per_event": 100.0 * k, "n_programs": 1, "n_events": 20, "ns_per_filtered_run": 50.0}
            for k, name in enumerate(CATALOGUE, 1)
        },
        "reason": None,
        "observer_cpu_ns": 432_000,
        "programs": None,
    },
}


def events(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    """Rows of (t_ns, kind, cpu, tid, other_tid)."""
    made = np.zeros(len(rows), records.KERNEL_EVENT)
    for number, row in enumerate(rows):
        for name, value in zip(("t_ns", "kind", "cpu", "tid", "other_tid"), row, strict=True):
            made[name][number] = value
    return made


def test_each_thread_pays_for_its_own_events_of_its_window() -> None:
    found = describe_observation(
        META,
        events(
            (999, records.EVENT_SYSCALL, 0, FEED, 0),  # before the window
            (5_000, records.EVENT_SWITCH, 0, FEED, OTHER),
            (6_000, records.EVENT_SWITCH, 0, OTHER, 0),  # while the feed thread is away, on its CPU
            (7_000, records.EVENT_SWITCH, 0, 0, FEED),
            (8_000, records.EVENT_INTERRUPT, 1, STRATEGY, 0),
            (9_000, records.EVENT_MIGRATION, 0, STRATEGY, OTHER),
            (1_001_000, records.EVENT_SYSCALL, 0, FEED, 0),  # behind it
        ),
    )
    assert found is not None
    feed, strategy = found["threads"]["feed"], found["threads"]["strategy"]
    assert feed["by_probe"] == {"context_switch": {"n_events": 3, "time_ns": 300}}
    assert feed["time_ns"] == 300
    assert feed["share_frac"] == pytest.approx(300 / 1_000_000)
    assert strategy["by_probe"] == {
        "interrupts": {"n_events": 1, "time_ns": 500},
        "migrations": {"n_events": 1, "time_ns": 700},
    }
    assert found["uncosted"] == []
    assert found["observer_cpu_ns"] == 432_000


def test_a_switch_between_both_threads_costs_each_once() -> None:
    found = describe_observation(META, events((5_000, records.EVENT_SWITCH, 0, FEED, STRATEGY)))
    assert found is not None
    assert [found["threads"][name]["n_events"] for name in ("feed", "strategy")] == [1, 1]


def test_every_kind_of_event_has_a_probe_that_is_charged() -> None:
    for probe in CATALOGUE.values():
        found = describe_observation(META, events((5_000, probe.kind, 0, FEED, 0)))
        assert found is not None
        assert list(found["threads"]["feed"]["by_probe"]) == [probe.name]


def test_a_probe_without_a_cost_is_named_not_taken_for_free() -> None:
    costs = {name: {**cost, "ns_per_event": None} for name, cost in META["observation"]["costs"].items()}
    meta = {**META, "observation": {**META["observation"], "costs": costs}}
    found = describe_observation(meta, events((5_000, records.EVENT_SOFTIRQ, 0, FEED, 0)))
    assert found is not None
    assert found["uncosted"] == ["softirqs"]
    assert "those of softirqs left out" in " ".join(observation_lines({"observation": found}, 80))


def test_without_costs_the_reason_is_told() -> None:
    kept = {"costs": None, "reason": "this kernel is old", "observer_cpu_ns": 5, "programs": None}
    found = describe_observation({**META, "observation": kept}, events())
    assert found is not None
    assert found["threads"] is None
    text = " ".join(observation_lines({"observation": found}, 80))
    assert "not estimated: this kernel is old" in text


def test_a_thread_without_a_window_is_unknown() -> None:
    found = describe_observation({**META, "edges": {"feed": META["edges"]["feed"], "strategy": None}}, events())
    assert found is not None
    assert found["threads"]["strategy"] is None
    assert found["threads"]["feed"]["time_ns"] == 0
    assert "strategy" not in " ".join(observation_lines({"observation": found}, 80))


def test_nothing_was_observed() -> None:
    assert describe_observation({**META, "observation": None}, events()) is None
    assert describe_observation({key: META[key] for key in ("threads", "edges")}, events()) is None
    assert observation_lines({"observation": None}, 80) == []
    assert observation_lines({}, 80) == []


@pytest.mark.parametrize("width", [40, 80])
def test_the_line_says_how_much_and_what_is_not_in_it(width: int) -> None:
    found = describe_observation(META, events((5_000, records.EVENT_SYSCALL, 0, FEED, 0)))
    lines = observation_lines({"observation": found}, width)
    text = " ".join(" ".join(lines).split())
    assert "feed 400 ns (0.04 %), strategy 0 ns (0 %)" in text
    assert "estimate" in text
    assert "not in it: the tracepoints' own work" in text
    assert "432 µs of CPU time" in text
    assert all(len(line) <= width for line in lines)
