"""Page faults and system calls, of which only the start is known, as a layer."""

from __future__ import annotations

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.reads import ThreadReads
from sysmeter.analysis.traps import MAX_TRAP_NS, WITNESSED_TRAP_NS, fault_areas, trap_layer
from tests.support.kernelevents import TIDS, events_array, fault, syscall

TID = TIDS["strategy"]
NAMES = {"35": "nanosleep", "202": "futex"}
PAGE = 4096
BASE = 0x7F0012345000


def reads(*gaps: tuple[int, int]) -> ThreadReads:
    pairs = np.array(gaps, np.int64).reshape(-1, 2)
    start, end = pairs[:, 0].copy(), pairs[:, 1].copy()
    return ThreadReads(start, end, (start, end), 0, 10_000_000, 5_000)


def layer_of(rows: list[np.void], *gaps: tuple[int, int]) -> list[tuple[int, int, str]]:
    layer = trap_layer(events_array(rows), TID, reads(*gaps), NAMES)
    witnessed = np.array([cause.evidence == causes.WITNESSED for cause in layer.causes], np.bool_)[layer.cause]
    length = layer.t_end_ns - layer.t_start_ns
    assert (length[witnessed] <= WITNESSED_TRAP_NS).all()
    # What is inferred follows a witnessed part of full length.
    assert (length[np.flatnonzero(~witnessed & (length > 0)) - 1] == WITNESSED_TRAP_NS).all()
    return joined(spelled(layer))


def joined(rows: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """The witnessed and the inferred part of one trap as one."""
    whole: list[tuple[int, int, str]] = []
    for start, end, name in rows:
        if whole and whole[-1][1] == start and whole[-1][2] == name:
            whole[-1] = (whole[-1][0], end, name)
        else:
            whole.append((start, end, name))
    return whole


def spelled(layer: Layer) -> list[tuple[int, int, str]]:
    return [
        (start, end, f"{layer.causes[code].cause} {layer.causes[code].detail}")
        for start, end, code in zip(
            layer.t_start_ns.tolist(), layer.t_end_ns.tolist(), layer.cause.tolist(), strict=True
        )
        if end > start
    ]


def test_a_trap_lasts_at_most_until_the_end_of_its_gap() -> None:
    assert layer_of([fault("strategy", 100_500, BASE)], (100_000, 150_000)) == [
        (100_500, 150_000, "page fault at 0x7f0012345000")
    ]


def test_a_trap_lasts_at_most_until_the_next_one() -> None:
    rows = [syscall("strategy", 101_000, 202), fault("strategy", 110_000, BASE), syscall("strategy", 120_000, 35)]
    assert layer_of(rows, (100_000, 130_000)) == [
        (101_000, 110_000, "system call futex"),
        (110_000, 120_000, "page fault at 0x7f0012345000"),
        (120_000, 130_000, "system call nanosleep"),
    ]


def test_a_trap_lasts_at_most_half_a_millisecond() -> None:
    assert layer_of([syscall("strategy", 101_000, 999)], (100_000, 7_000_000)) == [
        (101_000, 101_000 + MAX_TRAP_NS, "system call number 999")
    ]


def test_a_trap_outside_a_gap_was_shorter_than_one_and_takes_nothing() -> None:
    rows = [fault("strategy", 50_000), syscall("strategy", 60_000, 202), fault("strategy", 160_000)]
    assert layer_of(rows, (100_000, 150_000)) == []
    assert layer_of(rows) == []


def test_a_trap_beyond_a_gaps_end_by_less_than_the_clocks_slack_takes_nothing() -> None:
    assert layer_of([fault("strategy", 150_500)], (100_000, 150_000)) == []


def test_each_gap_has_its_own_traps() -> None:
    rows = [syscall("strategy", 110_000, 202), syscall("strategy", 210_000, 35)]
    assert layer_of(rows, (100_000, 150_000), (200_000, 250_000)) == [
        (110_000, 150_000, "system call futex"),
        (210_000, 250_000, "system call nanosleep"),
    ]


def test_others_traps_are_not_the_threads() -> None:
    assert layer_of([fault("feed", 110_000), syscall("feed", 120_000, 1)], (100_000, 150_000)) == []
    assert layer_of([], (100_000, 150_000)) == []


def areas(*addresses: int) -> tuple[list[int], tuple[str, ...]]:
    rows = [fault("strategy", 100 + k, address) for k, address in enumerate(addresses)]
    found, words = fault_areas(np.array(rows, records.KERNEL_EVENT))
    return found.tolist(), words


def test_faults_close_together_are_one_area() -> None:
    assert areas(BASE + 17, BASE + PAGE, BASE + 5 * PAGE) == ([0, 0, 0], ("at 0x7f0012345000 to 0x7f001234afff",))


def test_faults_of_one_page_are_named_by_it() -> None:
    assert areas(BASE + 8, BASE + 800) == ([0, 0], ("at 0x7f0012345000",))


@pytest.mark.parametrize(("distance", "n_areas"), [(1 << 20, 1), ((1 << 20) + PAGE, 2)])
def test_an_area_ends_where_no_fault_comes_within_a_mebibyte(distance: int, n_areas: int) -> None:
    found, words = areas(BASE + distance, BASE)
    assert len(words) == n_areas
    assert found == ([0, 0] if n_areas == 1 else [1, 0])


def test_areas_are_in_order_of_address_also_in_the_upper_half() -> None:
    top = 2**64 - PAGE
    found, words = areas(top, 0, BASE)
    assert found == [2, 0, 1]
    assert words == ("at 0x0", "at 0x7f0012345000", "at 0xfffffffffffff000")


def test_no_fault_has_no_area() -> None:
    assert areas() == ([], ())
