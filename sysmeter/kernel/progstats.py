"""How often the kernel skipped a BPF program instead of running it.

The kernel does not run a tracepoint program while another one runs on the same CPU (an interrupt arrived in
the midst of it): it skips it and counts the skip in ``recursion_misses`` of ``struct bpf_prog_info``. The
field came with Linux 5.12; skips of formatted (perf) tracepoints are counted since Linux 6.7 only, before
that they are silent. A program at a uprobe runs in the thread's own context and since Linux 6.0 is never
skipped (``bpf_prog_run_array_uprobe``, which came as ``..._sleepable``, asks for no such guard); before, it was
skipped without a count.
"""

from __future__ import annotations

import platform
import re
import struct

from sysmeter.kernel import bpfsys

_RECURSION_MISSES_OFFSET = 208
_INFO_BYTES = 216


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
