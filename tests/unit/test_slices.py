"""Off-CPU slices from raw switch chains, whole and broken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sysmeter.analysis.reads import ThreadReads
from sysmeter.analysis.slices import (
    ENDED_GAP_END,
    ENDED_NO_GAP,
    ENDED_RAN_AGAIN,
    ENDED_RUN_END,
    ENDED_SWITCH_IN,
    KINDS,
    NO_TASK,
    Slices,
    off_cpu_slices,
    switch_chain,
)
from tests.support.runs import COMM, CPUS, TIDS, event, events_array, switch

ME = (TIDS["strategy"], COMM)
CPU = CPUS["strategy"]
KWORKER = (123, b"kworker/1:1")
MIGRATION = (18, b"migration/1")
BASH = (99, b"bash")
IDLE = (0, b"swapper/1")
T_END = 10_000_000
THRESHOLD = 5_000


def reads(*gaps: tuple[int, int], instants: tuple[int, ...] = (), loop: tuple[int, int] = (0, T_END)) -> ThreadReads:
    start = np.array([g[0] for g in gaps], np.int64)
    end = np.array([g[1] for g in gaps], np.int64)
    return ThreadReads(start, end, (start, end, np.array(instants, np.int64)), *loop, THRESHOLD)


def slices_of(rows: list[np.void], own: ThreadReads) -> Slices:
    return off_cpu_slices(switch_chain(events_array(rows)), "strategy", ME[0], own, T_END)


def wakeup(t_ns: int) -> np.void:
    return event(t_ns=t_ns, kind=2, cpu=CPU, tid=ME[0], comm=ME[1], other_tid=1, other_comm=b"systemd", value=CPU)


def run_names(found: Slices) -> list[tuple[str, int]]:
    runs = found.runs
    return [
        (found.task_name(int(task), int(then)), int(end - start))
        for task, then, start, end in zip(runs.task, runs.then_task, runs.t_start_ns, runs.t_end_ns, strict=True)
    ]


@pytest.mark.parametrize(
    ("state", "following", "kind"),
    [
        (0, KWORKER, "preempted"),
        (0x100, KWORKER, "preempted"),
        (0x100, IDLE, "throttled"),
        (0x1, IDLE, "voluntary"),
        (0x2, KWORKER, "voluntary"),
        (0x80, IDLE, "voluntary"),
        (0x4, IDLE, "stopped"),
        (0x8, KWORKER, "stopped"),
    ],
)
def test_kind_comes_from_the_state_and_the_next_task(state: int, following: Any, kind: str) -> None:
    rows = [switch(100_000, CPU, ME, following, state), switch(200_000, CPU, following, ME)]
    found = slices_of(rows, reads((99_000, 201_000)))
    assert [KINDS[k] for k in found.kind] == [kind]
    assert (int(found.t_out_ns[0]), int(found.t_in_ns[0])) == (100_000, 200_000)
    assert found.ended.tolist() == [ENDED_SWITCH_IN]


def test_every_task_that_ran_instead_has_its_own_time() -> None:
    rows = [
        switch(100_000, CPU, ME, KWORKER, 0x100),
        switch(130_000, CPU, KWORKER, BASH),
        switch(180_000, CPU, BASH, KWORKER),
        switch(200_000, CPU, KWORKER, ME),
    ]
    found = slices_of(rows, reads((99_000, 201_000)))
    assert run_names(found) == [("kworker/1:1/123", 30_000), ("bash/99", 50_000), ("kworker/1:1/123", 20_000)]
    assert (found.runs.then_task == NO_TASK).all()


def test_a_missing_switch_between_two_others_names_both_and_no_boundary() -> None:
    rows = [
        switch(100_000, CPU, ME, MIGRATION, 0x100),
        # migration -> kworker was not seen
        switch(180_000, CPU, KWORKER, BASH),
        switch(190_000, CPU, BASH, ME),
    ]
    found = slices_of(rows, reads((99_000, 191_000)))
    assert run_names(found) == [
        ("migration/1/18, then kworker/1:1/123 (switch between them not seen)", 80_000),
        ("bash/99", 10_000),
    ]


def test_a_broken_link_at_the_switch_in_names_both() -> None:
    rows = [switch(100_000, CPU, ME, MIGRATION, 0x100), switch(180_000, CPU, KWORKER, ME)]
    found = slices_of(rows, reads((99_000, 181_000)))
    assert run_names(found)[0][0].startswith("migration/1/18, then kworker/1:1/123")
    assert found.ended.tolist() == [ENDED_SWITCH_IN]


def test_a_missing_switch_in_ends_at_the_threads_own_gap_end() -> None:
    rows = [
        switch(100_000, CPU, ME, MIGRATION, 0x100),
        # the switch back was not seen; half a millisecond later the thread leaves again
        switch(600_000, CPU, ME, KWORKER, 0x100),
        switch(650_000, CPU, KWORKER, ME),
    ]
    found = slices_of(rows, reads((99_000, 112_000), (599_000, 651_000)))
    assert found.t_in_ns.tolist() == [112_000, 650_000]
    assert found.ended.tolist() == [ENDED_GAP_END, ENDED_SWITCH_IN]
    assert run_names(found)[0] == ("migration/1/18", 12_000)


def test_a_later_switch_in_does_not_stretch_a_slice_beyond_the_gap() -> None:
    """The switch back and the next switch away were both missed: the own gap is the earliest end."""
    rows = [switch(100_000, CPU, ME, MIGRATION, 0x100), switch(900_000, CPU, KWORKER, ME)]
    found = slices_of(rows, reads((99_000, 112_000), (880_000, 901_000)))
    assert found.t_in_ns.tolist() == [112_000]
    assert found.ended.tolist() == [ENDED_GAP_END]


def test_without_a_gap_a_missing_switch_in_ends_within_two_clock_reads() -> None:
    rows = [switch(100_000, CPU, ME, MIGRATION, 0x100), switch(600_000, CPU, ME, KWORKER, 1)]
    found = slices_of(rows, reads((599_000, 700_000)))
    assert found.t_in_ns.tolist()[0] == 100_000 + THRESHOLD
    assert found.ended.tolist()[0] == ENDED_NO_GAP


def test_outside_the_loop_the_next_thing_the_thread_did_ends_the_slice() -> None:
    rows = [switch(100_000, CPU, ME, MIGRATION, 1), switch(900_000, CPU, ME, KWORKER, 1)]
    own = reads(instants=(40_000, 350_000, 360_000), loop=(300_000, T_END))
    found = slices_of(rows, own)
    assert found.t_in_ns.tolist()[0] == 350_000
    assert found.ended.tolist()[0] == ENDED_RAN_AGAIN


def test_the_next_switch_out_proves_that_the_thread_ran() -> None:
    rows = [switch(100_000, CPU, ME, MIGRATION, 1), switch(900_000, CPU, ME, KWORKER, 1)]
    found = slices_of(rows, reads(loop=(5_000_000, T_END)))
    assert found.t_in_ns.tolist() == [900_000, T_END]
    assert found.ended.tolist() == [ENDED_RAN_AGAIN, ENDED_RUN_END]


def test_a_slice_open_at_the_end_ends_with_the_run() -> None:
    found = slices_of([switch(100_000, CPU, ME, IDLE, 1)], reads(loop=(0, 50_000)))
    assert found.t_in_ns.tolist() == [T_END]
    assert found.ended.tolist() == [ENDED_RUN_END]


def test_a_switch_in_alone_makes_no_slice_and_is_counted() -> None:
    rows = [
        switch(50_000, CPU, KWORKER, ME),
        switch(100_000, CPU, ME, KWORKER, 0x100),
        switch(200_000, CPU, KWORKER, ME),
        switch(400_000, CPU, KWORKER, ME),
    ]
    found = slices_of(rows, reads((99_000, 201_000)))
    assert len(found) == 1
    assert found.t_orphan_in_ns.tolist() == [50_000, 400_000]


def test_clock_reads_within_the_slack_of_the_events_do_not_cut_a_slice() -> None:
    """The gap seems to begin after the switch-out and to end before the switch-in, by nanoseconds."""
    rows = [switch(100_000, CPU, ME, KWORKER, 0x100), switch(200_000, CPU, KWORKER, ME)]
    found = slices_of(rows, reads((100_300, 199_700)))
    assert found.ended.tolist() == [ENDED_SWITCH_IN]
    assert found.t_in_ns.tolist() == [199_700]


def test_the_wakeup_inside_the_slice_is_kept_and_no_other() -> None:
    rows = [
        wakeup(90_000),
        switch(100_000, CPU, ME, IDLE, 1),
        wakeup(170_000),
        switch(200_000, CPU, IDLE, ME),
        switch(300_000, CPU, ME, IDLE, 1),
        switch(400_000, CPU, IDLE, ME),
        wakeup(450_000),
    ]
    found = slices_of(rows, reads((99_000, 201_000), (299_000, 401_000)))
    assert found.t_woken_ns.tolist() == [170_000, -1]


def test_one_switch_can_take_one_measured_thread_out_and_the_other_in() -> None:
    other = (TIDS["feed"], COMM)
    rows = [switch(100_000, CPU, ME, other, 0x100), switch(200_000, CPU, other, ME, 0x100)]
    chain = switch_chain(events_array(rows))
    mine = off_cpu_slices(chain, "strategy", ME[0], reads((99_000, 201_000)), T_END)
    others = off_cpu_slices(chain, "feed", other[0], reads((199_000, 300_000), loop=(0, T_END)), T_END)
    assert run_names(mine) == [("sysmeter-load/2001", 100_000)]
    assert others.t_out_ns.tolist() == [200_000]
    assert others.t_orphan_in_ns.tolist() == [100_000]


def test_a_thread_may_come_back_on_another_cpu() -> None:
    rows = [
        switch(100_000, CPU, ME, KWORKER, 0x100),
        switch(150_000, CPU, KWORKER, BASH),
        switch(200_000, 0, IDLE, ME),
        switch(250_000, CPU, BASH, KWORKER),
    ]
    found = slices_of(rows, reads((99_000, 201_000)))
    assert found.t_in_ns.tolist() == [200_000]
    assert run_names(found) == [("kworker/1:1/123", 50_000), ("bash/99", 50_000)]


def test_a_task_that_changes_its_name_is_named_as_it_was_then() -> None:
    rows = [
        switch(100_000, CPU, ME, (99, b"bash"), 0x100),
        switch(200_000, CPU, (99, b"bash"), ME),
        switch(300_000, CPU, ME, (99, b"sleep"), 0x100),
        switch(400_000, CPU, (99, b"sleep"), ME),
    ]
    found = slices_of(rows, reads((99_000, 201_000), (299_000, 401_000)))
    assert [name for name, _ in run_names(found)] == ["bash/99", "sleep/99"]


def test_a_task_renamed_while_it_ran_is_no_broken_link() -> None:
    rows = [switch(100_000, CPU, ME, (99, b"bash"), 0x100), switch(200_000, CPU, (99, b"sleep"), ME)]
    found = slices_of(rows, reads((99_000, 201_000)))
    assert run_names(found) == [("bash/99", 100_000)]


def test_a_name_that_is_no_text_cannot_reach_the_terminal() -> None:
    evil = (99, b"\x1b[2Jx\xff")
    rows = [switch(100_000, CPU, ME, evil, 0x100), switch(200_000, CPU, evil, ME)]
    found = slices_of(rows, reads((99_000, 201_000)))
    assert run_names(found)[0][0] == "\\x1b[2Jx\\xff/99"


def test_no_events_no_slices() -> None:
    found = slices_of([], reads())
    assert len(found) == 0
    assert len(found.runs.task) == 0


def test_a_switch_in_kernel_code_of_a_thread_in_user_mode_is_a_quota_used_up() -> None:
    rows = [switch(100_000, CPU, ME, BASH, 0x100), switch(200_000, CPU, BASH, ME)]
    own = reads((99_000, 201_000))
    for traps, kind in (
        (np.array([50_000, 98_999], np.int64), "throttled"),  # over before the thread read its clock again
        (np.array([99_500], np.int64), "preempted"),  # it may have been preempted in that call
        (None, "preempted"),  # calls were not recorded, or no group used up a quota
    ):
        found = off_cpu_slices(switch_chain(events_array(rows)), "strategy", ME[0], own, T_END, traps)
        assert KINDS[int(found.kind[0])] == kind
        assert bool(found.is_inferred[0]) == (kind == "throttled")


def test_a_preemption_in_user_mode_is_never_a_quota() -> None:
    rows = [switch(100_000, CPU, ME, BASH, 0), switch(200_000, CPU, BASH, ME)]
    traps = np.empty(0, np.int64)
    found = off_cpu_slices(switch_chain(events_array(rows)), "strategy", ME[0], reads((99_000, 201_000)), T_END, traps)
    assert KINDS[int(found.kind[0])] == "preempted"
