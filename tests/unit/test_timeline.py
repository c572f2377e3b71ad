"""Timelines: which layer wins, and what each stretch is called."""

from __future__ import annotations

import numpy as np

from sysmeter import records
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.timeline import (
    Layer,
    Timeline,
    build_timeline,
    own_service,
    slice_layer,
    stall_layer,
    thread_timeline,
)
from tests.support.runs import COMM, CPUS, TIDS, switch
from tests.unit.test_slices import BASH, IDLE, KWORKER, reads, slices_of, wakeup

ME, CPU = (TIDS["strategy"], COMM), CPUS["strategy"]
META = {"settings": {"gap_threshold_ns": 5_000}, "edges": {}}


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


def test_the_slice_wins_and_the_rest_of_the_gap_is_not_classified() -> None:
    rows = [switch(101_000, CPU, ME, KWORKER, 0x100), switch(120_000, CPU, KWORKER, ME)]
    own = reads((100_000, 7_000_000))
    timeline = thread_timeline(META, own, slices_of(rows, own), 0, 8_000_000)
    assert spelled(timeline) == [
        (0, 100_000, "own service", "witnessed"),
        (100_000, 101_000, "gap: not yet classified", "unexplained"),
        (101_000, 120_000, "preempted: kworker/1:1/123", "witnessed"),
        (120_000, 7_000_000, "gap: not yet classified", "unexplained"),
        (7_000_000, 8_000_000, "own service", "witnessed"),
    ]


def test_a_sleep_turns_into_waiting_at_the_wakeup() -> None:
    rows = [
        switch(100_000, CPU, ME, IDLE, 1),
        wakeup(160_000),
        switch(162_000, CPU, IDLE, BASH),
        switch(200_000, CPU, BASH, ME),
    ]
    layer = slice_layer(slices_of(rows, reads((99_000, 201_000))))
    assert [
        (s, e, layer.causes[c][:2]) for s, e, c in zip(layer.t_start_ns, layer.t_end_ns, layer.cause, strict=True)
    ] == [
        (100_000, 160_000, ("voluntary", "asleep")),
        (160_000, 162_000, ("run queue", "idle")),
        (162_000, 200_000, ("run queue", "bash/99")),
    ]


def test_throttling_and_stops_are_causes_of_their_own() -> None:
    rows = [
        switch(100_000, CPU, ME, IDLE, 0x100),
        switch(200_000, CPU, IDLE, ME),
        switch(300_000, CPU, ME, IDLE, 4),
        wakeup(390_000),
        switch(400_000, CPU, IDLE, ME),
    ]
    layer = slice_layer(slices_of(rows, reads((99_000, 201_000), (299_000, 401_000))))
    assert [layer.causes[c][:2] for c in layer.cause] == [
        ("throttled", "CPU quota used up"),
        ("stopped", "by a signal or tracer"),
        ("run queue", "idle"),
    ]


def test_a_sleep_without_a_wakeup_does_not_pretend_to_know_when_it_ended() -> None:
    rows = [switch(100_000, CPU, ME, IDLE, 1), switch(200_000, CPU, IDLE, ME)]
    layer = slice_layer(slices_of(rows, reads((99_000, 201_000))))
    assert [layer.causes[c].detail for c in layer.cause] == ["asleep, or waiting to run after it (no wake-up seen)"]


def test_an_end_that_was_not_seen_is_marked() -> None:
    rows = [switch(100_000, CPU, ME, KWORKER, 0x100)]
    layer = slice_layer(slices_of(rows, reads((99_000, 150_000))))
    assert layer.causes[int(layer.cause[0])].detail == "kworker/1:1/123 (return not seen; end by own clock)"


def test_reading_the_witnesses_is_charged_to_sysmeter() -> None:
    edge = {"t_before_ns": 1_000_000, "t_after_ns": 1_030_000}
    meta = {**META, "edges": {"strategy": {"open": edge, "close": None}}}
    own = reads((999_000, 1_031_000))
    timeline = thread_timeline(meta, own, slices_of([], own), 0, 2_000_000)
    assert [row[2] for row in spelled(timeline)] == [
        "own service",
        "gap: not yet classified",
        "sysmeter itself: reading the witnesses at the window's edge",
        "gap: not yet classified",
        "own service",
    ]


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
    rows = [switch(101_000, CPU, ME, KWORKER, 0x100), switch(120_000, CPU, KWORKER, ME)]
    own = reads((100_000, 130_000))
    stalls = np.array([(50_000, 75_000, 9)], records.STALL)
    meta = {"settings": {"gap_threshold_ns": 5_000}, "edges": {}}
    timeline = thread_timeline(meta, own, slices_of(rows, own), 0, 200_000, [stall_layer(stalls, 60_000)])
    in_stall = [(50_000, 100_000), (100_000, 101_000), (101_000, 110_000)]
    assert spelled(timeline) == [
        (0, 50_000, "own service", "witnessed"),
        *((start, end, "injected stall: asked for with --stall-every", "witnessed") for start, end in in_stall),
        (110_000, 120_000, "preempted: kworker/1:1/123", "witnessed"),
        (120_000, 130_000, "gap: not yet classified", "unexplained"),
        (130_000, 200_000, "own service", "witnessed"),
    ]
