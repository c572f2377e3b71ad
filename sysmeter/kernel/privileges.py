"""May this process load and attach BPF programs? Asked before bcc, whose own answers are less clear."""

from __future__ import annotations

import os
from pathlib import Path

from sysmeter.errors import KernelError

CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39

# /proc/self/ns/pid of the initial namespace: PROC_PID_INIT_INO, a constant of the kernel.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


def effective_capabilities(status: str) -> int:
    """The mask ``CapEff`` out of the text of ``/proc/self/status``; 0 if it has none."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def missing_capabilities(mask: int) -> list[str]:
    """What ``mask`` lacks to trace: CAP_SYS_ADMIN suffices, or CAP_BPF together with CAP_PERFMON."""
    if mask >> CAP_SYS_ADMIN & 1:
        return []
    return [name for name, bit in (("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON)) if not mask >> bit & 1]


def require_privileges() -> None:
    """Return if BPF may be used.

    Raises:
        KernelError: not root, or root without the capabilities (a container).
    """
    missing = missing_capabilities(effective_capabilities(Path("/proc/self/status").read_text(encoding="utf-8")))
    if not missing and os.geteuid() == 0:
        return
    if os.geteuid() != 0:
        raise KernelError(
            "watching threads from inside the kernel needs root",
            "run it with sudo, or run with --no-probes, which measures without kernel events",
        )
    raise KernelError(
        f"this process is root but lacks the capability {' and '.join(missing)} (and CAP_SYS_ADMIN)",
        "in a container, grant it: docker run --privileged --pid=host; or run with --no-probes",
    )


def lockdown_mode() -> str | None:
    """The kernel's lockdown mode (``none``, ``integrity``, ``confidentiality``), or None if there is none."""
    try:
        text = Path("/sys/kernel/security/lockdown").read_text(encoding="utf-8")
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or None


def in_initial_pid_namespace() -> bool:
    """Whether this process numbers threads as BPF does. Source: pid_namespaces(7), the link's inode."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return True
