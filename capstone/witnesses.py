"""The witnesses of a measured thread: descriptors it opens for itself, and the meaning of what an edge read.

Source of the edges' layout: getrusage(2). What the files say is in sysmeter.witnesses.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from capstone import layout
from sysmeter.witnesses import nr_migrations, open_perf_group, run_queue_delay_ns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Offsets, in words, of struct rusage.
_RU_MINFLT, _RU_MAJFLT, _RU_NVCSW, _RU_NIVCSW = 8, 9, 16, 17
# Offsets, in words, of struct mallinfo2.
_HBLKHD, _UORDBLKS = 4, 7


def open_witnesses(edges: npt.NDArray[np.int64]) -> None:
    """Open this thread's witness files and store the descriptors in its edges, shape (n, EDGE_WORDS).

    A witness that the kernel refuses is -1; the edge then reads nothing and the value stays unknown.
    """
    task = f"/proc/self/task/{_gettid()}"
    edges[:, layout.EDGE_PERF_FD] = open_perf_group()
    edges[:, layout.EDGE_SCHEDSTAT_FD] = _open(f"{task}/schedstat")
    edges[:, layout.EDGE_SCHED_FD] = _open(f"{task}/sched")


def close_witnesses(edges: npt.NDArray[np.int64]) -> None:
    """Close what :func:`open_witnesses` opened (the perf group's second counter goes with the process)."""
    for fd in {int(edges[0, at]) for at in (layout.EDGE_PERF_FD, layout.EDGE_SCHEDSTAT_FD, layout.EDGE_SCHED_FD)}:
        if fd >= 0:
            os.close(fd)


def decode_edge(edge: npt.NDArray[np.int64], closing: bool) -> dict[str, Any] | None:
    """One edge as plain values, keys as in the Recording's ``edges``; None where it was not taken."""
    if not edge[layout.EDGE_TAKEN]:
        return None
    rusage = edge[layout.EDGE_RUSAGE :]
    has_perf = edge[layout.EDGE_PERF_BYTES] == 24
    migrations, syscalls = (int(value) for value in edge[layout.EDGE_PERF + 1 : layout.EDGE_PERF + 3])
    run_delay_ns = None
    if edge[layout.EDGE_SCHEDSTAT_BYTES] > 0:
        text = edge[layout.EDGE_SCHEDSTAT_TEXT :].tobytes()[: int(edge[layout.EDGE_SCHEDSTAT_BYTES])]
        run_delay_ns = run_queue_delay_ns(text)
    n_migrations = None
    if edge[layout.EDGE_SCHED_BYTES] > 0:
        text = edge[layout.EDGE_SCHED_TEXT :].tobytes()[: int(edge[layout.EDGE_SCHED_BYTES])]
        n_migrations = nr_migrations(text)
    return {
        "t_before_ns": int(edge[layout.EDGE_T_BEFORE]),
        "t_after_ns": int(edge[layout.EDGE_T_AFTER]),
        "cpu": int(edge[layout.EDGE_CPU]),
        "voluntary_switches": int(rusage[_RU_NVCSW]),
        "involuntary_switches": int(rusage[_RU_NIVCSW]),
        "minor_faults": int(rusage[_RU_MINFLT]),
        "major_faults": int(rusage[_RU_MAJFLT]),
        # The closing read counted itself before it read, see capstone.edges.
        "syscalls": syscalls - closing if has_perf else None,
        "migrations": migrations if has_perf else None,
        "runq_delay_ns": run_delay_ns,
        "nr_migrations": n_migrations,
    }


def heap_in_use_bytes(edge: npt.NDArray[np.int64]) -> int:
    """Bytes that malloc has handed out, over all arenas and mappings, at the edge."""
    return int(edge[layout.EDGE_MALLOC + _UORDBLKS] + edge[layout.EDGE_MALLOC + _HBLKHD])


def _gettid() -> int:
    import threading

    return threading.get_native_id()


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
