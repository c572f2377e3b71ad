"""How often the kernel skipped a BPF program instead of running it, and what the runs cost.

The kernel does not run a tracepoint program while another one runs on the same CPU (an interrupt arrived in
the midst of it): it skips it and counts the skip in ``recursion_misses`` of ``struct bpf_prog_info``. The
field came with Linux 5.12; skips of formatted (perf) tracepoints are counted since Linux 6.7 only, before
that they are silent. A program at a uprobe runs in the thread's own context and since Linux 6.0 is never
skipped (``bpf_prog_run_array_uprobe``, which came as ``..._sleepable``, asks for no such guard); before, it was
skipped without a count.

Runs are counted and timed (``run_cnt``, ``run_time_ns``) only while somebody has asked for it by
``BPF_ENABLE_STATS`` (Linux 5.8) or ``kernel.bpf_stats_enabled``. The time is that of the program alone, between two
reads of the scheduler's clock: neither the tracepoint's own work before it nor what it drove out of a cache.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from sysmeter.kernel import bpfsys

# Source: struct bpf_prog_info in include/uapi/linux/bpf.h.
_RUN_TIME_OFFSET = 192
_RECURSION_MISSES_OFFSET = 208
_INFO_BYTES = 216


class Runs(NamedTuple):
    """Runs of a program and the time they took, on all CPUs, while statistics were on."""

    time_ns: int
    n: int

    def plus(self, other: Runs) -> Runs:
        """Both together."""
        return Runs(self.time_ns + other.time_ns, self.n + other.n)

    def __sub__(self, other: Runs) -> Runs:
        return Runs(self.time_ns - other.time_ns, self.n - other.n)


@contextlib.contextmanager
def timed_runs() -> Iterator[None]:
    """Inside the block the kernel counts and times the runs of every BPF program.

    Bound to a descriptor of this process, so it never outlives it, and whoever else asked for it keeps it.

    Raises:
        OSError: this kernel cannot (before Linux 5.8).
    """
    fd = bpfsys.enable_run_time_statistics()
    try:
        yield
    finally:
        os.close(fd)


def runs(prog_fd: int) -> Runs:
    """The program's timed runs since it was loaded; none where statistics were never on. Raises OSError."""
    info = bpfsys.program_info(prog_fd, _INFO_BYTES)
    return (
        Runs(*struct.unpack_from("=QQ", info, _RUN_TIME_OFFSET)) if len(info) >= _RUN_TIME_OFFSET + 16 else Runs(0, 0)
    )


def kernel_version() -> tuple[int, int]:
    """(major, minor) of the running kernel; (0, 0) where its release does not begin with two numbers."""
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(match[1]), int(match[2])) if match else (0, 0)


def why_misses_unknown(version: tuple[int, int], raw: bool, uprobe: bool = False) -> str | None:
    """Why Linux ``version`` cannot tell a program's skips at a raw or formatted tracepoint, or a uprobe; or None."""
    needed = (6, 0) if uprobe else (5, 12) if raw else (6, 7)
    if version >= needed:
        return None
    kind = "uprobes" if uprobe else "raw tracepoints" if raw else "formatted tracepoints"
    does = "skips none there" if uprobe else "does"
    return (
        f"Linux {version[0]}.{version[1]} does not count the programs it skips at {kind} "
        f"(Linux {needed[0]}.{needed[1]} {does})"
    )


def recursion_misses(prog_fd: int) -> int | None:
    """Skips of the program since it was loaded; None if this kernel does not say. Raises OSError."""
    info = bpfsys.program_info(prog_fd, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return None
    return int(struct.unpack_from("=Q", info, _RECURSION_MISSES_OFFSET)[0])
