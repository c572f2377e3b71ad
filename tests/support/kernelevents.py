"""Kernel events made to order, as rows of ``records.KERNEL_EVENT``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sysmeter import records

TIDS = {"feed": 2001, "strategy": 2002}
CPUS = {"feed": 0, "strategy": 1}
COMM = b"sysmeter-load"


def event(**fields: Any) -> np.void:
    row = np.zeros(1, records.KERNEL_EVENT)
    for name, value in fields.items():
        row[name] = value
    return row[0]


def switch(t_ns: int, cpu: int, prev: tuple[int, bytes], following: tuple[int, bytes], state: int = 0) -> np.void:
    return event(
        t_ns=t_ns,
        kind=records.EVENT_SWITCH,
        cpu=cpu,
        tid=prev[0],
        comm=prev[1],
        other_tid=following[0],
        other_comm=following[1],
        value=state,
    )


def events_array(rows: list[np.void]) -> np.ndarray[Any, Any]:
    array = np.array(rows, records.KERNEL_EVENT)
    return array[array["t_ns"].argsort(kind="stable")]


def interrupt(
    thread: str, t_ns: int, length_ns: int, kind: int = records.INTERRUPT_LOCAL_TIMER, number: int = 0
) -> np.void:
    """A hard interrupt that came while ``thread`` had its CPU; ``number`` of a device's."""
    return _on_thread(thread, t_ns, records.EVENT_INTERRUPT, value=length_ns, value2=number, detail=kind)


def softirq(thread: str, t_ns: int, length_ns: int, number: int = 1) -> np.void:
    """A softirq run while ``thread`` had its CPU."""
    return _on_thread(thread, t_ns, records.EVENT_SOFTIRQ, value=length_ns, detail=number)


def fault(thread: str, t_ns: int, address: int = 0x7F0012345000, flags: int = 0) -> np.void:
    """A page fault of ``thread``."""
    address = address - 2**64 if address >= 2**63 else address
    return _on_thread(thread, t_ns, records.EVENT_PAGE_FAULT, value=address, value2=0x401000, flags=flags)


def syscall(thread: str, t_ns: int, number: int, argument: int = 0) -> np.void:
    """A system call that ``thread`` entered."""
    return _on_thread(thread, t_ns, records.EVENT_SYSCALL, value=number, value2=argument)


def migration(thread: str, t_ns: int, source: int, target: int, mover: tuple[int, bytes]) -> np.void:
    """A move of ``thread`` to the CPU ``target``, carried out by ``mover``."""
    fields = {"value": target, "value2": source, "other_tid": mover[0], "other_comm": mover[1]}
    return _on_thread(thread, t_ns, records.EVENT_MIGRATION, **fields)


def wakeup(thread: str, t_ns: int, waker: tuple[int, bytes] = (1, b"systemd")) -> np.void:
    """``thread`` was woken up."""
    cpu = CPUS[thread]
    return _on_thread(thread, t_ns, records.EVENT_WAKEUP, other_tid=waker[0], other_comm=waker[1], value=cpu)


def _on_thread(thread: str, t_ns: int, kind: int, **fields: Any) -> np.void:
    return event(t_ns=t_ns, kind=kind, cpu=CPUS[thread], tid=TIDS[thread], comm=COMM, **fields)
