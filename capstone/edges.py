"""The edges of a thread's window: what the kernel says of the thread, read by the thread itself.

Read from another thread the same files would disturb the one that is measured. An edge is bracketed by two
clock reads; inside the bracket the witnesses are read in an order such that an edge's own system calls can
be told from the window's: at the opening the perf counter comes last, at the closing first. Its closing
read counts itself, so the window's system calls are the difference less one.
"""

from __future__ import annotations

from capstone import layout
from capstone.compiled import compiled, words
from capstone.unsafe import HAS_MALLINFO, clock_ns, current_cpu, malloc_info, pread_start, read_fd, thread_rusage

_EDGE_WORDS = layout.EDGE_WORDS
_TAKEN = layout.EDGE_TAKEN
_T_BEFORE = layout.EDGE_T_BEFORE
_T_AFTER = layout.EDGE_T_AFTER
_CPU = layout.EDGE_CPU
_MALLOC = layout.EDGE_MALLOC
_RUSAGE = layout.EDGE_RUSAGE
_PERF_BYTES = layout.EDGE_PERF_BYTES
_PERF = layout.EDGE_PERF
_PERF_FD = layout.EDGE_PERF_FD
_SCHEDSTAT_BYTES = layout.EDGE_SCHEDSTAT_BYTES
_SCHEDSTAT_FD = layout.EDGE_SCHEDSTAT_FD
_SCHEDSTAT_TEXT = layout.EDGE_SCHEDSTAT_TEXT
_SCHEDSTAT_TEXT_BYTES = layout.SCHEDSTAT_TEXT_BYTES
_SCHED_BYTES = layout.EDGE_SCHED_BYTES
_SCHED_FD = layout.EDGE_SCHED_FD
_SCHED_TEXT = layout.EDGE_SCHED_TEXT
_SCHED_TEXT_BYTES = layout.SCHED_TEXT_BYTES
_PERF_READ_BYTES = 24


@compiled
def _read_texts(edge, at):
    edge[_SCHED_BYTES] = pread_start(edge[_SCHED_FD], at + _SCHED_TEXT * 8, _SCHED_TEXT_BYTES)
    edge[_SCHEDSTAT_BYTES] = pread_start(edge[_SCHEDSTAT_FD], at + _SCHEDSTAT_TEXT * 8, _SCHEDSTAT_TEXT_BYTES)


@compiled
def open_window(edges_at, number, with_malloc):
    """Take the opening edge ``number`` into the words at ``edges_at``; returns its closing clock read."""
    at = edges_at + number * _EDGE_WORDS * 8
    edge = words(at, _EDGE_WORDS)
    edge[_T_BEFORE] = clock_ns()
    if HAS_MALLINFO and with_malloc:
        malloc_info(at + _MALLOC * 8)
    edge[_CPU] = current_cpu()
    _read_texts(edge, at)
    thread_rusage(at + _RUSAGE * 8)
    edge[_PERF_BYTES] = read_fd(edge[_PERF_FD], at + _PERF * 8, _PERF_READ_BYTES)
    t_after_ns = clock_ns()
    edge[_T_AFTER] = t_after_ns
    edge[_TAKEN] = 1
    return t_after_ns


@compiled
def close_window(edges_at, number, with_malloc):
    """Take the closing edge ``number``: the mirror image of :func:`open_window`."""
    at = edges_at + number * _EDGE_WORDS * 8
    edge = words(at, _EDGE_WORDS)
    edge[_T_BEFORE] = clock_ns()
    edge[_PERF_BYTES] = read_fd(edge[_PERF_FD], at + _PERF * 8, _PERF_READ_BYTES)
    thread_rusage(at + _RUSAGE * 8)
    _read_texts(edge, at)
    edge[_CPU] = current_cpu()
    if HAS_MALLINFO and with_malloc:
        malloc_info(at + _MALLOC * 8)
    edge[_T_AFTER] = clock_ns()
    edge[_TAKEN] = 1
