"""What went on beside the tail: how often, against chance, and never on the thread that held the message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.concurrency import concurrent_events
from sysmeter.analysis.episodes import Episodes, Holds
from sysmeter.analysis.intervals import wilson
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.timeline import Timeline, build_timeline
from tests.support.diagnosed import diagnosed
from tests.support.runs import T_START, Away, Run, build

MS = 1_000_000
OWN = Cause(causes.OWN_SERVICE, "", causes.WITNESSED)
TASK = Cause(causes.PREEMPTED, "bash/99", causes.WITNESSED)
OTHER_TASK = Cause(causes.PREEMPTED, "make/98", causes.WITNESSED)
TICK = Cause(causes.INTERRUPT, "local timer", causes.WITNESSED)

Pairs = list[tuple[int, int]]


# E. B. Wilson's interval at 1.959964, as tables and other programs give it.
@pytest.mark.parametrize(
    ("n_hits", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (5, 10, 0.236593, 0.763407),
        (1, 1, 0.206549, 1.0),
        (297, 300, 0.971017, 0.996593),
        (300, 300, 0.987357, 1.0),
        (50, 1_000, 0.038130, 0.065314),
    ],
)
def test_wilsons_interval(n_hits: int, n: int, low: float, high: float) -> None:
    assert wilson(n_hits, n) == pytest.approx((low, high), abs=2e-6)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_bounds_solve_the_score_equation(case: tuple[int, int]) -> None:
    """Each bound is the share p from which the observed one lies 1.96 of p's own standard deviations away."""
    n_hits, n = case
    for bound in wilson(n_hits, n):
        assert 0 <= bound <= 1
        if 1e-9 < bound < 1 - 1e-9:
            assert abs(n_hits / n - bound) == pytest.approx(1.959964 * (bound * (1 - bound) / n) ** 0.5, rel=1e-6)


def episodes_of(strategy_holds: Pairs, feed_holds: Pairs = ()) -> Episodes:  # type: ignore[assignment]
    """Each episode is held by the strategy thread, then by the feed thread; either may be empty."""
    feed_holds = list(feed_holds) or [(end, end) for _, end in strategy_holds]
    start = np.array([own[0] for own in strategy_holds], np.int64)
    end = np.array([feed[1] for feed in feed_holds], np.int64)
    holds = {
        thread: Holds(
            np.array([k for k, pair in enumerate(pairs) if pair[1] > pair[0]], np.int64),
            np.zeros(sum(pair[1] > pair[0] for pair in pairs), np.int64),
            np.array([pair[0] for pair in pairs if pair[1] > pair[0]], np.int64),
            np.array([pair[1] for pair in pairs if pair[1] > pair[0]], np.int64),
        )
        for thread, pairs in (("strategy", strategy_holds), ("feed", feed_holds))
    }
    return Episodes(start, end, end - start, np.ones(len(start), np.int64), holds)


def timeline_of(thread: str, pairs: Pairs, cause: Cause | list[Cause] = TASK, span: int = 1_000) -> Timeline:
    names = cause if isinstance(cause, list) else [cause] * len(pairs)
    columns = [np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1)]
    distinct = tuple(dict.fromkeys(names))
    codes = np.array([distinct.index(name) for name in names], np.int64)
    return build_timeline(thread, 0, span, [Layer(*columns, codes, distinct)], OWN)


def rows_of(episodes: Episodes, events: Pairs, cause: Any = TASK, thread: str = "feed") -> list[dict[str, Any]]:
    timelines = {name: timeline_of(name, events if name == thread else [], cause) for name in ("feed", "strategy")}
    return concurrent_events(episodes, timelines, (0, 1_000))


def test_an_event_of_the_thread_that_holds_the_message_is_not_beside_it() -> None:
    episodes = episodes_of([(100, 150)])
    assert rows_of(episodes, [(110, 120)], thread="strategy") == []
    ((row),) = rows_of(episodes, [(110, 120)], thread="feed")
    assert (row["thread"], row["event"], row["n_episodes"], row["n_overlapping"]) == ("feed", "preempted", 1, 1)


def test_only_while_the_other_thread_holds_it() -> None:
    episodes = episodes_of([(100, 150)], [(150, 200)])
    assert rows_of(episodes, [(160, 170)], thread="feed") == []
    assert [row["n_overlapping"] for row in rows_of(episodes, [(160, 170)], thread="strategy")] == [1]


@pytest.mark.parametrize(
    ("event", "hit"), [((90, 100), 0), ((90, 101), 1), ((149, 160), 1), ((150, 160), 0), ((0, 999), 1)]
)
def test_touching_is_not_overlapping(event: tuple[int, int], hit: int) -> None:
    assert sum(row["n_overlapping"] for row in rows_of(episodes_of([(100, 150)]), [event])) == hit


def test_events_are_taken_by_class_and_each_episode_counts_once() -> None:
    events = [(110, 115), (120, 125), (130, 135)]
    rows = rows_of(episodes_of([(100, 150), (300, 320)]), events, [TASK, OTHER_TASK, TICK])
    assert [(row["event"], row["n_overlapping"], row["n_episodes"]) for row in rows] == [
        ("hard interrupt", 1, 2),
        ("preempted", 1, 2),
    ]


def test_own_service_is_no_event() -> None:
    assert rows_of(episodes_of([(100, 150)]), [(110, 115)], [OWN]) == []


def test_without_such_an_event_in_the_rest_there_is_no_ratio() -> None:
    ((row),) = rows_of(episodes_of([(100, 150)]), [(110, 120)])
    assert row["tail_frac"] == 1.0
    assert row["rest_frac"] is row["ratio"] is row["ratio_low"] is row["ratio_high"] is None


def test_the_ratio_and_its_interval() -> None:
    # Chance: an interval of 50 at random in the rest of 950 meets [500, 550) if it starts in (450, 550).
    ((row),) = rows_of(episodes_of([(100, 150)]), [(110, 120), (500, 550)])
    assert row["rest_frac"] == pytest.approx(100 / 950)
    assert row["ratio"] == pytest.approx(9.5)
    low, high = wilson(1, 1)
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((9.5 * low, 9.5 * high))


def test_events_of_the_process_are_beside_whole_episodes() -> None:
    episodes = episodes_of([(100, 150)], [(150, 200)])
    timelines = {name: timeline_of(name, []) for name in ("feed", "strategy")}
    others = [("collection", np.array([120, 700]), np.array([130, 710]))]
    ((row),) = concurrent_events(episodes, timelines, (0, 1_000), others)
    assert (row["thread"], row["event"], row["n_overlapping"]) == (None, "collection", 1)
    # Episodes of 100 ns in a rest of 900: [700, 710) is met from (600, 710).
    assert row["rest_frac"] == pytest.approx(110 / 900)


def test_no_episodes_no_rows() -> None:
    empty = np.empty(0, np.int64)
    holds = Holds(empty, empty, empty, empty)
    episodes = Episodes(empty, empty, empty, empty, {"feed": holds, "strategy": holds})
    assert rows_of(episodes, [(100, 200)]) == []


def disjoint(draw: st.DrawFn, low: int, high: int, max_size: int) -> Pairs:
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=2 * max_size, unique=True)))
    return list(zip(cuts[::2], cuts[1::2], strict=False))


@st.composite
def windows(draw: st.DrawFn) -> tuple[Pairs, Pairs, tuple[int, int]]:
    """Episodes, events and a window; both may reach over its edges."""
    episodes = disjoint(draw, 0, 300, 4)
    events = disjoint(draw, 0, 300, 6)
    return episodes or [(10, 20)], events, (draw(st.integers(0, 40)), draw(st.integers(250, 300)))


@settings(max_examples=200)
@given(windows())
def test_chance_is_that_of_trying_each_instant(case: tuple[Pairs, Pairs, tuple[int, int]]) -> None:
    pairs, events, window = case
    # The rest of the window, closed up: for each of its instants whether an event of the rest goes on then.
    beside = [event for event in events if not any(s < event[1] and event[0] < e for s, e in pairs)]
    instants = [t for t in range(*window) if not any(s <= t < e for s, e in pairs)]
    eventful = [any(s <= t < e for s, e in beside) for t in instants]
    lengths = [e - s for s, e in pairs]
    chances = [np.mean([any(eventful[t : t + n]) for t in range(len(instants))]) for n in lengths if instants]

    timelines = {"strategy": timeline_of("strategy", []), "feed": timeline_of("feed", events, span=400)}
    rows = concurrent_events(episodes_of(pairs), timelines, window)
    hits = [any(s < b and a < e for a, b in events) for s, e in pairs]
    assert [(row["n_overlapping"], row["n_episodes"]) for row in rows] == (
        [(sum(hits), len(pairs))] if any(hits) else []
    )
    for row in rows:
        if not any(eventful):
            assert row["rest_frac"] is None
        else:
            # The edges are open where instants are whole numbers: an interval [t, t + n) starts later than a - n.
            assert row["rest_frac"] == pytest.approx(np.mean(chances) + excess(eventful, lengths), abs=1e-12)


def excess(eventful: list[bool], lengths: list[int]) -> float:
    """By how much a continuous start exceeds a whole one: starts in (a - n, a - n + 1) before each free stretch."""
    n_stretches = [0] * len(lengths)
    free = 0
    for is_event in eventful:
        if is_event and free:
            for k, n in enumerate(lengths):
                n_stretches[k] += n <= free
        free = 0 if is_event else free + 1
    return float(np.mean(n_stretches)) / len(eventful)


def test_a_run_whose_feed_is_away_beside_the_strategys_stalls() -> None:
    away = [Away("strategy", T_START + k * 10 * MS, MS) for k in range(1, 5)]
    away += [Away("feed", T_START + k * 10 * MS + 300_000, 20_000) for k in range(1, 5)]
    result = diagnosed(build(Run(n_messages=6_000, away=away)), 200_000)
    row = next(row for row in result["concurrent"] if row["event"] == causes.OUTSIDE_GUEST)
    assert row["thread"] == "feed"
    assert row["n_overlapping"] == row["n_episodes"] == result["tail"]["n_episodes"] == 4
