"""What is left of a gap: edges of what was seen in it, own service, and the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.gapcauses import ENTRY, EXIT, Leftover, Refined, refine
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.reads import ThreadReads
from sysmeter.analysis.threadtime import gap_layer
from sysmeter.analysis.timeline import Timeline, build_timeline

T_END = 10_000_000
OWN = Cause(causes.OWN_SERVICE, "", causes.WITNESSED)
BATCH = Cause(causes.OWN_SERVICE, "of a large batch, at this run's pace", causes.INFERRED)
OUTSIDE = Cause(causes.OUTSIDE_GUEST, "the hypervisor had the CPU", causes.INFERRED)
TICK = Cause(causes.INTERRUPT, "local timer", causes.WITNESSED)
IPI = Cause(causes.INTERRUPT, "reschedule", causes.WITNESSED)
TASK = Cause(causes.PREEMPTED, "bash/99", causes.WITNESSED)
OTHER_TASK = Cause(causes.PREEMPTED, "kworker/1:1/123", causes.WITNESSED)
STALL = Cause(causes.INJECTED_STALL, "", causes.WITNESSED)

Row = tuple[int, int, Cause]


def refined(
    gaps: list[tuple[int, int]],
    seen: list[Row],
    own_ns: list[int] | None = None,
    loop: tuple[int, int] = (0, T_END),
) -> Refined:
    start, end = (np.array(column, np.int64).reshape(-1) for column in (zip(*gaps, strict=True) if gaps else ([], [])))
    reads = ThreadReads(start, end, (start, end), 0, T_END, 5_000)
    seen = sorted(seen, key=lambda row: row[0])
    names = tuple(dict.fromkeys(row[2] for row in seen))
    layer = Layer(
        np.array([row[0] for row in seen], np.int64),
        np.array([row[1] for row in seen], np.int64),
        np.array([names.index(row[2]) for row in seen], np.int64),
        names,
    )
    timeline = build_timeline("strategy", *loop, [layer, gap_layer(reads)], OWN)
    found = refine(timeline, reads, Leftover(OUTSIDE, BATCH, np.array(own_ns or [0] * len(gaps), np.int64)))
    assert int(np.diff(found.timeline.bounds_ns).sum()) == loop[1] - loop[0]
    return found


def spelled(timeline: Timeline) -> list[Row]:
    """The segments that are not the thread's ordinary service, those of one cause joined."""
    rows: list[Row] = []
    for start, end, code in zip(
        timeline.bounds_ns[:-1].tolist(), timeline.bounds_ns[1:].tolist(), timeline.cause.tolist(), strict=True
    ):
        cause = timeline.causes[code]
        if rows and rows[-1][1:] == (start, cause):
            rows[-1] = (rows[-1][0], end, cause)
        elif cause != OWN:
            rows.append((start, end, cause))
    return rows


def allowances(found: Refined, side: str) -> dict[str, tuple[int, int, bool]]:
    return {row.kind: (row.ns, row.n_edges, row.is_pooled) for row in found.allowances if row.side == side}


def test_a_gap_in_which_nothing_was_seen_is_all_rest() -> None:
    assert spelled(refined([(1_000, 80_000)], []).timeline) == [(1_000, 80_000, OUTSIDE)]


def test_without_gaps_nothing_changes() -> None:
    found = refined([], [(1_000, 2_000, TICK)])
    assert spelled(found.timeline) == [(1_000, 2_000, TICK)]


def test_a_tick_takes_its_edges_and_the_theft_before_it_remains() -> None:
    # A steal, and the tick that was due fires at its end: by default 10 µs belong to each edge.
    found = refined([(100_000, 7_000_000)], [(6_980_000, 6_995_000, TICK)])
    assert spelled(found.timeline) == [(100_000, 6_970_000, OUTSIDE), (6_970_000, 7_000_000, TICK)]


def test_edges_longer_than_the_allowance_are_cut_at_it_on_both_sides() -> None:
    found = refined([(100_000, 300_000)], [(150_000, 160_000, TICK)])
    assert spelled(found.timeline) == [
        (100_000, 140_000, OUTSIDE),
        (140_000, 170_000, TICK),
        (170_000, 300_000, OUTSIDE),
    ]


def test_between_two_events_the_exit_comes_first_and_each_takes_its_own() -> None:
    seen = [(100_000, 110_000, TICK), (125_000, 130_000, TASK)]
    assert spelled(refined([(100_000, 130_000)], seen).timeline) == [(100_000, 120_000, TICK), (120_000, 130_000, TASK)]
    seen = [(100_000, 110_000, TICK), (150_000, 160_000, TASK)]
    assert spelled(refined([(100_000, 160_000)], seen).timeline) == [
        (100_000, 120_000, TICK),
        (120_000, 140_000, OUTSIDE),
        (140_000, 160_000, TASK),
    ]


def test_an_injected_stall_has_no_edges() -> None:
    found = refined([(100_000, 200_000)], [(110_000, 150_000, STALL)])
    assert spelled(found.timeline) == [
        (100_000, 110_000, OUTSIDE),
        (110_000, 150_000, STALL),
        (150_000, 200_000, OUTSIDE),
    ]


def test_an_event_before_the_gap_has_no_edge_in_it() -> None:
    # The thread read its clock between the two.
    found = refined([(100_000, 120_000)], [(90_000, 100_000, TICK)])
    assert spelled(found.timeline) == [(90_000, 100_000, TICK), (100_000, 120_000, OUTSIDE)]


def test_touching_gaps_are_two() -> None:
    found = refined([(100_000, 130_000), (130_000, 160_000)], [(101_000, 105_000, TICK)])
    assert spelled(found.timeline) == [(100_000, 115_000, TICK), (115_000, 160_000, OUTSIDE)]


def test_a_gap_across_the_timelines_ends_is_cut_there() -> None:
    found = refined([(0, 50_000), (90_000, 200_000)], [], loop=(20_000, 100_000))
    assert spelled(found.timeline) == [(20_000, 50_000, OUTSIDE), (90_000, 100_000, OUTSIDE)]


def test_own_service_of_a_batch_is_its_share_and_no_more() -> None:
    assert spelled(refined([(100_000, 190_000)], [], [30_000]).timeline) == [
        (100_000, 130_000, BATCH),
        (130_000, 190_000, OUTSIDE),
    ]
    assert spelled(refined([(100_000, 120_000)], [], [30_000]).timeline) == [(100_000, 120_000, BATCH)]


def test_own_service_is_spread_over_the_pieces_of_its_gap_only() -> None:
    gaps = [(100_000, 200_000), (300_000, 400_000)]
    found = refined(gaps, [(110_000, 180_000, STALL)], [25_000, 5_000])
    assert spelled(found.timeline) == [
        (100_000, 110_000, BATCH),
        (110_000, 180_000, STALL),
        (180_000, 195_000, BATCH),
        (195_000, 200_000, OUTSIDE),
        (300_000, 305_000, BATCH),
        (305_000, 400_000, OUTSIDE),
    ]


def ticks(n: int, entry_ns: int, exit_ns: int, cause: Cause = TICK, first_ns: int = 0) -> tuple[list[Any], list[Row]]:
    gaps = [(first_ns + k * 100_000, first_ns + k * 100_000 + entry_ns + 5_000 + exit_ns) for k in range(1, n + 1)]
    return gaps, [(start + entry_ns, end - exit_ns, cause) for start, end in gaps]


@pytest.mark.parametrize(
    ("edge_ns", "allowed_ns"), [(300, 1_000), (499, 1_000), (2_000, 4_000), (24_000, 48_000), (40_000, 50_000)]
)
def test_an_allowance_is_twice_the_upper_quartile_within_bounds(edge_ns: int, allowed_ns: int) -> None:
    gaps, seen = ticks(20, edge_ns, 700)
    found = refined(gaps, seen)
    assert allowances(found, ENTRY) == {"hard interrupt: local timer": (allowed_ns, 20, False)}
    assert allowances(found, EXIT) == {"hard interrupt: local timer": (1_400, 20, False)}


def test_fewer_edges_than_twenty_are_taken_with_those_of_other_kinds() -> None:
    gaps, seen = ticks(19, 2_000, 700)
    assert allowances(refined(gaps, seen), ENTRY) == {"hard interrupt: local timer": (10_000, 19, True)}
    more_gaps, more = ticks(20, 3_000, 700, TASK, 3_000_000)
    found = allowances(refined(gaps + more_gaps, seen + more), ENTRY)
    assert found == {"hard interrupt: local timer": (6_000, 39, True), "preempted": (6_000, 20, False)}


def test_kinds_are_interrupts_by_name_and_what_takes_the_cpu_by_class() -> None:
    seen = [(10_000, 11_000, TICK), (30_000, 31_000, IPI), (50_000, 51_000, TASK), (70_000, 71_000, OTHER_TASK)]
    found = refined([(start - 6_000, end) for start, end, _ in seen], seen)
    assert sorted(allowances(found, ENTRY)) == [
        "hard interrupt: local timer",
        "hard interrupt: reschedule",
        "preempted",
    ]


def test_thefts_fewer_than_a_quarter_do_not_widen_an_allowance() -> None:
    gaps, seen = ticks(40, 2_000, 700)
    stolen = [(start - 60_000 if k % 5 == 0 else start, end) for k, (start, end) in enumerate(gaps)]
    found = refined(stolen, seen)
    assert allowances(found, ENTRY)["hard interrupt: local timer"][0] == 4_000
    outside = sum(end - start for start, end, cause in spelled(found.timeline) if cause == OUTSIDE)
    assert outside == 8 * 58_000


def test_the_edge_beside_two_tasks_has_the_name_of_the_nearer_one() -> None:
    seen = [(102_000, 110_000, TASK), (110_000, 120_000, OTHER_TASK)]
    assert spelled(refined([(100_000, 122_000)], seen).timeline) == [
        (100_000, 110_000, TASK),
        (110_000, 122_000, OTHER_TASK),
    ]
