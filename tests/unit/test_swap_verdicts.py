"""Every way a verdict on a swap can come out, on runs made to order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sysmeter.analysis.counters import counter, not_measured
from sysmeter.analysis.swapruns import DEFAULT
from sysmeter.analysis.swaps import AS_PREDICTED, NOT_AS_PREDICTED, UNPROVEN, Prediction, judge
from tests.support.swapruns import agreed, comparison, with_counter

TREE = Prediction("tree", "allocations", "think", "think", by_ns=57.0)
CHANNEL = Prediction("channel", "allocations", "total", "one in 31", one_in=31)
MUTEX = Prediction("mutex", "voluntary_switches", "total", "total")
STALL = Prediction("stall", None, "total", "stall", stays="think", by_ns=5e6)


def tree_runs(moved=90.0, **changes):
    runs = comparison("tree", {"think": moved, "total": moved}, **changes)
    return with_counter(runs, "tree", "process", "allocations", agreed(40_000))


def mutex_runs(**changes):
    runs = comparison("mutex", {"total": 300.0}, **changes)
    return with_counter(runs, "mutex", "strategy", "voluntary_switches", agreed(120))


def channel_runs(moved=13.0, whole=0.0, **changes):
    runs = comparison("channel", {"one in 31": moved, "total": whole}, **changes)
    return with_counter(runs, "channel", "process", "allocations", agreed(4_000))


def stall_runs(think=0.0, held=30_000.0, **changes):
    return comparison("stall", {"stall": 5e6, "think": think, "stall think": held}, **changes)


@pytest.mark.parametrize(
    ("prediction", "runs"),
    [(TREE, tree_runs()), (CHANNEL, channel_runs()), (MUTEX, mutex_runs()), (STALL, stall_runs())],
    ids=["tree", "channel", "mutex", "stall"],
)
def test_as_predicted(prediction, runs):
    entry = judge(prediction, runs)
    assert (entry["verdict"], entry["reason"]) == (AS_PREDICTED, None)
    assert entry["observed"]["histogram"] == prediction.histogram
    low, high = entry["observed"]["interval_ns"]
    assert 0 < low <= entry["observed"]["by_ns"] <= high
    assert entry["decisions"]["common"] == entry["decisions"]["equal"] == 5_000
    assert entry["observed"]["extra_breaks"] == []
    assert entry["predicts"]["by_ns"] == prediction.by_ns


def test_the_default_holds_its_zeros():
    entry = judge(Prediction(DEFAULT), tree_runs())
    assert (entry["verdict"], entry["reason"]) == (AS_PREDICTED, None)
    assert entry["observed"]["counters"]["allocations"]["value"] == 0
    assert entry["observed"]["by_ns"] is None


# ── shown to be otherwise ──


def test_a_decision_that_differs_decides():
    first = {"seq": 7, "a": {"text": "7,1"}, "b": {"text": "7,2"}}
    runs = tree_runs(decisions={"common": 1_000, "equal": 999, "first_difference": first})
    entry = judge(TREE, with_counter(runs, "tree", "process", "allocations", not_measured("no probe")))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "5 of 5,000 common decisions differ" in entry["reason"]
    assert "no probe" in entry["reason"]
    assert entry["decisions"]["first_difference"] == first


def test_a_message_that_is_lost_decides():
    flow = {"messages": 250_000, "sequence_gaps": 1, "duplicates": 0, "live": False}
    entry = judge(TREE, tree_runs(flow=flow))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "sequence_gaps is 1 where the default has 0" in entry["reason"]


def test_a_zero_that_holds_against_the_prediction():
    entry = judge(TREE, comparison("tree", {"think": 90.0}))
    assert (entry["verdict"], entry["reason"]) == (NOT_AS_PREDICTED, "allocations stayed 0, by both sources")


def test_a_move_the_other_way():
    entry = judge(TREE, tree_runs(-40.0))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "the other way" in entry["reason"]


def test_no_move_where_one_would_have_shown():
    entry = judge(TREE, tree_runs(0.2, noise=0.3))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "did not move" in entry["reason"]
    assert entry["observed"]["histogram"] is None


def test_a_stall_that_moves_think():
    entry = judge(STALL, stall_runs(think=60.0))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "think moved too" in entry["reason"]


def test_a_stall_that_is_spent_thinking():
    entry = judge(STALL, stall_runs(held=5e6))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "think of the messages held moved too" in entry["reason"]


def test_one_message_in_so_many_that_pays_nothing():
    entry = judge(CHANNEL, channel_runs(0.1, noise=0.2))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "total did not move" in entry["reason"]


@pytest.mark.parametrize(
    ("who", "name"), [("feed", "syscalls"), ("strategy", "minor_faults"), ("process", "gc_collections")]
)
def test_a_zero_of_the_default_that_broke(who, name):
    entry = judge(Prediction(DEFAULT), with_counter(tree_runs(), DEFAULT, who, name, agreed(3)))
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert name.replace("_", " ") in entry["reason"]
    assert [(row["counter"], row["thread"]) for row in entry["observed"]["extra_breaks"]] == [(name, who)]


# ── not shown either way ──


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (not_measured("probe allocations cannot be used"), "probe allocations cannot be used"),
        (counter(7, "not_proven", "libc calls", ("numba", 9), False, "lost 2 events"), "lost 2 events"),
        (counter(7, "measured", "numba", None, None, None), "counted by numba alone"),
    ],
)
def test_a_zero_without_two_sources_that_agree(found, words):
    runs = with_counter(tree_runs(), "tree", "process", "allocations", found)
    entry = judge(TREE, runs)
    assert entry["verdict"] == UNPROVEN
    assert words in entry["reason"]


def test_without_an_audit_nothing_is_said_of_allocations():
    runs = [run for run in tree_runs() if not run.is_audit]
    for prediction in (TREE, Prediction(DEFAULT)):
        entry = judge(prediction, runs, "watching threads needs root")
        assert entry["verdict"] == UNPROVEN
        assert "watching threads needs root" in entry["reason"]


def test_an_audit_whose_probe_failed_is_none():
    off = {"allocations": {"status": "unavailable", "reason": "no uprobes in this kernel"}}
    runs = [replace(run, probes=off) for run in tree_runs()]
    for prediction in (TREE, Prediction(DEFAULT)):
        entry = judge(prediction, runs)
        assert entry["verdict"] == UNPROVEN
        assert "no uprobes in this kernel" in entry["reason"]


def test_a_mutex_that_never_had_to_sleep():
    entry = judge(MUTEX, comparison("mutex", {"total": 300.0}))
    assert (entry["verdict"], entry["reason"]) == (
        UNPROVEN,
        "voluntary switches stayed 0: no thread ever had to sleep",
    )


def test_one_proven_sleep_is_enough_beside_a_run_that_proves_nothing():
    unknown = counter(4, "not_proven", "BPF", ("getrusage", 5), False, "they differ")
    runs = mutex_runs()
    spoiled = with_counter(runs[1:2], "mutex", "strategy", "voluntary_switches", unknown)
    assert judge(MUTEX, [runs[0], *spoiled, *runs[2:]])["verdict"] == AS_PREDICTED


def test_a_zero_that_the_default_breaks_itself_is_not_the_swaps_doing():
    runs = with_counter(mutex_runs(), DEFAULT, "feed", "voluntary_switches", agreed(2))
    entry = judge(MUTEX, runs)
    assert entry["verdict"] == UNPROVEN
    assert "the default breaks the zero" in entry["reason"]


def test_an_interval_that_is_wide_and_includes_0():
    entry = judge(TREE, tree_runs(5.0, noise=20.0))
    assert entry["verdict"] == UNPROVEN
    assert "includes 0" in entry["reason"]
    assert entry["observed"]["histogram"] is None


def test_one_round_proves_no_move():
    entry = judge(TREE, tree_runs(rounds=1))
    assert (entry["verdict"], entry["observed"]["interval_ns"]) == (UNPROVEN, None)
    assert "--rounds" in entry["reason"]


def test_nothing_in_common():
    entry = judge(TREE, tree_runs(decisions={"common": 0, "equal": 0, "first_difference": None}))
    assert entry["verdict"] == UNPROVEN
    assert "no decision in common" in entry["reason"]


def test_a_run_too_short_for_its_stalls():
    runs = [replace(run, n_stalls=0) for run in stall_runs()]
    assert "no stall" in judge(STALL, runs)["reason"]


def test_think_that_may_have_moved_by_any_amount_did_not_stay():
    think = {DEFAULT: (500.0, 500.0), "stall": (100.0, 900.0)}
    spread = [
        replace(run, levels_ns={**run.levels_ns, "think": think[run.combination][at // 2 % 2]})
        for at, run in enumerate(stall_runs())
    ]
    entry = judge(STALL, spread)
    assert entry["verdict"] == UNPROVEN
    assert "think" in entry["reason"]


def test_allocations_of_a_timing_pass_are_not_hidden_by_the_audit():
    runs = tree_runs()
    leak = {**agreed(3), "agrees": None, "witness": None}
    leaky = with_counter([run for run in runs if not run.is_audit], "default", "process", "allocations", leak)
    entry = judge(Prediction("default"), [*leaky, *(run for run in runs if run.is_audit)])
    assert entry["verdict"] == NOT_AS_PREDICTED
    assert "timing passes" in entry["reason"]
