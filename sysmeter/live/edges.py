"""The edges of the worker's window: what the kernel and the interpreter say of it, read by the worker itself.

As in the capstone (capstone/edges.py), an edge is bracketed by two clock reads, and the perf counter is read last at
the opening and first at the closing. Here the interpreter may hand its lock on between any two of these reads, so an
edge's own system calls cannot be counted beforehand: they lie inside its bracket, as the witnesses do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import struct
import threading
from typing import Any

from sysmeter.clock import now_ns
from sysmeter.witnesses import nr_migrations, open_perf_group, run_queue_delay_ns

_PERF_READ = struct.Struct("<qqq")  # the number of values, migrations, system calls
_TEXT_BYTES = 16_384


class Witnesses:
    """The calling thread's witness files. Made by the thread they are about; one the kernel refuses reads as None."""

    def __init__(self) -> None:
        task = f"/proc/self/task/{threading.get_native_id()}"
        self._perf_fd = open_perf_group()
        self._schedstat_fd = _open(f"{task}/schedstat")
        self._sched_fd = _open(f"{task}/sched")
        self._statm_fd = _open("/proc/self/statm")
        self._current_cpu = ctypes.CDLL(None).sched_getcpu

    def read_edge(self, closing: bool) -> dict[str, Any]:
        """One edge, keys as in the Recording's ``edges``, and ``rss_bytes`` and ``gc_collections`` of the process."""
        edge: dict[str, Any] = {"t_before_ns": now_ns()}
        perf = self._read_perf() if closing else None
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        sched, schedstat, statm = (_text(fd) for fd in (self._sched_fd, self._schedstat_fd, self._statm_fd))
        collections = [stats["collections"] for stats in gc.get_stats()]
        edge["cpu"] = int(self._current_cpu())
        if not closing:
            perf = self._read_perf()
        edge["t_after_ns"] = now_ns()
        edge |= {
            "voluntary_switches": usage.ru_nvcsw,
            "involuntary_switches": usage.ru_nivcsw,
            "minor_faults": usage.ru_minflt,
            "major_faults": usage.ru_majflt,
            "syscalls": None,
            "migrations": None,
            "runq_delay_ns": None if schedstat is None else run_queue_delay_ns(schedstat),
            "nr_migrations": None if sched is None else nr_migrations(sched),
            "rss_bytes": None if statm is None else int(statm.split()[1]) * resource.getpagesize(),
            "gc_collections": collections,
        }
        if perf is not None:
            _, edge["migrations"], syscalls = perf
            edge["syscalls"] = syscalls - closing  # the closing read counted itself before it read
        return edge

    def close(self) -> None:
        """Close the files."""
        for fd in (self._perf_fd, self._schedstat_fd, self._sched_fd, self._statm_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _read_perf(self) -> tuple[int, ...] | None:
        if self._perf_fd < 0:
            return None
        data = os.read(self._perf_fd, _PERF_READ.size)
        return _PERF_READ.unpack(data) if len(data) == _PERF_READ.size else None


def resident_bytes() -> int | None:
    """The memory of this process that is in RAM, by /proc/self/statm."""
    fd = _open("/proc/self/statm")
    try:
        text = _text(fd)
    finally:
        if fd >= 0:
            os.close(fd)
    return None if text is None else int(text.split()[1]) * resource.getpagesize()


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _text(fd: int) -> bytes | None:
    return None if fd < 0 else os.pread(fd, _TEXT_BYTES, 0) or None
