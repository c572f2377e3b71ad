"""Every record that crosses a border (workload, kernel, disk), as a numpy dtype. Times are CLOCK_MONOTONIC ns.

The compiled loop writes these records as rows of little-endian 64-bit words; the BPF side writes
``KERNEL_EVENT`` as a C struct whose size and offsets are checked when the probes are compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class WorkloadKind:
    """A kind of workload: which threads it measures, and what its two histograms are called.

    ``threads`` stand in the order in which a message passes through them. ``service`` is the histogram of the work
    alone, ``response`` that of the time from the intended instant on. ``holds_interpreter_lock``: the measured thread
    runs Python, so whoever holds the interpreter lock, as a collection in any thread does, holds it up.
    """

    name: str
    threads: tuple[str, ...]
    service: str
    response: str
    holds_interpreter_lock: bool

    @property
    def feeder(self) -> str | None:
        """The thread that holds a message until its release; None where one thread does everything."""
        return self.threads[0] if len(self.threads) > 1 else None

    @property
    def worker(self) -> str:
        """The thread that takes messages up and is done with them."""
        return self.threads[-1]

    @property
    def histograms(self) -> tuple[str, str]:
        """Service and response."""
        return self.service, self.response


CAPSTONE = WorkloadKind("capstone", ("feed", "strategy"), "think", "total", holds_interpreter_lock=False)
LIVE = WorkloadKind("live", ("worker",), "service", "response", holds_interpreter_lock=True)
WORKLOADS = {kind.name: kind for kind in (CAPSTONE, LIVE)}

THREADS = CAPSTONE.threads


def workload_kind(meta: dict[str, Any]) -> WorkloadKind:
    """The kind of workload that a Recording with this ``meta`` is of; Recordings without the key are the capstone's.

    Raises:
        KeyError: a kind that this version does not know.
    """
    return WORKLOADS[meta.get("workload", CAPSTONE.name)]


# One batch of the strategy thread. t_decided_ns is -1 where no decision was made (the handler was not live).
# Live: one message of the worker, from the start of the work on it to its end; both sequence numbers are its number.
BATCH = np.dtype(
    [
        ("t_popped_ns", "<i8"),
        ("t_decided_ns", "<i8"),
        ("first_message", "<i8"),  # number of the message in the run, from 0
        ("n_messages", "<i8"),
        ("first_seq", "<i8"),  # sequence numbers as the feed carries them
        ("last_seq", "<i8"),
    ]
)

# One decision of the quoter. Prices in ticks; 0 quantity: that side of the book is empty; price -1: none wanted.
DECISION = np.dtype(
    [
        ("seq", "<i8"),  # sequence number of the last update applied in the batch
        ("bid_price_ticks", "<i4"),
        ("bid_quantity", "<i4"),
        ("ask_price_ticks", "<i4"),
        ("ask_quantity", "<i4"),
        ("wanted_bid_ticks", "<i4"),
        ("wanted_ask_ticks", "<i4"),
    ]
)

# Two consecutive clock reads of one thread that lie further apart than the gap threshold.
GAP = np.dtype([("t_start_ns", "<i8"), ("t_end_ns", "<i8"), ("where", "<i8")])
GAP_IN_SPIN = 0  # between two turns of the thread's spin
GAP_IN_BATCH = 1  # between popping a batch and its decision, or releasing a message; live: while at work on one

# One collection of the workload's Python garbage collector.
COLLECTION = np.dtype([("t_start_ns", "<i8"), ("t_end_ns", "<i8"), ("generation", "<i8"), ("tid", "<i8")])

# One injected stall of the strategy thread, and how many messages waited in the queue at its end.
STALL = np.dtype([("t_start_ns", "<i8"), ("duration_ns", "<i8"), ("n_waited", "<i8")])

# Aggregates of one slice of time, kept in runs whose batches are not all kept.
TIME_BUCKET = np.dtype([("n_messages", "<i8"), ("n_batches", "<i8"), ("total_sum_ns", "<i8"), ("total_max_ns", "<i8")])

# One kernel event. Which fields mean what depends on the kind, see below.
KERNEL_EVENT = np.dtype(
    [
        ("t_ns", "<u8"),
        ("kind", "<u4"),
        ("cpu", "<u4"),
        ("tid", "<u4"),
        ("other_tid", "<u4"),
        ("value", "<i8"),
        ("value2", "<u8"),
        ("comm", "S16"),
        ("other_comm", "S16"),
        ("flags", "<u4"),
        ("detail", "<u4"),
    ]
)

# sched_switch on a CPU where a watched thread leaves, arrives, or is away from:
# tid/comm = previous task, other_tid/other_comm = next task, value = prev_state. Where the previous task is watched for
# system calls: detail = 1 + number of the last one it entered (0: none seen), value2 = that call's first argument.
EVENT_SWITCH = 1
# sched_wakeup of a watched thread: tid = the woken one, other_tid/other_comm = the waker, value = target CPU.
EVENT_WAKEUP = 2
# exceptions:page_fault_user/_kernel of a watched thread: value = address, value2 = instruction, flags below.
EVENT_PAGE_FAULT = 3
# raw_syscalls:sys_enter of a watched thread: value = system call number, value2 = its first argument (0: not known).
EVENT_SYSCALL = 4
# A call of libc's allocator by a watched thread: value = which function, below; value2 = bytes asked for, free: 0.
EVENT_ALLOCATION = 5
# A hard interrupt that came while a watched thread was the current task: t_ns = its entry, value = ns to its exit,
# detail = which kind, below; value2 = the vector, or the number of a device's interrupt.
EVENT_INTERRUPT = 6
# A softirq run while a watched thread was the current task: t_ns = its entry, value = ns to its exit, detail = number.
EVENT_SOFTIRQ = 7
# sched_migrate_task of a watched thread: value = CPU it goes to, value2 = CPU it comes from, other_tid/other_comm = the
# task that moves it.
EVENT_MIGRATION = 8

ALLOCATION_MALLOC = 1
ALLOCATION_CALLOC = 2
ALLOCATION_REALLOC = 3
ALLOCATION_FREE = 4

# Kinds of hard interrupts, named as the tracepoints of irq_vectors are; a device's come from irq:irq_handler_*.
INTERRUPT_DEVICE = 1
INTERRUPT_LOCAL_TIMER = 2
INTERRUPT_RESCHEDULE = 3
INTERRUPT_CALL_FUNCTION = 4
INTERRUPT_CALL_FUNCTION_SINGLE = 5
INTERRUPT_IRQ_WORK = 6
INTERRUPT_PLATFORM = 7
INTERRUPT_THERMAL = 8
INTERRUPT_SPURIOUS = 9
INTERRUPT_ERROR = 10
INTERRUPT_NAMES = {
    INTERRUPT_DEVICE: "device",
    INTERRUPT_LOCAL_TIMER: "local timer",
    INTERRUPT_RESCHEDULE: "reschedule",
    INTERRUPT_CALL_FUNCTION: "call function",
    INTERRUPT_CALL_FUNCTION_SINGLE: "call function single",
    INTERRUPT_IRQ_WORK: "irq work",
    INTERRUPT_PLATFORM: "platform",
    INTERRUPT_THERMAL: "thermal",
    INTERRUPT_SPURIOUS: "spurious",
    INTERRUPT_ERROR: "APIC error",
}

# By number. Source: include/linux/interrupt.h; /proc/softirqs has them in this order.
SOFTIRQ_NAMES = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")

FLAG_BROKEN_LINK = 1  # EVENT_SWITCH: the previous task is not the next task of the CPU's last switch
FLAG_KERNEL_MODE = 2  # EVENT_PAGE_FAULT: the fault was taken in kernel mode
