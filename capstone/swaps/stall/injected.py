"""The strategy thread does at the top of its loop what `sysmeter selftest` asks: sleep, wait, fault, spin.

Changes: nothing of a message's path; the thread that would take it is away. The words that ask are those of
:mod:`sysmeter.injection`.
Breaks nothing that could be predicted: it depends on what is asked, so it is no swap and has no claim of its own.
Should move: total's tail, by up to what is asked.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from typing import Any

from capstone.compiled import compiled
from capstone.gaps import keep_gap
from capstone.unsafe import (
    clock_ns,
    current_cpu,
    drop_pages,
    load_acquire,
    mutex_lock,
    mutex_unlock,
    sleep_ns,
    store_release,
    thread_cpu_ns,
)
from sysmeter import injection
from sysmeter.records import GAP_IN_SPIN

IS_SWAP = False
TAKES_COMMANDS = True

_PAGE_WORDS = mmap.PAGESIZE // 8
_BUFFER_PAGES = 256
# Words: the header, the buffer from the next page on, then number of the spins, kind of the last
# command and records of the spins, which are the stalls:
# begin, end, messages that waited in the queue at its end.
_BUFFER = _PAGE_WORDS
_N = _BUFFER + _BUFFER_PAGES * _PAGE_WORDS
_LAST_KIND = _N + 1
_RECORDS = _N + 8
_RECORD_WORDS = 3
_CAPACITY = 4_096
_N_WORDS = _RECORDS + _CAPACITY * _RECORD_WORDS

_ASKED, _KIND, _ARGUMENT = injection.ASKED, injection.KIND, injection.ARGUMENT
_T_BEGIN, _T_END = injection.T_BEGIN, injection.T_END
_CPU, _CPU_TIME = injection.CPU, injection.CPU_TIME
_T_START = injection.T_START
_DONE = injection.DONE
_DONE_BYTES = injection.DONE * 8
_MUTEX_BYTES = injection.MUTEX * 8
_BUFFER_BYTES = _BUFFER * 8
_DO_SLEEP = injection.DO_SLEEP
_DO_LOCK = injection.DO_LOCK
_DO_FAULT = injection.DO_FAULT
_DO_SPIN = injection.DO_SPIN
_DO_TELL = injection.DO_TELL
_GAP_IN_SPIN = GAP_IN_SPIN

_PTHREAD_PROCESS_SHARED = 1
# Source: include/uapi/linux/membarrier.h, and each architecture's table of system calls.
_MEMBARRIER_CALL = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_REGISTER_GLOBAL_EXPEDITED = 1 << 2


def n_words(_settings: dict[str, Any]) -> int:
    """Words of shared memory needed."""
    return _N_WORDS


def initialize(stall, _settings: dict[str, Any]) -> None:
    """Make ``stall`` (int64 words on pages of their own) ready for a run, and touch all of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = int(stall.ctypes.data)
    # Pages that are locked in memory cannot be given back.
    if libc.munlock(ctypes.c_void_p(at + _BUFFER_BYTES), ctypes.c_size_t(_BUFFER_PAGES * mmap.PAGESIZE)) != 0:
        raise OSError(ctypes.get_errno(), "munlock failed")
    stall[:] = 0
    kind = ctypes.create_string_buffer(64)  # a pthread_mutexattr_t, 4 to 8 bytes
    libc.pthread_mutexattr_init(kind)
    if libc.pthread_mutexattr_setpshared(kind, _PTHREAD_PROCESS_SHARED) != 0:
        raise OSError("a mutex cannot be shared between processes")
    if libc.pthread_mutex_init(ctypes.c_void_p(at + _MUTEX_BYTES), kind) != 0:
        raise OSError("pthread_mutex_init failed")
    stall[injection.MUTEX_AT] = at + _MUTEX_BYTES
    stall[injection.BUFFER_AT] = at + _BUFFER_BYTES
    stall[injection.BUFFER_BYTES] = _BUFFER_PAGES * mmap.PAGESIZE
    if _MEMBARRIER_CALL is not None:
        stall[injection.HAS_MEMBARRIER] = libc.syscall(_MEMBARRIER_CALL, _REGISTER_GLOBAL_EXPEDITED, 0) == 0


def kept(stall) -> list[tuple[int, int, int]]:
    """The stalls that happened: (t_start_ns, duration_ns, messages that waited)."""
    n = min(int(stall[_N]), _CAPACITY)
    rows = stall[_RECORDS:].reshape(-1, _RECORD_WORDS)[:n].tolist()
    return [(begin, end - begin, n_waiting) for begin, end, n_waiting in rows]


@compiled
def arm(stall, t_start_ns):
    """Tell when the run started."""
    stall[_T_START] = t_start_ns


@compiled
def is_due(stall, _now_ns):
    """Is a command waiting?"""
    return load_acquire(stall.ctypes.data) != stall[_DONE]


@compiled
def _turn(gaps, last_ns, gap_threshold_ns):
    """Read the clock as every spin does; returns what it says."""
    now_ns = clock_ns()
    if now_ns - last_ns > gap_threshold_ns:
        keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
    return now_ns


@compiled
def spin(stall, gaps, last_ns, gap_threshold_ns):
    """Carry out the command, recording gaps as every spin does; returns the last clock read."""
    at = stall.ctypes.data
    number = load_acquire(at)
    kind = stall[_KIND]
    argument = stall[_ARGUMENT]
    n_pages = min(argument, _BUFFER_PAGES)
    if kind == _DO_FAULT:
        drop_pages(at + _BUFFER_BYTES, n_pages * _PAGE_WORDS * 8)
    begin_ns = _turn(gaps, last_ns, gap_threshold_ns)
    if kind == _DO_SLEEP:
        sleep_ns(argument)
    elif kind == _DO_LOCK:
        mutex_lock(at + _MUTEX_BYTES)
        mutex_unlock(at + _MUTEX_BYTES)
    elif kind == _DO_FAULT:
        for page in range(n_pages):
            # Atomic, so that no store is left out: who reads this word is not to be seen from here.
            store_release(at + _BUFFER_BYTES + page * _PAGE_WORDS * 8, number)
    elif kind == _DO_TELL:
        stall[_CPU] = current_cpu()
        stall[_CPU_TIME] = thread_cpu_ns()
    end_ns = _turn(gaps, begin_ns, gap_threshold_ns)
    if kind == _DO_SPIN:
        while end_ns - begin_ns < argument:
            end_ns = _turn(gaps, end_ns, gap_threshold_ns)
        n = stall[_N]
        if n < _CAPACITY:
            record = _RECORDS + n * _RECORD_WORDS
            stall[record] = begin_ns
            stall[record + 1] = end_ns
        stall[_N] = n + 1
    # Kept apart: once DONE is written, KIND may be the next command's.
    stall[_LAST_KIND] = kind
    stall[_T_BEGIN] = begin_ns
    stall[_T_END] = end_ns
    store_release(at + _DONE_BYTES, number)
    return end_ns


@compiled
def note_waiting(stall, n_waiting):
    """Note how many messages waited in the queue after a spin; after anything else nobody asks."""
    n = stall[_N] - 1
    if stall[_LAST_KIND] == _DO_SPIN and 0 <= n < _CAPACITY:
        stall[_RECORDS + n * _RECORD_WORDS + 2] = n_waiting
