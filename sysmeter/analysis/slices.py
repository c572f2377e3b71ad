"""Off-CPU slices of a measured thread, assembled from the raw chain of switch events.

A slice opens at the thread's switch-out and ends at its switch-in. That event may be missing: switches whose task that
leaves is one of a few of the system's own reach no BPF program on some hosts, with nothing reported lost. So a slice
lasts until its switch-in, or until what comes first: the next instant at which the thread is known to have run (the end
of its own gap above all), or the end of the run; which one is marked.

What ran instead is read off the same chain: every switch on a CPU that a watched thread has left is
recorded. Where the next task of one event is not the previous task of the following one, a switch between
them was not seen, and both tasks are named without a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.causes import Task, printable_comm
from sysmeter.analysis.reads import CLOCK_SLACK_NS, NEVER_NS, ThreadReads, column

if TYPE_CHECKING:
    import numpy.typing as npt

# What prev_state of sched_switch tells. Source: include/trace/events/sched.h and kernel/sched/core.c.
STATE_STOPPED = 0x4
STATE_TRACED = 0x8
STATE_PREEMPTED = 0x100

KIND_VOLUNTARY, KIND_PREEMPTED, KIND_THROTTLED, KIND_STOPPED = range(4)
KINDS = ("voluntary", "preempted", "throttled", "stopped")

ENDED_SWITCH_IN, ENDED_GAP_END, ENDED_RAN_AGAIN, ENDED_NO_GAP, ENDED_RUN_END = range(5)
ENDED = ("switch_in", "gap_end", "ran_again", "no_gap", "run_end")

NO_TASK = -1


@dataclass(frozen=True)
class Runs:
    """Who ran while the thread was off the CPU: int64 arrays of one length, in order of slice and time.

    Run ``r`` belongs to slice ``slice_index[r]`` and lies in ``[t_start_ns[r], t_end_ns[r])``; the runs of a
    slice cover it. ``task`` is an index into the slices' ``tasks``. ``then_task`` is :data:`NO_TASK`, or the
    task that followed within the run at an instant nobody saw.
    """

    slice_index: npt.NDArray[np.int64]
    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]
    task: npt.NDArray[np.int64]
    then_task: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Slices:
    """The off-CPU slices of one thread, by time and disjoint: int64 arrays of one length.

    ``kind`` indexes :data:`KINDS`, ``ended`` :data:`ENDED`. ``t_woken_ns`` is the first wake-up seen inside
    the slice, or -1. ``cpu`` is the one the thread left, ``cpu_back`` the one it came back on, -1 where that was not
    seen. ``syscall`` is the number of the last system call that the thread had entered at its switch-out,
    -1 where none is known, and ``argument`` that call's first argument. ``is_inferred`` marks kinds that are concluded
    and not read off the event.

    ``t_orphan_in_ns`` are switch-ins without a switch-out before, as one is seen when the
    probes were attached meanwhile: no slice is made of them.
    """

    thread: str
    t_out_ns: npt.NDArray[np.int64]
    t_in_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    ended: npt.NDArray[np.int64]
    t_woken_ns: npt.NDArray[np.int64]
    cpu: npt.NDArray[np.int64]
    cpu_back: npt.NDArray[np.int64]
    syscall: npt.NDArray[np.int64]
    argument: npt.NDArray[np.int64]
    is_inferred: npt.NDArray[np.bool_]
    runs: Runs
    tasks: tuple[Task, ...]
    t_orphan_in_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.t_out_ns)

    def task_name(self, task: int, then_task: int = NO_TASK) -> str:
        """The name of a run's task, or of both where the switch between them was not seen."""
        name = self.tasks[task].name
        if then_task == NO_TASK:
            return name
        return f"{name}, then {self.tasks[then_task].name} (switch between them not seen)"


def classify(prev_state: npt.NDArray[np.int64], next_tid: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The kind of each switch-out, as an index into :data:`KINDS`.

    0 and 0x100 alone mean that the task could have run on; 0x100 with the idle task next is a CPU quota used
    up (there was nobody to be preempted by). 0x4 is a stop signal, 0x8 a tracer. Anything else is a sleep.
    """
    kind = np.full(len(prev_state), KIND_VOLUNTARY, np.int64)
    kind[(prev_state & (STATE_STOPPED | STATE_TRACED)) != 0] = KIND_STOPPED
    kind[(prev_state == 0) | (prev_state == STATE_PREEMPTED)] = KIND_PREEMPTED
    kind[(prev_state == STATE_PREEMPTED) & (next_tid == 0)] = KIND_THROTTLED
    return kind


@dataclass(frozen=True)
class SwitchChain:
    """All switch events, by time, and the wake-ups; what the slices of every thread are made from.

    ``previous`` and ``following`` are for each switch the index of its tasks in ``tasks``.
    """

    switches: npt.NDArray[Any]
    wakeups: npt.NDArray[Any]
    t_ns: npt.NDArray[np.int64]
    tasks: tuple[Task, ...]
    previous: npt.NDArray[np.int64]
    following: npt.NDArray[np.int64]


def switch_chain(events: npt.NDArray[Any]) -> SwitchChain:
    """Pick the chain out of the kernel events (``records.KERNEL_EVENT``, by time)."""
    switches = events[events["kind"] == records.EVENT_SWITCH]
    wakeups = events[events["kind"] == records.EVENT_WAKEUP]
    return SwitchChain(switches, wakeups, column(switches, "t_ns"), *_tasks(switches))


def off_cpu_slices(
    chain: SwitchChain,
    thread: str,
    tid: int,
    reads: ThreadReads,
    t_end_ns: int,
    t_traps_ns: npt.NDArray[np.int64] | None = None,
) -> Slices:
    """Assemble the slices of the thread ``tid``.

    Args:
        chain: the switch events of all watched threads.
        thread: the thread's name, kept in the result.
        tid: the thread as the kernel numbers it.
        reads: what the thread's own clock reads prove.
        t_end_ns: end of what was recorded; slices still open end there.
        t_traps_ns: when the thread entered the kernel by a system call or a fault, ascending; None: not known.
    """
    switches, t_ns = chain.switches, chain.t_ns
    out_at = np.flatnonzero(switches["tid"] == tid)
    in_at = np.flatnonzero(switches["other_tid"] == tid)
    t_out = t_ns[out_at]

    # The switch-in of a slice is the first one after its switch-out and before the next switch-out.
    next_out_at = np.append(out_at[1:], len(switches))
    candidate = np.searchsorted(in_at, out_at, side="right")
    seen_in = candidate < len(in_at)
    seen_in[seen_in] = in_at[candidate[seen_in]] < next_out_at[seen_in]
    t_in = np.full(len(out_at), NEVER_NS, np.int64)
    t_in[seen_in] = t_ns[in_at[candidate[seen_in]]]

    ran_again = np.minimum(reads.first_after(t_out), np.append(t_out[1:], NEVER_NS))
    end, ended = _ends(t_out, t_in, ran_again, reads, t_end_ns)

    t_wakeup = column(chain.wakeups[chain.wakeups["tid"] == tid], "t_ns")
    first_wakeup = np.searchsorted(t_wakeup, t_out, side="right")
    t_woken = np.full(len(out_at), -1, np.int64)
    woken = first_wakeup < len(t_wakeup)
    t_woken[woken] = t_wakeup[first_wakeup[woken]]
    t_woken[t_woken >= end] = -1

    cpu_back = np.full(len(out_at), -1, np.int64)
    cpu_back[seen_in] = column(switches, "cpu")[in_at[candidate[seen_in]]]
    cpu_back[ended != ENDED_SWITCH_IN] = -1

    state = column(switches, "value")[out_at]
    kind = classify(state, column(switches, "other_tid")[out_at])
    throttled = _throttled_in_user_mode(kind, state, t_out, reads, t_traps_ns)
    kind[throttled] = KIND_THROTTLED

    runs = _runs(chain, out_at, end)
    return Slices(
        thread,
        t_out,
        end,
        kind,
        ended,
        t_woken,
        column(switches, "cpu")[out_at],
        cpu_back,
        column(switches, "detail")[out_at] - 1,
        column(switches, "value2")[out_at],
        throttled,
        runs,
        chain.tasks,
        t_ns[_without(in_at, candidate[seen_in])],
    )


def _throttled_in_user_mode(
    kind: npt.NDArray[np.int64],
    state: npt.NDArray[np.int64],
    t_out: npt.NDArray[np.int64],
    reads: ThreadReads,
    t_traps_ns: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.bool_]:
    """Which slices are a CPU quota used up although somebody else ran next.

    A thread that is preempted in user mode is switched on the way back there, in state 0. 0x100 is a switch in the
    middle of kernel code. A thread that has entered the kernel by no call and no fault since it last read its clock
    meets such a switch only in work that is done on the way back, and throttling is such work (Linux 6.18,
    kernel/sched/fair.c, throttle_cfs_rq_work; before, the idle task or another group's task simply comes next).
    """
    found = np.zeros(len(kind), np.bool_)
    if t_traps_ns is None:
        return found
    gap = reads.gap_of(t_out)
    candidate = np.flatnonzero((kind == KIND_PREEMPTED) & (state == STATE_PREEMPTED) & (gap >= 0))
    t_read = reads.gap_start_ns[gap[candidate]]
    entered = np.searchsorted(t_traps_ns, t_out[candidate], side="right") - np.searchsorted(t_traps_ns, t_read)
    found[candidate[entered == 0]] = True
    return found


def _ends(
    t_out: npt.NDArray[np.int64],
    t_in: npt.NDArray[np.int64],
    ran_again: npt.NDArray[np.int64],
    reads: ThreadReads,
    t_end_ns: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    gap = reads.gap_of(t_out)
    gap_end = np.full(len(t_out), NEVER_NS, np.int64)
    gap_end[gap >= 0] = reads.gap_end_ns[gap[gap >= 0]]
    ran_again = np.minimum(ran_again, gap_end)

    end = np.minimum(t_in, ran_again)
    ended = np.where(ran_again == gap_end, ENDED_GAP_END, ENDED_RAN_AGAIN)
    # A read marginally before the switch-in is the two clocks' disagreement, not evidence against the event.
    ended[(t_in != NEVER_NS) & (t_in - CLOCK_SLACK_NS <= ran_again)] = ENDED_SWITCH_IN

    # No switch-in, and no gap either: the thread was back within two of its clock reads.
    bound = t_out + reads.resolution_ns
    unseen = (t_in == NEVER_NS) & (end > bound) & reads.provably_in_no_gap(t_out)
    end[unseen] = bound[unseen]
    ended[unseen] = ENDED_NO_GAP

    open_end = end == NEVER_NS
    end[open_end] = np.maximum(t_out[open_end], t_end_ns)
    ended[open_end] = ENDED_RUN_END
    return end, ended.astype(np.int64)


def _tasks(
    switches: npt.NDArray[Any],
) -> tuple[tuple[Task, ...], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct tasks, and for each switch the index of the previous and of the next one."""
    n = len(switches)
    tids = np.concatenate((switches["tid"], switches["other_tid"]))
    # Names as two numbers each: comparing a million of them as text takes half a second.
    comms = np.concatenate((switches["comm"], switches["other_comm"]))
    # The idle task has a name for each CPU (swapper/0, swapper/1); it is one here.
    comms[tids == 0] = b"idle"
    words = comms.view("<u8").reshape(-1, 2)
    distinct, first, index = _first_of_each(tids)
    tasks = [Task(tid, printable_comm(comm)) for tid, comm in zip(distinct.tolist(), comms[first], strict=True)]
    # Sorting names is slow and few tasks change theirs, so only those that did are sorted.
    usual = words[first]
    other = np.flatnonzero((words[:, 0] != usual[index, 0]) | (words[:, 1] != usual[index, 1]))
    if len(other):
        keys = np.column_stack((tids[other].astype(np.uint64), words[other]))
        _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        index[other] = len(tasks) + place.reshape(-1)
        tasks += [Task(int(tids[at]), printable_comm(comms[at])) for at in other[first].tolist()]
    return tuple(tasks), index[:n].astype(np.int64), index[n:].astype(np.int64)


def _without(values: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    kept = np.ones(len(values), np.bool_)
    kept[at] = False
    return values[kept]


# Above this a table by thread number is larger than sorting is slow. Linux has at most 4,194,304 (pid_max).
_MAX_TID = 1 << 22


def _first_of_each(
    tids: npt.NDArray[Any],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``np.unique`` with first index and inverse, in linear time where the numbers are thread numbers."""
    if not len(tids) or int(tids.max()) > _MAX_TID:
        distinct, first, index = np.unique(tids, return_index=True, return_inverse=True)
        return distinct, first.astype(np.int64), index.astype(np.int64)
    place = np.full(int(tids.max()) + 1, -1, np.int64)
    place[tids[::-1]] = np.arange(len(tids) - 1, -1, -1)  # of equal numbers the last one written is the first one
    distinct = np.flatnonzero(place >= 0)
    first = place[distinct]
    place[distinct] = np.arange(len(distinct))
    return distinct, first, place[tids]


def _runs(chain: SwitchChain, out_at: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> Runs:
    t_ns, previous, following = chain.t_ns, chain.previous, chain.following
    tids = np.array([task.tid for task in chain.tasks], np.int64)
    cpus = column(chain.switches, "cpu")
    parts: list[tuple[npt.NDArray[np.int64], ...]] = []
    for cpu in np.unique(cpus[out_at]):
        on_cpu = np.flatnonzero(cpus == cpu)
        slice_index = np.flatnonzero(cpus[out_at] == cpu)
        first = np.searchsorted(on_cpu, out_at[slice_index])
        # Switches of the slice: its switch-out, and those after it and before its end.
        last = np.searchsorted(t_ns[on_cpu], end[slice_index], side="left")
        n_runs = np.maximum(last - first, 1)
        row = np.repeat(np.arange(len(slice_index)), n_runs)
        at = first[row] + _count_up(n_runs)
        slice_end = end[slice_index][row]
        # The event after the last of all has no time yet: the slice's end stands in for it.
        t_next = np.append(t_ns[on_cpu], NEVER_NS)[at + 1]
        is_last = np.append(row[1:] != row[:-1], True)
        task = following[on_cpu[at]]
        # Whoever the next event on this CPU takes the CPU from is who had it last. After the end of a slice
        # that is evidence only if the event is the switch-in that ended it.
        has_next = at + 1 < len(on_cpu)
        then_task = task.copy()
        then_task[has_next] = previous[on_cpu[at[has_next] + 1]]
        # The same tid under another name is one task that was renamed while it ran.
        is_same = tids[then_task] == tids[task]
        then_task[is_same | (is_last & (t_next > slice_end))] = NO_TASK
        parts.append((slice_index[row], t_ns[on_cpu[at]], np.minimum(t_next, slice_end), task, then_task))
    if not parts:
        empty = np.empty(0, np.int64)
        return Runs(empty, empty, empty, empty, empty)
    columns = [np.concatenate(column_parts) for column_parts in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    return Runs(*(values[order] for values in columns))


def _count_up(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, … n-1 for each length n, one after the other."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
