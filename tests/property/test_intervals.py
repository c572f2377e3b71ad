"""The interval of a move: how often it holds the truth, which way it points, and what may spoil it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysmeter.analysis.intervals import Move, interquartile_mean_ns, paired_move
from tests.support.histograms import filled

LEVELS = st.floats(1, 1e7)
PAIRS = st.lists(st.tuples(LEVELS, st.lists(LEVELS, min_size=1, max_size=2)), min_size=2, max_size=40)


def moved(pairs: list[tuple[float, list[float]]]) -> Move:
    move = paired_move(pairs)
    assert move is not None
    return move


@given(st.lists(st.integers(0, 10**12), min_size=4, max_size=200))
def test_interquartile_mean_against_sorted_samples(values: list[int]) -> None:
    ordered = np.sort(np.array(values, np.float64))
    # Each sample is a stretch of length 1; the middle half of all the stretches counts.
    low, high = len(ordered) / 4, len(ordered) * 3 / 4
    weight = np.clip(np.minimum(np.arange(1, len(ordered) + 1), high) - np.maximum(np.arange(len(ordered)), low), 0, 1)
    exact = float((ordered * weight).sum() / weight.sum())
    found = interquartile_mean_ns(filled(values))
    assert found is not None
    assert abs(found - exact) <= exact / 2**7 + 1


@given(st.lists(st.integers(0, 1_000), min_size=8, max_size=100), st.integers(1, 10**15))
def test_a_tail_of_less_than_a_quarter_moves_it_no_further_than_the_body_goes(values: list[int], slow: int) -> None:
    found = interquartile_mean_ns(filled(values + [slow] * ((len(values) - 1) // 4)))
    assert found is not None
    assert found <= max(values) * (1 + 2**-7) + 1


def test_it_does_not_stick_to_the_clocks_steps() -> None:
    coarse = [100] * 60 + [110] * 40
    slower = [100] * 50 + [110] * 50
    a, b = interquartile_mean_ns(filled(coarse)), interquartile_mean_ns(filled(slower))
    assert a is not None
    assert b is not None
    assert 1 < b - a < 3


def test_too_few_samples_have_none() -> None:
    assert interquartile_mean_ns(filled([1, 2, 3])) is None


@given(PAIRS)
def test_the_interval_holds_the_mean_difference(pairs: list[tuple[float, list[float]]]) -> None:
    move = moved(pairs)
    differences = [level - sum(beside) / len(beside) for level, beside in pairs]
    assert math.isclose(move.by_ns, sum(differences) / len(differences), abs_tol=1e-6)
    assert move.low_ns is not None
    assert move.high_ns is not None
    assert move.low_ns <= move.by_ns <= move.high_ns
    assert move.n_rounds == len(pairs)


@given(PAIRS)
def test_exchanging_swap_and_default_turns_the_sign(pairs: list[tuple[float, list[float]]]) -> None:
    single = [(level, beside[:1]) for level, beside in pairs]
    there, back = moved(single), moved([(beside[0], [level]) for level, beside in single])
    assert there.low_ns is not None
    assert back.high_ns is not None
    assert math.isclose(there.by_ns, -back.by_ns, abs_tol=1e-6)
    assert math.isclose(there.low_ns, -back.high_ns, rel_tol=1e-9, abs_tol=1e-5)
    assert there.excludes_zero() == back.excludes_zero()


@given(PAIRS, st.floats(-1e6, 1e6))
def test_what_adds_to_every_run_is_no_move(pairs: list[tuple[float, list[float]]], drift: float) -> None:
    there = moved(pairs)
    shifted = moved([(level + drift, [base + drift for base in beside]) for level, beside in pairs])
    assert math.isclose(there.by_ns, shifted.by_ns, abs_tol=1e-4)


@pytest.mark.parametrize("n_rounds", [2, 3, 4, 8, 40])
@pytest.mark.parametrize("noise", ["normal", "stolen"])
def test_the_interval_misses_the_truth_no_more_often_than_it_says(n_rounds: int, noise: str) -> None:
    generator = np.random.default_rng(n_rounds)
    n_trials, truth, missed = 4_000, 90.0, 0
    for _ in range(n_trials):
        drift = generator.normal(0, 50)
        level = generator.normal(170 + drift, 8, (n_rounds, 3))
        if noise == "stolen":
            # The host spoils one run in ten by far more than the move, whichever run it is.
            level += np.where(generator.random(level.shape) < 0.1, generator.exponential(2_000, level.shape), 0)
        move = moved([(float(row[0] + truth), [float(row[1]), float(row[2])]) for row in level])
        assert move.low_ns is not None
        assert move.high_ns is not None
        missed += not move.low_ns <= truth <= move.high_ns
    # 5 % are promised; three standard deviations of the count itself are allowed on top.
    assert missed / n_trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / n_trials)


def test_one_round_has_no_interval_and_none_no_move() -> None:
    assert paired_move([]) is None
    move = moved([(100.0, [90.0])])
    assert (move.by_ns, move.interval_ns) == (10.0, None)
    assert not move.excludes_zero()
    assert not move.within(1e9)
