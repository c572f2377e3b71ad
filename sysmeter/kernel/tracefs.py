"""The tracing file system: where tracepoints are listed. Mounted here if it is not, and then left mounted."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from sysmeter.errors import KernelError

MOUNT_POINTS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))


def find_tracefs() -> Path | None:
    """Where tracefs is mounted, or None."""
    for path in MOUNT_POINTS:
        if (path / "events").is_dir():
            return path
    return None


def ensure_tracefs() -> tuple[Path, str | None]:
    """Where tracefs is mounted, and, if this call had to mount it, a sentence for the user.

    Raises:
        KernelError: it is not mounted and cannot be.
    """
    path = find_tracefs()
    if path is not None:
        return path, None
    target = MOUNT_POINTS[0]
    hint = f"as root: mount -t tracefs nodev {target} (a container must be given it: docker run --privileged)"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"nodev", bytes(target), b"tracefs", ctypes.c_ulong(0), None) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise KernelError(
            f"tracefs, the list of tracepoints, is not mounted, and mounting it failed: {reason}",
            hint,
        )
    if find_tracefs() is None:
        raise KernelError(
            f"tracefs is mounted at {target} but lists no events", "this kernel was built without tracepoints"
        )
    return target, f"mounted tracefs at {target}, which was missing; it stays mounted"


def has_tracepoint(tracefs: Path, category: str, event: str) -> bool:
    """Whether this kernel has the tracepoint ``category:event``."""
    return (tracefs / "events" / category / event).is_dir()
