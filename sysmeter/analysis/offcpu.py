"""What the slices of one thread add up to over its window: how often, how long, and who had the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.reads import column
from sysmeter.analysis.slices import (
    ENDED,
    KIND_PREEMPTED,
    KIND_STOPPED,
    KIND_THROTTLED,
    KIND_VOLUNTARY,
    KINDS,
    Slices,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.interpreter import LockWaits
    from sysmeter.analysis.reads import ThreadReads

# How many tasks that took the CPU are listed by name; the rest are summed.
MAX_TASKS = 20


@dataclass(frozen=True)
class OffCpu:
    """A thread's slices beside the clock reads that bound them.

    ``lock_waits`` says which slices waited for the interpreter lock; None for a thread that runs no Python.
    """

    slices: Slices
    reads: ThreadReads
    lock_waits: LockWaits | None = None


def run_queue_delay_ns(slices: Slices, t_start_ns: int, t_end_ns: int) -> tuple[int, int, int]:
    """Time in an interval that the thread waited for a CPU: ``(delay_ns, n_waits, n_unknown)``.

    From woken to running, and from preempted to running. ``n_unknown`` slices of a sleep have no wake-up that
    was seen: they add nothing. Throttled time is not waiting: no CPU would have been enough.
    """
    woken = waits(slices, t_start_ns, t_end_ns, after_wakeup=True)
    preempted = waits(slices, t_start_ns, t_end_ns, after_wakeup=False)
    sleeps = (slices.kind == KIND_VOLUNTARY) | (slices.kind == KIND_STOPPED)
    unknown = sleeps & (slices.t_woken_ns < 0) & (slices.t_in_ns > t_start_ns) & (slices.t_out_ns < t_end_ns)
    return int(woken.sum() + preempted.sum()), len(woken) + len(preempted), int(unknown.sum())


def switch_lead_ns(off_cpu: OffCpu, t_start_ns: int, t_end_ns: int) -> int:
    """How much earlier than their switch-out the thread's preemptions in an interval may have begun, summed.

    Each began at the earliest when the thread last read its clock, or came back from the slice before in the
    same gap, so the figure is measured, not assumed.
    Slices in no gap add nothing.
    """
    slices, reads = off_cpu.slices, off_cpu.reads
    chosen = (slices.kind == KIND_PREEMPTED) & (slices.t_out_ns >= t_start_ns) & (slices.t_out_ns <= t_end_ns)
    gap = reads.gap_of(slices.t_out_ns)
    before = np.append(np.iinfo(np.int64).min, slices.t_in_ns[:-1])  # the thread's slices come by time
    ran_ns = np.maximum(reads.gap_start_ns[gap], before) if len(reads.gap_start_ns) else before
    lead = (slices.t_out_ns - ran_ns)[chosen & (gap >= 0)]
    return int(np.maximum(lead, 0).sum())


def throttled_ns(slices: Slices, t_start_ns: int, t_end_ns: int) -> int:
    """Time in an interval that a quota kept the thread off every CPU."""
    chosen = slices.kind == KIND_THROTTLED
    length = np.minimum(slices.t_in_ns[chosen], t_end_ns) - np.maximum(slices.t_out_ns[chosen], t_start_ns)
    return int(np.maximum(length, 0).sum())


def waits(slices: Slices, t_start_ns: int, t_end_ns: int, *, after_wakeup: bool) -> npt.NDArray[np.int64]:
    """Lengths of the waits on the run queue in the interval, clipped to it; shape ``(n_waits,)``."""
    if after_wakeup:
        chosen = ((slices.kind == KIND_VOLUNTARY) | (slices.kind == KIND_STOPPED)) & (slices.t_woken_ns >= 0)
        begin = slices.t_woken_ns[chosen]
    else:
        chosen = slices.kind == KIND_PREEMPTED
        begin = slices.t_out_ns[chosen]
    length = np.minimum(slices.t_in_ns[chosen], t_end_ns) - np.maximum(begin, t_start_ns)
    positive: npt.NDArray[np.int64] = length[length > 0]
    return positive


def describe_off_cpu(slices: Slices, t_start_ns: int, t_end_ns: int) -> dict[str, Any]:
    """The window's slices by kind (count, total, longest, who ran instead) and how they ended, as JSON."""
    in_window = (slices.t_out_ns >= t_start_ns) & (slices.t_out_ns <= t_end_ns)
    kinds: dict[str, Any] = {}
    for code, name in enumerate(KINDS):
        chosen = in_window & (slices.kind == code)
        length = np.minimum(slices.t_in_ns, t_end_ns)[chosen] - slices.t_out_ns[chosen]
        kinds[name] = {**_lengths(length), "ran_instead": who_ran(slices, chosen, t_end_ns)}
    return {
        "kinds": kinds,
        "ended": {name: int((slices.ended[in_window] == code).sum()) for code, name in enumerate(ENDED)},
        "unseen_switches_between_others": int((slices.runs.then_task >= 0)[in_window[slices.runs.slice_index]].sum()),
        "switch_ins_without_switch_out": int(
            ((slices.t_orphan_in_ns >= t_start_ns) & (slices.t_orphan_in_ns <= t_end_ns)).sum()
        ),
        "runq_after_wakeup": _lengths(waits(slices, t_start_ns, t_end_ns, after_wakeup=True)),
        "runq_after_preemption": _lengths(waits(slices, t_start_ns, t_end_ns, after_wakeup=False)),
    }


def who_ran(slices: Slices, chosen: npt.NDArray[np.bool_], t_end_ns: int) -> dict[str, Any]:
    """The tasks that ran in the chosen slices, most time first.

    ``count`` is in how many slices the task ran. Two tasks with an unseen switch between them are one entry.
    """
    runs = slices.runs
    kept = chosen[runs.slice_index]
    time = (np.minimum(runs.t_end_ns, t_end_ns) - np.minimum(runs.t_start_ns, t_end_ns))[kept]
    n_tasks = len(slices.tasks) + 1
    distinct, index = np.unique((runs.task[kept] + 1) * n_tasks + runs.then_task[kept] + 1, return_inverse=True)
    time_ns = np.zeros(len(distinct), np.int64)
    np.add.at(time_ns, index, time)
    # A task that ran twice in one slice took the CPU in one slice.
    once = np.unique(index * (len(slices) + 1) + runs.slice_index[kept]) // (len(slices) + 1)
    count = np.bincount(once, minlength=len(time_ns))
    order = np.lexsort((np.arange(len(time_ns)), -time_ns))
    tasks = []
    for k in order[:MAX_TASKS]:
        task, then_task = divmod(int(distinct[k]), n_tasks)
        name = slices.task_name(task - 1, then_task - 1)
        tasks.append({"task": name, "count": int(count[k]), "time_ns": int(time_ns[k])})
    rest = order[MAX_TASKS:]
    return {"tasks": tasks, "n_other_tasks": len(rest), "other_time_ns": int(time_ns[rest].sum())}


def syscalls_by_number(
    events: npt.NDArray[Any], tid: int, t_start_ns: int, t_end_ns: int, names: dict[str, str]
) -> list[dict[str, Any]]:
    """The system calls a thread made in the interval, by number, the most frequent first.

    ``names`` maps a number, as text, to a name, where whoever recorded the run knew it.
    """
    t_ns = column(events, "t_ns")
    chosen = (events["kind"] == records.EVENT_SYSCALL) & (events["tid"] == tid)
    chosen &= (t_ns >= t_start_ns) & (t_ns <= t_end_ns)
    number, count = np.unique(column(events[chosen], "value"), return_counts=True)
    rows = [
        {"number": n, "name": names.get(str(n)), "count": c}
        for n, c in zip(number.tolist(), count.tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["number"]))


def _lengths(length: npt.NDArray[np.int64]) -> dict[str, int]:
    return {
        "count": len(length),
        "time_ns": int(length.sum()),
        "max_ns": int(length.max()) if len(length) else 0,
    }
