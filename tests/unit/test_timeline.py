"""Timelines: which layer wins, and what each stretch is called."""

from __future__ import annotations

import numpy as np

from sysmeter import records
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.offcpulayer import SliceWords, slice_layer
from sysmeter.analysis.sleeps import Reasons
from sysmeter.analysis.threadtime import gap_layer, own_service, stall_layer
from sysmeter.analysis.timeline import Timeline, build_timeline
from tests.support.kernelevents import COMM, CPUS, TIDS, switch
from tests.unit.test_slices import KWORKER, reads, slices_of

ME, CPU = (TIDS["strategy"], COMM), CPUS["strategy"]


def spelled(timeline: Timeline) -> list[tuple[int, int, str, str]]:
    rows = []
    for start, end, code in zip(
        timeline.bounds_ns[:-1].tolist(),
        timeline.bounds_ns[1:].tolist(),
        timeline.cause.tolist(),
        strict=True,
    ):
        cause = timeline.causes[code]
        rows.append((start, end, f"{cause.cause}: {cause.detail}".removesuffix(": "), cause.evidence))
    return rows


def test_own_service_is_no_claim_where_long_gaps_were_not_kept() -> None:
    assert own_service(5_000, 5_000).evidence == "witnessed"
    assert "20.0 µs apart" in own_service(20_000, 5_000).detail
    assert own_service(50_001, 5_000).evidence == "unexplained"


def test_charge_counts_an_overlap_once_for_each_interval() -> None:
    away = Layer(np.array([10]), np.array([20]), np.array([0]), (Cause("gap", "", "unexplained"),))
    timeline = build_timeline("feed", 0, 100, [away], Cause("own service", "", "witnessed"))
    times = timeline.charge(np.array([0, 15, 50]), np.array([30, 18, 50]))
    assert dict(zip([c.cause for c in timeline.causes], times.tolist(), strict=True)) == {
        "own service": 20,
        "gap": 13,
    }


def test_sums_beyond_64_bits_stay_exact() -> None:
    """A million samples a day after the start: the cumulative sums wrap, the differences do not."""
    day = 86_400 * 10**9
    away = Layer(np.array([day]), np.array([day + 7]), np.array([0]), (Cause("gap", "", "unexplained"),))
    timeline = build_timeline("feed", 0, 2 * day, [away], Cause("own service", "", "witnessed"))
    n = 1_000_000
    times = timeline.charge(np.full(n, day - 1), np.full(n, day + 10))
    assert times.tolist() == [4 * n, 7 * n]


def test_a_stall_comes_first_and_what_exceeds_it_is_the_hosts() -> None:
    rows = [switch(101_000, CPU, ME, KWORKER, 0), switch(120_000, CPU, KWORKER, ME)]
    own = reads((100_000, 130_000))
    slices = slices_of(rows, own)
    nothing = Reasons(np.zeros(len(slices), np.int64), ("",))
    stalls = np.array([(50_000, 75_000, 9)], records.STALL)
    layers = [stall_layer(stalls, 60_000), slice_layer(slices, SliceWords(nothing, nothing)), gap_layer(own)]
    timeline = build_timeline("strategy", 0, 200_000, layers, own_service(5_000, 5_000))
    in_stall = [(50_000, 100_000), (100_000, 101_000), (101_000, 110_000)]
    assert spelled(timeline) == [
        (0, 50_000, "own service", "witnessed"),
        *((start, end, "injected stall: asked for with --stall-every", "witnessed") for start, end in in_stall),
        (110_000, 120_000, "preempted: kworker/1:1/123", "witnessed"),
        (120_000, 130_000, "gap", "unexplained"),
        (130_000, 200_000, "own service", "witnessed"),
    ]
