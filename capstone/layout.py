"""Where everything lies: the shared memory of a run, and the words by which the compiled threads find it.

The compiled functions take one argument, the address of the *parameter words*; every other array is named
by an address and a length in them. No numpy array crosses into compiled code, so entering and leaving it
allocates nothing.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Two lines of 64 bytes: adjacent-line prefetch makes neighbours share a line's fate.
CACHE_LINE_WORDS = 16

MESSAGE_WORDS = 3  # a record of the message file
BATCH_WORDS = 6
DECISION_WORDS = 4
GAP_WORDS = 3
BUCKET_WORDS = 4

# The first message is intended this long after both threads have entered their loops.
START_DELAY_NS = 1_000_000

# How many messages either thread handles at most between two reads of the clock, so that a gap inside a
# large batch is seen as well as one between batches.
MESSAGES_PER_CLOCK_READ = 32

# A release chunk of the tail store: the releases of up to this many messages of one batch.
CHUNK_MESSAGES = 16

# ── parameter words ──────────────────────────────────────────────────────────────────────────────
# Line 0: read by both threads, written by the observer or the strategy thread to end the run.
STOP = 0
# Line 1: written once by the feed thread.
FEED_DONE = CACHE_LINE_WORDS
N_RELEASED = CACHE_LINE_WORDS + 1
T_START = CACHE_LINE_WORDS + 2
# Line 2: the barrier at the start.
FEED_READY = 2 * CACHE_LINE_WORDS
STRATEGY_READY = 3 * CACHE_LINE_WORDS
STRATEGY_DONE = STRATEGY_READY + 1
# From line 4 on: constants of the run, then results written at the end.
_CONSTANTS = 4 * CACHE_LINE_WORDS
(
    REHEARSAL,
    PACED,
    RATE_HZ,
    N_FILE,
    N_PLANNED,
    N_WARMUP,
    N_BEFORE_EDGES,
    SEQ_SPAN,
    N_INSTRUMENTS,
    INSTRUMENT,
    GAP_THRESHOLD_NS,
    STOP_ABOVE_NS,
    FULL_STORAGE,
    SUB_BITS,
    TIME_BUCKET_NS,
    N_TIME_BUCKETS,
    RELEASE_MASK,
    FEED_AT,
    QUEUE_AT,
    BOOK_AT,
    RELEASES_AT,
    N_RELEASE_SLOTS,
    BATCHES_AT,
    DECISIONS_AT,
    N_BATCH_SLOTS,
    THINK_AT,
    TOTAL_AT,
    N_HISTOGRAM_BUCKETS,
    THINK_STATS_AT,
    TOTAL_STATS_AT,
    TIME_BUCKETS_AT,
    GAPS_FEED_AT,
    GAPS_STRATEGY_AT,
    TAIL_AT,
    EDGES_AT,
    STALL_AT,
    N_STALL_WORDS,
    # results
    RING_FULL_WAITS,
    N_POPPED,
    N_BATCHES,
    N_BATCHES_STORED,
    N_DECISIONS,
    SEQUENCE_GAPS,
    DUPLICATES,
    OTHER_INSTRUMENTS,
    UNKNOWN_INSTRUMENTS,
    HANDLER_STATE,
    T_FIRST_RELEASE,
    T_TIME_BUCKETS,
    T_LAST_BATCH,
    STOPPED_ABOVE,
) = range(_CONSTANTS, _CONSTANTS + 51)
N_PARAMETERS = _CONSTANTS + 64

# A state of the feed handler: it makes decisions.
HANDLER_LIVE = 1

# One edge of a thread's window; four edges in all: feed open, feed close, strategy open, strategy close.
(
    EDGE_TAKEN,
    EDGE_T_BEFORE,
    EDGE_T_AFTER,
    EDGE_CPU,
    EDGE_MALLOC,  # 10 words of mallinfo2
) = (0, 1, 2, 3, 4)
EDGE_RUSAGE = 14  # 18 words
EDGE_PERF_BYTES = 32
EDGE_PERF = 33  # group read: count of values, migrations, system calls
EDGE_SCHEDSTAT_BYTES = 40
EDGE_SCHED_BYTES = 41
EDGE_PERF_FD = 42
EDGE_SCHEDSTAT_FD = 43
EDGE_SCHED_FD = 44
EDGE_SCHEDSTAT_TEXT = 48  # 16 words, 128 bytes
EDGE_SCHED_TEXT = 64  # 960 words: the text is some 2 kB
EDGE_WORDS = 1024
SCHEDSTAT_TEXT_BYTES = 128
SCHED_TEXT_BYTES = (EDGE_WORDS - EDGE_SCHED_TEXT) * 8
FEED_OPEN, FEED_CLOSE, STRATEGY_OPEN, STRATEGY_CLOSE = range(4)


@dataclass
class SharedMemory:
    """A run's arrays in one memfd: no name in any file system, so nothing to clean up after a SIGKILL.

    Call :meth:`add` for each array, then :meth:`create`; after that :meth:`array` and :meth:`address` hold.
    """

    _offsets: dict[str, tuple[int, np.dtype[Any], int]] = field(default_factory=dict)
    n_bytes: int = 0
    fd: int = -1
    _map: mmap.mmap | None = None

    def add(self, name: str, dtype: Any, length: int) -> None:
        """Reserve ``length`` elements under ``name``, on a page of their own."""
        kind = np.dtype(dtype)
        self._offsets[name] = (self.n_bytes, kind, length)
        n_bytes = max(kind.itemsize * length, 1)
        self.n_bytes += -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def create(self) -> None:
        """Make and map the memory. Raises OSError (ENOMEM, ENOSPC) where it does not fit."""
        self.fd = os.memfd_create("sysmeter-workload", os.MFD_CLOEXEC)
        # posix_fallocate, so that a lack of memory is an error here and not a SIGBUS in the loop.
        os.posix_fallocate(self.fd, 0, self.n_bytes)
        self._map = mmap.mmap(self.fd, self.n_bytes)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The elements reserved under ``name``, in place."""
        offset, dtype, length = self._offsets[name]
        assert self._map is not None
        return np.frombuffer(self._map, dtype=dtype, count=length, offset=offset)

    def address(self, name: str) -> int:
        """Where they begin in this process; 0 where there are none."""
        if self._offsets[name][2] == 0:
            return 0
        return int(self.array(name).ctypes.data)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Offsets, dtypes and lengths, for the observer."""
        return {
            name: {"offset": offset, "dtype": np.lib.format.dtype_to_descr(dtype), "length": length}
            for name, (offset, dtype, length) in self._offsets.items()
        }
