"""Where everything lies: the words by which the compiled threads find their way in the shared memory of a run.

The compiled functions take one argument, the address of the *parameter words*; every other array is named
by an address and a length in them. No numpy array crosses into compiled code, so entering and leaving it
allocates nothing.
"""

from __future__ import annotations

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
