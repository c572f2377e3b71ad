"""Off-CPU slices in words: who had the CPU, what was slept in, moves, and sysmeter's own tasks."""

from __future__ import annotations

import numpy as np
import pytest

from sysmeter.analysis import causes
from sysmeter.analysis.offcpulayer import SliceWords, slice_layer
from sysmeter.analysis.sleeps import Reasons, moves
from sysmeter.analysis.slices import Slices
from tests.support.kernelevents import COMM, CPUS, TIDS, events_array, migration, switch
from tests.unit.test_slices import BASH, IDLE, KWORKER, T_END, reads, slices_of, wakeup

ME, CPU = (TIDS["strategy"], COMM), CPUS["strategy"]
OBSERVER = (55, b"sysmeter")
STOPPER = (18, b"migration/1")

Row = tuple[int, int, str, str]


def rows_of(slices: Slices, words: SliceWords) -> list[Row]:
    layer = slice_layer(slices, words)
    assert (layer.t_start_ns[1:] >= layer.t_end_ns[:-1]).all()
    assert int((layer.t_end_ns - layer.t_start_ns).sum()) == int((slices.t_in_ns - slices.t_out_ns).sum())
    assert all(cause.evidence == causes.WITNESSED for cause in layer.causes)
    return [
        (start, end, *layer.causes[code][:2])
        for start, end, code in zip(
            layer.t_start_ns.tolist(), layer.t_end_ns.tolist(), layer.cause.tolist(), strict=True
        )
    ]


def spelled(rows: list[np.void], *gaps: tuple[int, int], sleeps: tuple[str, ...] = (), **words: object) -> list[Row]:
    """``sleeps`` are the reasons of the slices, in their order."""
    slices = slices_of(rows, reads(*gaps))
    reasons = ("", *dict.fromkeys(word for word in sleeps if word))
    index = np.array([reasons.index(word) for word in sleeps] or [0] * len(slices), np.int64)
    moved = moves(slices, events_array(rows), ME[0])
    return rows_of(slices, SliceWords(Reasons(index, reasons), moved, **words))  # type: ignore[arg-type]


def there_and_back(t_ns: int, task: tuple[int, bytes], state: int) -> list[np.void]:
    return [switch(t_ns, CPU, ME, task, state), switch(t_ns + 50_000, CPU, task, ME)]


def test_a_sleep_has_its_reason_and_then_waits_for_the_cpu() -> None:
    rows = [
        switch(100_000, CPU, ME, IDLE, 1),
        wakeup(160_000),
        switch(162_000, CPU, IDLE, BASH),
        switch(200_000, CPU, BASH, ME),
    ]
    assert spelled(rows, (99_000, 201_000), sleeps=("in nanosleep",)) == [
        (100_000, 160_000, "voluntary", "in nanosleep"),
        (160_000, 162_000, "run queue", "idle"),
        (162_000, 200_000, "run queue", "bash/99"),
    ]


def test_an_unknown_reason_and_an_unseen_wakeup_are_said() -> None:
    ((_, _, cause, detail),) = spelled(there_and_back(100_000, IDLE, 1), (99_000, 151_000))
    assert cause == "voluntary"
    assert detail == "asleep, in which system call is not known, or waiting to run after it (no wake-up seen)"


@pytest.mark.parametrize(
    ("task", "state", "cause", "detail"),
    [
        (KWORKER, 0x100, "preempted", "kworker/1:1/123"),
        (BASH, 0, "preempted", "bash/99"),
        (IDLE, 0x100, "throttled", "CPU quota used up"),
        (IDLE, 4, "stopped", "stopped, or waiting to run after it (no wake-up seen)"),
    ],
)
def test_each_kind_of_slice(task: tuple[int, bytes], state: int, cause: str, detail: str) -> None:
    rows = there_and_back(100_000, task, state)
    assert spelled(rows, (99_000, 151_000)) == [(100_000, 150_000, cause, detail)]


def test_tasks_that_took_over_from_each_other_each_have_their_time() -> None:
    rows = [
        switch(100_000, CPU, ME, KWORKER, 0x100),
        switch(130_000, CPU, KWORKER, BASH),
        switch(150_000, CPU, BASH, ME),
    ]
    assert spelled(rows, (99_000, 151_000)) == [
        (100_000, 130_000, "preempted", "kworker/1:1/123"),
        (130_000, 150_000, "preempted", "bash/99"),
    ]


def test_an_end_that_was_not_seen_is_marked() -> None:
    assert spelled([switch(100_000, CPU, ME, BASH, 0x100)], (99_000, 150_000))[0][2:] == (
        "preempted",
        "bash/99 (return not seen; end by own clock)",
    )
    assert spelled([switch(100_000, CPU, ME, BASH, 0x100)])[0] == (
        100_000,
        105_000,
        "preempted",
        "bash/99 (return not seen; end by own clock)",
    )
    slices = slices_of([switch(T_END - 100, CPU, ME, BASH, 0x100)], reads((T_END - 200, T_END + 1), loop=(0, T_END)))
    nothing = Reasons(np.zeros(1, np.int64), ("",))
    assert rows_of(slices, SliceWords(nothing, nothing))[0][3].startswith("bash/99 (")


def test_a_move_is_the_cause_since_its_mover_had_the_cpu() -> None:
    rows = [
        switch(100_000, CPU, ME, STOPPER, 0x100),
        migration("strategy", 104_000, 1, 0, STOPPER),
        switch(105_000, CPU, STOPPER, BASH),
        switch(150_000, 0, KWORKER, ME),
    ]
    assert spelled(rows, (99_000, 151_000)) == [
        (100_000, 150_000, "migration", "CPU 1 -> 0, moved by migration/1/18"),
    ]


def test_who_had_the_cpu_before_a_move_keeps_that_time() -> None:
    rows = [
        switch(100_000, CPU, ME, BASH, 0x100),
        migration("strategy", 140_000, 1, 0, KWORKER),  # from another CPU, while the thread is queued
        switch(150_000, 0, KWORKER, ME),
    ]
    assert spelled(rows, (99_000, 151_000)) == [
        (100_000, 140_000, "preempted", "bash/99"),
        (140_000, 150_000, "migration", "CPU 1 -> 0, moved by kworker/1:1/123"),
    ]


def test_a_move_that_was_not_recorded_is_no_quota() -> None:
    rows = [
        switch(100_000, CPU, ME, STOPPER, 0x100),
        switch(103_000, CPU, STOPPER, IDLE, 1),
        switch(150_000, 0, KWORKER, ME),
    ]
    assert spelled(rows, (99_000, 151_000)) == [
        (100_000, 150_000, "migration", "CPU 1 -> 0, by whom was not seen"),
    ]


def test_a_slice_without_a_move_keeps_its_tasks_beside_one_that_has_it() -> None:
    rows = [*there_and_back(100_000, BASH, 0x100), *there_and_back(200_000, STOPPER, 0x100)]
    rows.append(migration("strategy", 210_000, 1, 0, STOPPER))
    found = spelled(rows, (99_000, 151_000), (199_000, 251_000))
    assert [row[2:] for row in found] == [
        ("preempted", "bash/99"),
        ("migration", "CPU 1 -> 0, moved by migration/1/18"),
    ]


def test_sysmeters_own_tasks_are_a_cause_of_their_own() -> None:
    rows = [
        switch(100_000, CPU, ME, OBSERVER, 0x100),
        switch(120_000, CPU, OBSERVER, BASH),
        switch(150_000, CPU, BASH, ME),
    ]
    assert spelled(rows, (99_000, 151_000), own_tasks={OBSERVER[0]: "the observer"}) == [
        (100_000, 120_000, "sysmeter itself", "the observer, sysmeter/55"),
        (120_000, 150_000, "preempted", "bash/99"),
    ]


def test_waiting_for_a_cpu_that_sysmeter_has_is_sysmeters_too() -> None:
    rows = [switch(100_000, CPU, ME, OBSERVER, 1), wakeup(110_000), switch(150_000, CPU, OBSERVER, ME)]
    found = spelled(rows, (99_000, 151_000), sleeps=("in nanosleep",), own_tasks={OBSERVER[0]: "the observer"})
    assert found == [
        (100_000, 110_000, "voluntary", "in nanosleep"),
        (110_000, 150_000, "sysmeter itself", "the observer, sysmeter/55"),
    ]


def test_an_own_task_and_one_that_followed_unseen_are_not_charged_to_sysmeter() -> None:
    rows = [switch(100_000, CPU, ME, OBSERVER, 0x100), switch(150_000, CPU, BASH, ME)]
    ((_, _, cause, detail),) = spelled(rows, (99_000, 151_000), own_tasks={OBSERVER[0]: "the observer"})
    assert cause == "preempted"
    assert detail == "sysmeter/55, then bash/99 (switch between them not seen)"


def test_a_reason_may_be_a_class_of_its_own() -> None:
    lock = {"in futex at 0x1000": (causes.INTERPRETER_LOCK, "of the interpreter")}
    rows = [*there_and_back(100_000, IDLE, 1), *there_and_back(200_000, IDLE, 1)]
    found = spelled(
        rows, (99_000, 151_000), (199_000, 251_000), sleeps=("in futex at 0x1000", "in nanosleep"), sleep_causes=lock
    )
    assert [row[2] for row in found] == ["interpreter lock", "voluntary"]
    assert found[0][3].startswith("of the interpreter, or waiting to run")


def test_no_slices_no_layer() -> None:
    assert spelled([]) == []


def test_names_of_tasks_are_printable() -> None:
    found = spelled(there_and_back(100_000, (7, b"a\x1b[2Jb"), 0x100), (99_000, 151_000))
    assert found[0][3] == "a\\x1b[2Jb/7"


def test_two_names_of_one_tid_are_two_tasks() -> None:
    """A tid may be used again, or its task change its name."""
    rows = [*there_and_back(100_000, (99, b"bash"), 0x100), *there_and_back(200_000, (99, b"make"), 0x100)]
    found = spelled(rows, (99_000, 151_000), (199_000, 251_000))
    assert [row[3] for row in found] == ["bash/99", "make/99"]
