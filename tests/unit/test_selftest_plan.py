"""The plan of a self-test: every trial is there, in an order that the seed alone decides."""

from __future__ import annotations

from collections import Counter

import pytest

from sysmeter.selftest import plan
from sysmeter.units import NS_PER_MS, NS_PER_S


def test_each_cause_has_its_trials_and_the_controls_as_many():
    steps = plan.make_plan(plan.CAPSTONE_CAUSES, 30, 1)
    assert Counter(step.cause for step in steps) == dict.fromkeys((*plan.CAPSTONE_CAUSES, plan.CONTROL), 30)
    assert [step.number for step in steps] == list(range(len(steps)))


def test_the_seed_decides_everything():
    assert plan.make_plan(["sleep", "stall"], 20, 7) == plan.make_plan(["sleep", "stall"], 20, 7)
    assert plan.make_plan(["sleep", "stall"], 20, 7) != plan.make_plan(["sleep", "stall"], 20, 8)


def test_the_order_is_mixed():
    steps = plan.make_plan(plan.CAPSTONE_CAUSES, 30, 2)
    for cause in (*plan.CAPSTONE_CAUSES, plan.CONTROL):
        places = [step.number for step in steps if step.cause == cause]
        assert min(places) < len(steps) // 4
        assert max(places) > len(steps) * 3 // 4


def test_pauses_and_strengths_differ_and_a_pause_is_longer_than_a_backlog_takes():
    steps = plan.make_plan(plan.CAPSTONE_CAUSES, 30, 3)
    assert len({step.pause_ns for step in steps}) > len(steps) * 9 // 10
    assert min(step.pause_ns for step in steps) >= 20 * NS_PER_MS
    assert all(step.argument > 0 for step in steps)
    assert len({step.argument for step in steps if step.cause == "sleep"}) > 25


def test_no_injection_can_fill_the_queue():
    # The feed handler's queue holds 4,096 messages; at the rate of the runs that is 81 ms.
    from sysmeter.selftest.runner import RATE_HZ

    assert max(step.argument for step in plan.make_plan(["quota"], 300, 4)) * RATE_HZ < 4_096 * NS_PER_S


@pytest.mark.parametrize(("trials", "max_s"), [(1, 60), (30, 60), (300, 60), *((100, s) for s in range(2, 60))])
def test_runs_are_short_enough_and_hold_every_step_once(trials, max_s):
    steps = plan.make_plan(plan.CAPSTONE_CAUSES, trials, 5)
    runs = plan.split(steps, max_s * NS_PER_S)
    assert [step for run in runs for step in run] == steps
    assert all(0 < plan.duration_ns(run) <= max_s * NS_PER_S for run in runs)
    # About equal, none a mere rest: they differ by no more than the longest step at either end.
    lengths = [plan.duration_ns(run) for run in runs]
    assert max(lengths) - min(lengths) <= 2 * max(step.takes_ns for step in steps)
    assert len(runs) <= plan.duration_ns(steps) * 1.1 // (max_s * NS_PER_S) + 1


def test_nothing_to_do_is_no_run():
    assert plan.split([], NS_PER_S) == []
