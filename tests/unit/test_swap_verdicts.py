"""Every way a verdict on a swap can come out, on runs made to order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sysmeter.analysis.counters import counter, not_measured
from sysmeter.analysis.swapruns import DEFAULT
from sysmeter.analysis.swaps import AS_PREDICTED, NOT_AS_PREDICTED, UNPROVEN, Prediction, judge, worst
from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_NOT_PROVEN, EXIT_OK
from sysmeter.verification import exit_code, schedule
from tests.support.swapruns import agreed, comparison, one_run, with_counter

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


def test_think_that_may_have_moved_with_a_stall():
    entry = judge(STALL, stall_runs(held=200_000.0, noise=60_000.0))
    assert entry["verdict"] == UNPROVEN
    assert "think of the messages held may have moved" in entry["reason"]


def test_too_few_samples():
    runs = [replace(run, levels_ns=dict.fromkeys(run.levels_ns)) for run in tree_runs()]
    entry = judge(TREE, runs)
    assert entry["verdict"] == UNPROVEN
    assert "too few samples" in entry["reason"]


# ── what else is told ──


def test_zeros_broken_beyond_the_prediction_are_listed_with_their_cause_and_change_no_verdict():
    runs = with_counter(mutex_runs(), "mutex", "feed", "syscalls", agreed(300))
    runs = with_counter(runs, "mutex", "strategy", "minor_faults", agreed(5))
    runs = [
        replace(run, syscalls={"feed": {"futex": 290, "madvise": 10}}, faults={"strategy": (5, 1, 5)}) for run in runs
    ]
    entry = judge(MUTEX, runs)
    assert entry["verdict"] == AS_PREDICTED
    faults, calls = entry["observed"]["extra_breaks"]
    assert (calls["counter"], calls["thread"], calls["value"], calls["n_runs"]) == ("syscalls", "feed", 1_200, 4)
    assert calls["cause"] == "futex 1,160x, madvise 40x"
    assert faults["cause"].startswith("20 traps, 4 of them in kernel mode, on 20 pages, each page once")


def test_a_zero_that_one_source_saw_break_is_listed_though_it_is_not_proven():
    lost = counter(0, "not_proven", "BPF", ("perf counter", 500_000), False, "syscalls lost 533,221 events")
    runs = with_counter(mutex_runs(), "mutex", "feed", "syscalls", lost)
    runs = [replace(run, syscalls_outside={"feed": {"futex": 43_000}}) for run in runs]
    entry = judge(MUTEX, runs)
    (row,) = entry["observed"]["extra_breaks"]
    assert entry["verdict"] == AS_PREDICTED
    assert (row["value"], row["status"]) == (2_000_000, "not_proven")
    assert "lost 533,221" in row["cause"]
    assert "outside of it futex" in row["cause"]


def test_involuntary_switches_are_the_hosts_and_named():
    runs = with_counter(tree_runs(), DEFAULT, "feed", "involuntary_switches", agreed(4))
    runs = [replace(run, preempted_by={"kworker/1:1": 100, "bash/77": 900}) for run in runs]
    entry = judge(Prediction(DEFAULT), runs)
    found = entry["observed"]["counters"]["involuntary_switches"]
    assert entry["verdict"] == AS_PREDICTED
    assert (found["value"], found["by_host"]) == (32, ["bash/77", "kworker/1:1"])


def test_audit_passes_are_not_timed_and_timing_passes_count_no_system_calls_of_uprobes():
    runs = tree_runs()
    audited = one_run("tree", is_audit=True, levels_ns={"think": 9e9, "total": 9e9, "stall": 9e9})
    audited = with_counter([audited], "tree", "feed", "syscalls", agreed(7))
    audited = with_counter(audited, "tree", "process", "allocations", agreed(40_000))
    entry = judge(TREE, [*runs[:-1], *audited])
    assert entry["verdict"] == AS_PREDICTED
    assert entry["observed"]["counters"]["syscalls"]["value"] == 0


@pytest.mark.parametrize("swaps", [["tree"], ["tree", "mutex"], ["tree", "channel", "mutex", "stall"]])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_each_swap_stands_between_two_defaults_that_no_other_run_of_it_has(swaps, rounds):
    order = schedule(swaps, rounds)
    for swap in swaps:
        beside = [place + step for place, name in enumerate(order) if name == swap for step in (-1, 1)]
        assert len(beside) == len(set(beside)) == 2 * rounds
        assert {order[place] for place in beside} == {DEFAULT}


@pytest.mark.parametrize(
    ("verdict", "claimed", "code"),
    [
        (AS_PREDICTED, [], EXIT_OK),
        (AS_PREDICTED, ["holds", "fails"], EXIT_CLAIM_FAILED),
        (AS_PREDICTED, ["not proven"], EXIT_NOT_PROVEN),
        (UNPROVEN, ["holds"], EXIT_NOT_PROVEN),
        (UNPROVEN, ["fails"], EXIT_CLAIM_FAILED),
        (NOT_AS_PREDICTED, ["not proven"], EXIT_CLAIM_FAILED),
    ],
)
def test_exit_codes(verdict, claimed, code):
    assert exit_code({"verdict": verdict, "claims": [{"verdict": word} for word in claimed]}) == code


def test_one_wrong_decides_over_all():
    assert worst([AS_PREDICTED, UNPROVEN, NOT_AS_PREDICTED]) == NOT_AS_PREDICTED
    assert worst([AS_PREDICTED, UNPROVEN]) == UNPROVEN
    assert worst([AS_PREDICTED]) == AS_PREDICTED


def test_a_total_that_moved_the_other_way_as_a_whole_is_not_passed_over():
    entry = judge(CHANNEL, channel_runs(whole=-20.0))
    assert entry["verdict"] == UNPROVEN
    assert "as a whole" in entry["reason"]


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
