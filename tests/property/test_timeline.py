"""Timelines and slices against oracles that look at every nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sysmeter.analysis.causes import Cause
from sysmeter.analysis.layers import Layer, disjoint_layer
from sysmeter.analysis.offcpulayer import SliceWords, slice_layer
from sysmeter.analysis.reads import ThreadReads
from sysmeter.analysis.sleeps import Reasons
from sysmeter.analysis.slices import off_cpu_slices, switch_chain
from sysmeter.analysis.timeline import build_timeline
from tests.support.layers import REST, SPAN, layers
from tests.support.runs import COMM, TIDS, event, events_array, switch

INTERVALS = st.lists(
    st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(lambda pair: (min(pair), max(pair))),
    max_size=20,
)


def cause_at(t: int, found: list[Layer]) -> Cause:
    for layer in found:
        for start, end, code in zip(layer.t_start_ns, layer.t_end_ns, layer.cause, strict=True):
            if start <= t < end:
                return layer.causes[code]
    return REST


def arrays(intervals: list[tuple[int, int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pairs = np.array(intervals, np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


@given(layers())
def test_a_timeline_is_a_partition_in_which_the_first_layer_wins(found: list[Layer]) -> None:
    timeline = build_timeline("feed", 0, SPAN, found, REST)
    assert timeline.bounds_ns[0] == 0
    assert timeline.bounds_ns[-1] == SPAN
    assert (np.diff(timeline.bounds_ns) > 0).all()
    for t in range(SPAN):
        segment = int(np.searchsorted(timeline.bounds_ns, t, side="right")) - 1
        assert timeline.causes[timeline.cause[segment]] == cause_at(t, found)


@given(st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, 40)), max_size=12))
def test_of_overlapping_intervals_the_earlier_one_keeps_what_both_claim(rows: list[tuple[int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    start = np.array([t for t, _ in rows], np.int64)
    end = start + np.array([length for _, length in rows], np.int64)
    layer = disjoint_layer(start, end, np.arange(len(rows)), (REST,))
    assert (layer.t_start_ns[1:] >= layer.t_end_ns[:-1]).all()
    for t in range(2 * SPAN):
        expected = [k for k in range(len(rows)) if start[k] <= t < end[k]][:1]
        assert np.flatnonzero((layer.t_start_ns <= t) & (t < layer.t_end_ns)).tolist() == expected


@given(layers(), INTERVALS)
def test_charged_time_is_that_of_a_count_by_the_nanosecond(
    found: list[Layer], intervals: list[tuple[int, int]]
) -> None:
    timeline = build_timeline("feed", 0, SPAN, found, REST)
    expected: dict[Cause, int] = {}
    for start, end in intervals:
        for t in range(start, end):
            cause = cause_at(t, found)
            expected[cause] = expected.get(cause, 0) + 1
    charged = timeline.charge(*arrays(intervals)).tolist()
    assert {c: n for c, n in zip(timeline.causes, charged, strict=True) if n} == expected
    assert sum(charged) == sum(end - start for start, end in intervals)


@given(layers(), INTERVALS)
def test_parts_of_an_interval_add_up_to_it(found: list[Layer], intervals: list[tuple[int, int]]) -> None:
    timeline = build_timeline("feed", 0, SPAN, found, REST)
    owner, cause, time = timeline.parts(*arrays(intervals))
    assert (time > 0).all()
    for number, (start, end) in enumerate(intervals):
        mine = owner == number
        assert int(time[mine].sum()) == end - start
    totals = np.zeros(len(timeline.causes), np.int64)
    np.add.at(totals, cause, time)
    assert totals.tolist() == timeline.charge(*arrays(intervals)).tolist()


CHAIN_TASKS = ((TIDS["strategy"], COMM), (11, b"one"), (12, b"two"), (0, b"swapper/1"))


@st.composite
def broken_chains(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], ThreadReads]:
    """Any switch events at all, in any disorder of links, with any gaps beside them."""
    rows = []
    for t in sorted(draw(st.lists(st.integers(0, 200_000), max_size=25, unique=True))):
        if draw(st.booleans()) and draw(st.booleans()):
            rows.append(event(t_ns=t, kind=2, cpu=1, tid=TIDS["strategy"], comm=COMM))
            continue
        pair = draw(st.lists(st.sampled_from(CHAIN_TASKS), min_size=2, max_size=2, unique=True))
        rows.append(switch(t, draw(st.integers(0, 1)), pair[0], pair[1], draw(st.sampled_from([0, 0x100, 1, 4]))))
    cuts = sorted(draw(st.lists(st.integers(0, 210_000), max_size=20, unique=True)))
    pairs = np.array(list(zip(cuts[::2], cuts[1::2], strict=False)), np.int64).reshape(-1, 2)
    start, end = pairs[:, 0].copy(), pairs[:, 1].copy()
    return events_array(rows), ThreadReads(start, end, (start, end), 0, 210_000, 5_000)


@given(broken_chains())
def test_whatever_the_chain_slices_are_disjoint_and_their_runs_cover_them(
    case: tuple[np.ndarray[Any, Any], ThreadReads],
) -> None:
    events, reads = case
    slices = off_cpu_slices(switch_chain(events), "strategy", TIDS["strategy"], reads, 210_000)
    assert (slices.t_in_ns >= slices.t_out_ns).all()
    assert (slices.t_in_ns[:-1] <= slices.t_out_ns[1:]).all()
    runs = slices.runs
    assert (runs.t_end_ns >= runs.t_start_ns).all()
    for number in range(len(slices)):
        mine = np.flatnonzero(runs.slice_index == number)
        assert runs.t_start_ns[mine[0]] == slices.t_out_ns[number]
        assert runs.t_end_ns[mine[-1]] == slices.t_in_ns[number]
        assert (runs.t_end_ns[mine[:-1]] == runs.t_start_ns[mine[1:]]).all()
    # No slice reaches past an instant at which the thread is known to have run.
    for t in np.concatenate(reads.instants_ns).tolist():
        assert not ((slices.t_out_ns + 1_000 < t) & (t < slices.t_in_ns)).any()
    nothing = Reasons(np.zeros(len(slices), np.int64), ("",))
    layer = slice_layer(slices, SliceWords(nothing, nothing))
    assert (layer.t_start_ns[1:] >= layer.t_end_ns[:-1]).all()
    assert int((layer.t_end_ns - layer.t_start_ns).sum()) == int((slices.t_in_ns - slices.t_out_ns).sum())
