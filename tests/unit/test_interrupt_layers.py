"""Hard interrupts and softirqs as layers: names, nesting, and what is not the thread's."""

from __future__ import annotations

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.interrupts import interrupt_layer, softirq_layer
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.timeline import build_timeline
from tests.support.diagnosed import diagnosed
from tests.support.kernelevents import TIDS, events_array, interrupt, softirq, switch
from tests.support.runs import COMM, T_START, Away, Run, build
from tests.unit.test_slices import reads

TID = TIDS["strategy"]
DEVICES = {"27": "virtio1-req.0"}
READS = reads()


def spelled(layer: Layer) -> list[tuple[int, int, str]]:
    return [
        (start, end, layer.causes[code].detail)
        for start, end, code in zip(
            layer.t_start_ns.tolist(), layer.t_end_ns.tolist(), layer.cause.tolist(), strict=True
        )
    ]


@pytest.mark.parametrize(("kind", "name"), [item for item in records.INTERRUPT_NAMES.items() if item[0] != 1])
def test_each_kind_has_its_name(kind: int, name: str) -> None:
    layer = interrupt_layer(events_array([interrupt("strategy", 100, 20, kind, number=236)]), TID, READS, {})
    assert spelled(layer) == [(100, 120, name)]
    assert layer.causes[0].cause == causes.INTERRUPT
    assert layer.causes[0].evidence == causes.WITNESSED


def test_a_kind_that_this_version_does_not_know_has_its_number() -> None:
    assert spelled(interrupt_layer(events_array([interrupt("strategy", 100, 20, 77)]), TID, READS, {})) == [
        (100, 120, "kind 77")
    ]


def test_devices_are_told_apart_by_number_and_named_where_known() -> None:
    rows = [
        interrupt("strategy", 100 * k, 20, records.INTERRUPT_DEVICE, number)
        for k, number in ((1, 27), (2, 28), (3, 27))
    ]
    layer = interrupt_layer(events_array(rows), TID, READS, DEVICES)
    assert spelled(layer) == [
        (100, 120, "virtio1-req.0 (IRQ 27)"),
        (200, 220, "device (IRQ 28)"),
        (300, 320, "virtio1-req.0 (IRQ 27)"),
    ]
    assert len(layer.causes) == 2


def test_vectors_of_one_kind_are_one_cause() -> None:
    rows = [interrupt("strategy", 100 * k, 20, number=k) for k in (1, 2, 3)]
    assert len(interrupt_layer(events_array(rows), TID, READS, {}).causes) == 1


@pytest.mark.parametrize(("number", "name"), [*enumerate(records.SOFTIRQ_NAMES), (10, "number 10")])
def test_each_softirq_has_its_name(number: int, name: str) -> None:
    layer = softirq_layer(events_array([softirq("strategy", 100, 20, number)]), TID, READS)
    assert [(cause.cause, cause.detail) for cause in layer.causes] == [(causes.SOFTIRQ, name)]


def test_other_threads_and_other_kinds_of_events_are_left_out() -> None:
    rows = [interrupt("feed", 100, 20), softirq("strategy", 200, 20), switch(300, 1, (TID, COMM), (0, b"idle"))]
    assert spelled(interrupt_layer(events_array(rows), TID, READS, {})) == []
    assert spelled(softirq_layer(events_array(rows), TIDS["feed"], READS)) == []
    assert spelled(interrupt_layer(events_array([]), TID, READS, {})) == []


def test_a_length_below_zero_is_none() -> None:
    layer = interrupt_layer(
        events_array([interrupt("strategy", 100, -5), interrupt("strategy", 90, 30)]), TID, READS, {}
    )
    assert spelled(layer) == [(90, 120, "local timer"), (120, 120, "local timer")]


def test_an_interrupt_is_over_when_the_thread_reads_its_clock() -> None:
    """Where an exit was not seen, the next one of this kind would make it last for long."""
    events = events_array([interrupt("strategy", 100, 2**62), interrupt("strategy", 9_000, 20)])
    assert spelled(interrupt_layer(events, TID, reads((50, 8_000)), {}))[0] == (100, 8_000, "local timer")
    assert spelled(softirq_layer(events_array([softirq("strategy", 100, 2**62)]), TID, reads((50, 8_000)))) == [
        (100, 8_000, "TIMER")
    ]


def test_an_interrupt_in_a_softirq_keeps_its_own_time() -> None:
    events = events_array(
        [softirq("strategy", 100, 100, 3), interrupt("strategy", 130, 20), interrupt("strategy", 190, 30)]
    )
    own = causes.Cause(causes.OWN_SERVICE, "", causes.WITNESSED)
    timeline = build_timeline(
        "strategy", 0, 400, [interrupt_layer(events, TID, READS, {}), softirq_layer(events, TID, READS)], own
    )
    times = timeline.charge(np.array([0]), np.array([400]))
    assert {c.detail: t for c, t in zip(timeline.causes, times.tolist(), strict=True) if t} == {
        "": 280,
        "NET_RX": 70,
        "local timer": 50,
    }


MS = 1_000_000


def test_an_interrupt_in_a_preemption_is_charged_once() -> None:
    """Nested events are netted: the task that has the CPU pays for what interrupts it."""
    at = T_START + 8 * MS
    away = Away("strategy", at, 2 * MS, [(99, b"bash", 2 * MS - 2_000)])
    plain = diagnosed(build(Run(away=[away])))
    inside = [interrupt("strategy", at + 500_000, 40_000), softirq("strategy", at + 600_000, 70_000)]
    nested = diagnosed(build(Run(away=[away], extra_events=inside)))
    assert nested["causes"] == plain["causes"]
    assert nested["tail"] == plain["tail"]


def test_an_interrupts_time_and_edges_are_its_own_in_a_run() -> None:
    at = T_START + 8 * MS
    run = Run(away=[Away("strategy", at, 20_000)], extra_events=[interrupt("strategy", at + 4_000, 12_000)])
    result = diagnosed(build(run), 10_000)
    rows = {row["detail"]: row for row in result["causes"] if row["cause"] == causes.INTERRUPT}
    assert set(rows) == {"local timer"}
    assert 12_000 < rows["local timer"]["wall_time_ns"] <= 20_000
    assert result["tail"]["inferred_ns"] == 0
