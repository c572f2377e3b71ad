"""Second signs of the hypervisor: the clock interrupt that was due came late, or it did not."""

from __future__ import annotations

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.corroboration import ANSWERS, NO, NOT_POSSIBLE, YES, late_ticks
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.timeline import build_timeline
from tests.support.diagnosed import diagnosed
from tests.support.kernelevents import TIDS, events_array, interrupt
from tests.support.runs import T_START, Away, Run, build

MS = 1_000_000
OUTSIDE = Cause(causes.OUTSIDE_GUEST, "", causes.INFERRED)
OWN = Cause(causes.OWN_SERVICE, "", causes.WITNESSED)
NO_SWITCHES = np.empty(0, np.int64)


def answers(
    outside: list[tuple[int, int]],
    ticks: list[int],
    t_out: tuple[int, ...] = (),
    kind: int = records.INTERRUPT_LOCAL_TIMER,
    thread: str = "strategy",
) -> list[str]:
    """For each stretch outside the guest what the ticks of the thread say of it."""
    pairs = np.array(outside, np.int64).reshape(-1, 2)
    layer = Layer(pairs[:, 0].copy(), pairs[:, 1].copy(), np.zeros(len(pairs), np.int64), (OUTSIDE,))
    timeline = build_timeline("strategy", 0, 20_000 * MS, [layer], OWN)
    events = events_array([interrupt(thread, t, 3_000, kind) for t in ticks])
    found = late_ticks(timeline, events, TIDS["strategy"], np.array(t_out, np.int64))
    is_outside = timeline.cause == timeline.causes.index(OUTSIDE)
    assert (found[~is_outside] == -1).all()
    return [ANSWERS[answer] for answer in found[is_outside].tolist()]


def rhythm(n: int = 100, period_ns: int = 4 * MS, first_ns: int = 1_700_000, delay_ns: int = 900) -> list[int]:
    """Ticks on the grid, each delayed by up to ``delay_ns``."""
    return [first_ns + k * period_ns + (k * 37) % (delay_ns + 1) for k in range(n)]


DUE = 1_700_000 + 50 * 4 * MS  # the tick of this rhythm in the middle of the run


def without(ticks: list[int], t_due: int, *instead: int) -> list[int]:
    return sorted([t for t in ticks if abs(t - t_due) > 100_000] + list(instead))


def test_a_tick_due_inside_that_came_at_the_end_confirms() -> None:
    stretch = (DUE - 300_000, DUE + 700_000)
    assert answers([stretch], without(rhythm(), DUE, stretch[1] + 4_000)) == ["yes"]


def test_a_tick_due_inside_that_did_not_come_contradicts() -> None:
    assert answers([(DUE - 300_000, DUE + 700_000)], without(rhythm(), DUE)) == ["no"]


@pytest.mark.parametrize("late_ns", [99_000, 101_000])
def test_late_means_within_a_tenth_of_a_millisecond(late_ns: int) -> None:
    stretch = (DUE - 300_000, DUE + 700_000)
    assert answers([stretch], without(rhythm(), DUE, stretch[1] + late_ns)) == ["yes" if late_ns < 100_000 else "no"]


def test_where_no_tick_was_due_nothing_is_said() -> None:
    assert answers([(DUE + 100_000, DUE + 3 * MS)], rhythm()) == ["not possible"]


def test_a_tick_that_came_in_time_just_before_the_stretch_is_no_longer_due() -> None:
    """Its entry is a little earlier than is usual for this rhythm, which is no contradiction."""
    ticks = without(rhythm(delay_ns=20_000), DUE, DUE)
    assert answers([(DUE + 2_000, DUE + 300_000)], ticks) == ["not possible"]


def test_a_thread_that_left_the_cpu_may_have_missed_the_tick() -> None:
    stretch = (DUE - 300_000, DUE + 700_000)
    ticks = without(rhythm(), DUE)
    assert answers([stretch], ticks, t_out=(stretch[1] + 50_000,)) == ["not possible"]
    assert answers([stretch], ticks, t_out=(stretch[1] + 150_000,)) == ["no"]
    assert answers([stretch], ticks, t_out=(stretch[0] - 50_000,)) == ["no"]


def test_a_tick_that_had_stopped_before_does_not_contradict() -> None:
    """A CPU that is left alone for a while has no tick; what was not seen to go on cannot be missed."""
    ticks = [t for t in rhythm() if not DUE - 9 * MS < t < DUE + 9 * MS]
    assert answers([(DUE - 300_000, DUE + 700_000)], ticks) == ["not possible"]


def test_a_stretch_of_many_periods_needs_one_late_tick() -> None:
    stretch = (DUE - 300_000, DUE + 33 * MS)
    ticks = [t for t in rhythm() if not stretch[0] < t < stretch[1]]
    assert answers([stretch], [*ticks, stretch[1] + 2_000]) == ["yes"]


@pytest.mark.parametrize("hz", [100, 250, 300, 1_000])
def test_the_rhythm_does_not_drift_over_a_long_run(hz: int) -> None:
    """At 300 Hz the period is no whole number of microseconds."""
    period = (10**9 + hz // 2) // hz
    n = 15 * hz
    ticks = rhythm(n, period)
    due = ticks[n - 10] // 1_000 * 1_000
    stretch = (due - 40_000, due + 260_000)
    others = [t for t in ticks if abs(t - due) > 50_000]
    assert answers([stretch], others) == ["no"]
    assert answers([(due + 100_000, due + 400_000)], ticks) == ["not possible"]
    assert answers([stretch], sorted([*others, stretch[1] + 5_000])) == ["yes"]


def test_a_first_tick_that_was_late_by_half_a_period_is_no_reference() -> None:
    ticks = rhythm()
    ticks[0] += 2 * MS
    assert answers([(DUE - 300_000, DUE + 700_000)], without(ticks, DUE)) == ["no"]


@pytest.mark.parametrize(
    "ticks",
    [
        [],
        rhythm(19),
        [int(t) for t in np.cumsum([3 * MS + (k * k % 7) * MS for k in range(100)])],
        [5_000] * 30,
    ],
)
def test_without_a_rhythm_nothing_is_said(ticks: list[int]) -> None:
    assert answers([(DUE - 300_000, DUE + 700_000)], ticks) == ["not possible"]


def test_other_interrupts_and_other_threads_are_no_clock() -> None:
    stretch = (DUE - 300_000, DUE + 700_000)
    assert answers([stretch], rhythm(), kind=records.INTERRUPT_RESCHEDULE) == ["not possible"]
    assert answers([stretch], rhythm(), thread="feed") == ["not possible"]


def test_without_a_stretch_there_is_no_answer() -> None:
    assert answers([], rhythm()) == []
    assert (YES, NO, NOT_POSSIBLE) == (0, 1, 2)


def ticking(*, at_end: bool) -> Run:
    """A run of 120 ms with a tick every ms, and a theft of 700 µs in which one was due."""
    t_away = T_START + 50 * MS + 600_000
    ticks = [T_START + k * MS for k in range(1, 120) if k != 51]
    extra = [interrupt("strategy", t, 2_000) for t in ticks]
    if at_end:
        extra.append(interrupt("strategy", t_away + 690_000, 8_000))
    return Run(n_messages=12_000, away=[Away("strategy", t_away, 700_000)], extra_events=extra)


def test_a_diagnosis_tells_confirmed_from_contradicted_time() -> None:
    confirmed = diagnosed(build(ticking(at_end=True)))
    ticks = confirmed["corroboration"]["late_tick"]
    assert ticks["yes_ns"] > 600_000
    assert (ticks["no_ns"], ticks["not_possible_ns"]) == (0, 0)
    assert confirmed["episodes"][0]["late_tick"] == "yes"
    assert confirmed["tail"]["wall"]["inferred_ns"] == ticks["yes_ns"]
    assert [row["outside_the_guest_ns"] > 600_000 for row in confirmed["corroboration"]["steal"]] == [False, True]


def test_a_theft_that_the_clock_contradicts_is_unexplained() -> None:
    denied = diagnosed(build(ticking(at_end=False)))
    ticks = denied["corroboration"]["late_tick"]
    assert ticks["no_ns"] > 600_000
    assert (ticks["yes_ns"], ticks["not_possible_ns"]) == (0, 0)
    assert denied["episodes"][0]["late_tick"] == "no"
    assert denied["tail"]["inferred_ns"] == 0
    row = max(denied["causes"], key=lambda row: row["sample_time_ns"])
    assert (row["cause"], row["evidence"]) == (causes.NOT_SEEN, causes.UNEXPLAINED)
    assert "a clock interrupt was due" in row["detail"]
    # What is not taken for the hypervisor's is not compared with the steal column either.
    assert [row["outside_the_guest_ns"] for row in denied["corroboration"]["steal"]] == [0, 0]
