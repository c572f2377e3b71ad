"""What every compiled piece shares: the decorator, views of raw memory, the histogram record."""

from __future__ import annotations

from numba import carray, njit
from numba.extending import register_jitable

from capstone import cache, layout
from capstone.unsafe import as_pointer
from sysmeter import hist

# cache=True writes to NUMBA_CACHE_DIR, which capstone.cache keys by all that can change the machine code.
compiled = njit(nogil=True, cache=cache.is_usable)

# bucket_index calls highest_bit, so numba must know both; neither changes for plain Python.
register_jitable(hist.highest_bit)
bucket_index = compiled(hist.bucket_index)

_STAT_COUNT = layout.STAT_COUNT
_STAT_MIN = layout.STAT_MIN
_STAT_MAX = layout.STAT_MAX
_STAT_SUM = layout.STAT_SUM
_STAT_NEGATIVE = layout.STAT_NEGATIVE


@compiled
def words(address, length):
    """The ``length`` int64 words at ``address`` as an array that owns nothing."""
    return carray(as_pointer(address), (length,))


@compiled
def record_value(counts, stats, value_ns, sub_bits):
    """Count one value: bucket, count, min, max, sum. A negative one is counted apart."""
    if value_ns < 0:
        stats[_STAT_NEGATIVE] += 1
        return
    counts[bucket_index(value_ns, sub_bits)] += 1
    stats[_STAT_COUNT] += 1
    stats[_STAT_SUM] += value_ns
    if value_ns < stats[_STAT_MIN]:
        stats[_STAT_MIN] = value_ns
    if value_ns > stats[_STAT_MAX]:
        stats[_STAT_MAX] = value_ns
