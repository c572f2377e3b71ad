"""What the kernel counts for one thread: the sources beside the probes, opened and understood.

Sources: perf_event_open(2); proc_pid_schedstat in the kernel's Documentation/scheduler/sched-stats.rst;
/proc/<tgid>/task/<tid>/sched.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE_SOFTWARE, _PERF_TYPE_TRACEPOINT = 1, 2
_PERF_COUNT_SW_CPU_MIGRATIONS = 4
_PERF_FORMAT_GROUP = 8
_PERF_FLAG_FD_CLOEXEC = 8
_PERF_ATTR_BYTES = 128
_SYS_ENTER_IDS = (
    Path("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id"),
    Path("/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id"),
)


def run_queue_delay_ns(schedstat: bytes) -> int:
    """How long the thread has waited for a CPU, from the text of its ``schedstat``."""
    return int(schedstat.split()[1])


def nr_migrations(sched: bytes) -> int | None:
    """How often the thread has changed its CPU, from the text of its ``sched``; None where it does not say."""
    for line in sched.splitlines():
        if line.startswith(b"se.nr_migrations"):
            return int(line.rpartition(b":")[2])
    return None


def open_perf_group() -> int:
    """A descriptor of two perf counters of the calling thread, or -1 where the kernel refuses.

    A read of 24 bytes gives three words: 2, then the thread's migrations and the system calls it entered, this read
    among them. The second counter's own descriptor goes with the process.
    """
    number = _PERF_EVENT_OPEN.get(platform.machine())
    tracepoint = _sys_enter_id()
    if number is None or tracepoint is None:
        return -1
    leader = _perf_event_open(number, _PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_CPU_MIGRATIONS, -1)
    if leader < 0:
        return -1
    if _perf_event_open(number, _PERF_TYPE_TRACEPOINT, tracepoint, leader) < 0:
        os.close(leader)
        return -1
    return leader


def _sys_enter_id() -> int | None:
    for path in _SYS_ENTER_IDS:
        try:
            return int(path.read_text())
        except OSError:
            continue
    return None


def _perf_event_open(number: int, kind: int, config: int, group_fd: int) -> int:
    attr = bytearray(_PERF_ATTR_BYTES)
    # type, size, config, sample_period, sample_type, read_format, flags
    struct.pack_into("<IIQQQQQ", attr, 0, kind, _PERF_ATTR_BYTES, config, 0, 0, _PERF_FORMAT_GROUP, 0)
    buffer = (ctypes.c_char * _PERF_ATTR_BYTES).from_buffer(attr)
    this_thread, any_cpu = 0, -1
    return int(ctypes.CDLL(None).syscall(number, buffer, this_thread, any_cpu, group_fd, _PERF_FLAG_FD_CLOEXEC))
