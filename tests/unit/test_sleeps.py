"""Why a thread was off the CPU: the call it slept in, the page it waited for, and who moved it."""

from __future__ import annotations

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis.reads import ThreadReads
from sysmeter.analysis.sleeps import Reasons, moves, sleep_reasons
from sysmeter.analysis.slices import Slices, off_cpu_slices, switch_chain
from tests.support.kernelevents import COMM, CPUS, TIDS, events_array, fault, migration, switch, syscall, wakeup

ME, CPU = (TIDS["strategy"], COMM), CPUS["strategy"]
IDLE, BASH, STOPPER = (0, b"swapper/1"), (99, b"bash"), (18, b"migration/1")
NAMES = {"35": "nanosleep", "202": "futex", "0": "read", "9": "mmap"}
FUTEX, READ, NANOSLEEP, UNKNOWN = 202, 0, 35, 999


def asleep(
    t_ns: int, call: int | None = None, argument: int = 0, state: int = 1, length_ns: int = 50_000
) -> list[np.void]:
    """A switch away, in ``call`` if one is known, and the switch back."""
    out = switch(t_ns, CPU, ME, IDLE, state)
    out["detail"] = 0 if call is None else call + 1
    out["value2"] = argument
    return [out, switch(t_ns + length_ns, CPU, IDLE, ME)]


def reads(*instants: int) -> ThreadReads:
    nothing = np.empty(0, np.int64)
    return ThreadReads(nothing, nothing, (np.array(instants, np.int64),), 0, 10_000_000, 5_000)


def slices_of(rows: list[np.void], own: ThreadReads) -> Slices:
    return off_cpu_slices(switch_chain(events_array(rows)), "strategy", ME[0], own, 10_000_000)


def reasons_of(rows: list[np.void], own: ThreadReads | None = None) -> list[str]:
    own = reads() if own is None else own
    found = sleep_reasons(slices_of(rows, own), events_array(rows), ME[0], NAMES, own)
    assert found.words[0] == ""
    assert len(set(found.words)) == len(found.words)
    return spelled(found)


def spelled(found: Reasons) -> list[str]:
    return [found.words[index] for index in found.index.tolist()]


@pytest.mark.parametrize(
    ("call", "argument", "words"),
    [
        (NANOSLEEP, 5, "in nanosleep"),
        (FUTEX, 0x7F0000003000, "in futex at 0x7f0000003000"),
        (FUTEX, 2**64 - 4096, "in futex at 0xfffffffffffff000"),
        (READ, 7, "in read (fd 7)"),
        (UNKNOWN, 7, "in system call 999"),
    ],
)
def test_a_sleep_is_named_by_the_call_and_what_it_waits_for(call: int, argument: int, words: str) -> None:
    assert reasons_of([syscall("strategy", 99_000, call, argument), *asleep(100_000, call, argument)]) == [words]


def test_each_slice_has_its_own_call() -> None:
    rows = [*asleep(100_000, FUTEX, 0x1000), *asleep(200_000, READ, 3), *asleep(300_000, FUTEX, 0x2000)]
    rows += [*asleep(400_000, FUTEX, 0x1000), *asleep(500_000, NANOSLEEP)]
    assert reasons_of(rows) == [
        "in futex at 0x1000",
        "in read (fd 3)",
        "in futex at 0x2000",
        "in futex at 0x1000",
        "in nanosleep",
    ]


@pytest.mark.parametrize("state", [0, 0x100, 4])
def test_a_slice_that_is_no_sleep_has_no_reason(state: int) -> None:
    assert reasons_of(asleep(100_000, FUTEX, 0x1000, state)) == [""]


def test_without_a_call_nothing_is_said() -> None:
    assert reasons_of(asleep(100_000)) == [""]
    assert reasons_of([]) == []


def test_a_fault_after_the_call_is_what_the_thread_slept_in() -> None:
    rows = [syscall("strategy", 90_000, FUTEX), fault("strategy", 99_500, 0x7F0012345008), *asleep(100_000, FUTEX)]
    assert reasons_of(rows) == ["in a page fault at 0x7f0012345008"]


def test_a_fault_before_the_call_is_not() -> None:
    rows = [fault("strategy", 90_000), syscall("strategy", 99_500, NANOSLEEP), *asleep(100_000, NANOSLEEP)]
    assert reasons_of(rows) == ["in nanosleep"]


def test_a_fault_in_kernel_mode_is_a_part_of_its_call() -> None:
    in_kernel = fault("strategy", 99_700, flags=records.FLAG_KERNEL_MODE)
    rows = [syscall("strategy", 99_500, READ, 4), in_kernel, *asleep(100_000, READ, 4)]
    assert reasons_of(rows) == ["in read (fd 4)"]


def test_a_fault_that_the_thread_came_back_from_is_no_reason() -> None:
    """Where system calls are not recorded, the last fault may be of any time before."""
    rows = [fault("strategy", 20_000), *asleep(100_000)]
    assert reasons_of(rows, reads(95_000)) == [""]
    assert reasons_of(rows, reads(19_000)) == ["in a page fault at 0x7f0012345000"]
    rows = [syscall("strategy", 10_000, FUTEX), fault("strategy", 20_000), *asleep(100_000, FUTEX)]
    assert reasons_of(rows, reads(95_000)) == [""]


def moves_of(rows: list[np.void]) -> list[str]:
    return spelled(moves(slices_of(rows, reads()), events_array(rows), ME[0]))


def preempted(t_ns: int, back_on: int = CPU) -> list[np.void]:
    return [switch(t_ns, CPU, ME, STOPPER, 0x100), switch(t_ns + 50_000, back_on, IDLE, ME)]


def test_a_move_names_both_cpus_and_who_carried_it_out() -> None:
    rows = [*preempted(100_000, 0), migration("strategy", 110_000, 1, 0, STOPPER)]
    assert moves_of(rows) == ["CPU 1 -> 0, moved by migration/1/18"]


def test_of_several_moves_in_a_slice_the_last_one_counts() -> None:
    rows = [*preempted(100_000), *(migration("strategy", 110_000 + k, k % 2, 1 - k % 2, STOPPER) for k in range(4))]
    assert moves_of(rows) == ["CPU 1 -> 0, moved by migration/1/18"]


def test_only_the_slice_with_the_move_is_one() -> None:
    rows = [*preempted(100_000), *preempted(200_000, 0), *preempted(300_000)]
    rows.append(migration("strategy", 210_000, 1, 0, BASH))
    assert moves_of(rows) == ["", "CPU 1 -> 0, moved by bash/99", ""]


def test_a_sleeper_that_is_woken_elsewhere_was_waiting_anyway() -> None:
    rows = [*asleep(100_000, NANOSLEEP), migration("strategy", 110_000, 1, 0, BASH), wakeup("strategy", 111_000)]
    assert moves_of(rows) == [""]


def test_a_move_outside_the_slices_and_of_others_is_none() -> None:
    rows = [*preempted(100_000), migration("strategy", 90_000, 1, 0, BASH), migration("strategy", 160_000, 1, 0, BASH)]
    rows.append(migration("feed", 110_000, 0, 1, BASH))
    assert moves_of(rows) == [""]
