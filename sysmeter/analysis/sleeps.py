"""Why a thread was off the CPU, beyond who ran instead: the call it slept in, and who moved it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.causes import Task, printable_comm
from sysmeter.analysis.reads import CLOCK_SLACK_NS, ThreadReads, column
from sysmeter.analysis.slices import KIND_PREEMPTED, KIND_VOLUNTARY, Slices

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

# Calls whose first argument says which of many things the thread waits for.
_ADDRESS_CALLS = frozenset({"futex"})
_DESCRIPTOR_CALLS = frozenset(
    {"read", "write", "pread64", "pwrite64", "readv", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg", "accept"}
    | {"accept4", "connect", "fsync", "fdatasync", "epoll_wait", "epoll_pwait", "ioctl", "flock"}
)


@dataclass(frozen=True)
class Reasons:
    """For each slice the index of its reason in ``words``; the word is empty where none is known.

    ``t_from_ns``: since when the reason holds, for each slice; None: since the slice's start.
    """

    index: npt.NDArray[np.int64]
    words: tuple[str, ...]
    t_from_ns: npt.NDArray[np.int64] | None = None


def sleep_reasons(
    slices: Slices, events: npt.NDArray[Any], tid: int, syscall_names: Mapping[str, str], reads: ThreadReads
) -> Reasons:
    """In what each voluntary slice of thread ``tid`` slept; ``events`` by time.

    A thread gives up the CPU inside the kernel: in the system call it entered last, or in a page fault. A fault taken
    in user mode after that call shows that the call was over; and if the thread read its clock after the fault, that
    was over, too (where system calls are not recorded, the fault may be long ago). Reasons of other slices are empty.
    """
    own = events[events["tid"] == tid]
    faults = own[(own["kind"] == records.EVENT_PAGE_FAULT) & ((own["flags"] & records.FLAG_KERNEL_MODE) == 0)]
    t_fault, fault = _last_before(column(faults, "t_ns"), slices.t_out_ns)
    t_call, _ = _last_before(column(own[own["kind"] == records.EVENT_SYSCALL], "t_ns"), slices.t_out_ns)
    is_sleep = slices.kind == KIND_VOLUNTARY
    has_faulted = is_sleep & (fault >= 0) & ((slices.syscall < 0) | ((t_call >= 0) & (t_fault > t_call)))
    in_fault = has_faulted & (reads.first_after(t_fault) >= slices.t_out_ns - CLOCK_SLACK_NS)
    in_call = is_sleep & ~has_faulted & (slices.syscall >= 0)

    words = [""]
    index = np.zeros(len(slices), np.int64)
    keys = np.stack((slices.syscall[in_call], slices.argument[in_call]), axis=1)
    for number in np.unique(keys[:, 0]).tolist():
        name = syscall_names.get(str(number), f"system call {number}")
        chosen = np.flatnonzero(in_call)[keys[:, 0] == number]
        if name in _ADDRESS_CALLS or name in _DESCRIPTOR_CALLS:
            arguments, place = np.unique(slices.argument[chosen], return_inverse=True)
            index[chosen] = len(words) + place
            words += [_with_argument(name, int(argument)) for argument in arguments]
        else:
            index[chosen] = len(words)
            words.append(f"in {name}")
    addresses, place = np.unique(faults["value"][fault[in_fault]], return_inverse=True)
    index[in_fault] = len(words) + place
    words += [f"in a page fault at {int(address) & (2**64 - 1):#x}" for address in addresses]
    return Reasons(index, tuple(words))


def moves(slices: Slices, events: npt.NDArray[Any], tid: int) -> Reasons:
    """The preempted slices in which thread ``tid`` was moved to another CPU, with both CPUs and who carried it out.

    A thread that is woken on another CPU is not meant: it was waiting anyway. The move holds the thread from its
    instant on, and while the task that carried it out had the CPU for it; whoever had it before is a cause of its own.
    A move that was not recorded shows in the CPU that the thread came back on; since when it held is then not known.
    """
    found = events[(events["kind"] == records.EVENT_MIGRATION) & (events["tid"] == tid)]
    t_ns = column(found, "t_ns")
    last = np.searchsorted(t_ns, slices.t_in_ns, side="right") - 1
    inside = (slices.kind == KIND_PREEMPTED) & (last >= 0)
    inside[inside] = t_ns[last[inside]] >= slices.t_out_ns[inside]
    words = [""]
    index = np.zeros(len(slices), np.int64)
    t_from = slices.t_out_ns.copy()
    place: dict[str, int] = {}
    unseen = (slices.kind == KIND_PREEMPTED) & ~inside & (slices.cpu_back >= 0) & (slices.cpu_back != slices.cpu)
    for at in np.flatnonzero(inside | unseen).tolist():
        if unseen[at]:
            word = f"CPU {int(slices.cpu[at])} -> {int(slices.cpu_back[at])}, by whom was not seen"
        else:
            row = found[int(last[at])]
            mover = Task(int(row["other_tid"]), printable_comm(bytes(row["other_comm"])))
            word = f"CPU {int(row['value2'])} -> {int(row['value'])}, moved by {mover.name}"
            t_from[at] = _moved_from(slices, at, int(row["t_ns"]), mover.tid)
        if word not in place:
            place[word] = len(words)
            words.append(word)
        index[at] = place[word]
    return Reasons(index, tuple(words), t_from)


def _moved_from(slices: Slices, at: int, t_moved_ns: int, mover: int) -> int:
    """Since when the move holds the thread: its instant, or since when its mover has the CPU."""
    runs = slices.runs
    low, high = np.searchsorted(runs.slice_index, (at, at + 1))
    run = low + int(np.searchsorted(runs.t_start_ns[low:high], t_moved_ns, side="right")) - 1
    if run >= low and slices.tasks[int(runs.task[run])].tid == mover:
        return int(runs.t_start_ns[run])
    return t_moved_ns


def _with_argument(name: str, argument: int) -> str:
    if name in _ADDRESS_CALLS:
        return f"in {name} at {argument & (2**64 - 1):#x}"
    return f"in {name} (fd {argument & 0xFFFFFFFF})"


def _last_before(
    t_ns: npt.NDArray[np.int64], t_limit_ns: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each limit the latest instant not after it, and its index; -1 and -1 where there is none."""
    at = np.searchsorted(t_ns, t_limit_ns, side="right") - 1
    found = np.full(len(t_limit_ns), -1, np.int64)
    found[at >= 0] = t_ns[at[at >= 0]]
    return found, at
