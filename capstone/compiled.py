"""What every compiled piece shares: the decorator, views of raw memory, the histogram record."""

from __future__ import annotations

from numba import carray, njit
from numba.extending import register_jitable

from capstone import cache
from capstone.unsafe import as_pointer
from sysmeter import buckets

# cache=True writes to NUMBA_CACHE_DIR, which capstone.cache keys by all that can change the machine code.
compiled = njit(nogil=True, cache=cache.is_usable)

# record_value calls bucket_index, and that highest_bit, so numba must know them; for plain Python nothing changes.
register_jitable(buckets.highest_bit)
register_jitable(buckets.bucket_index)
bucket_index = compiled(buckets.bucket_index)
record_value = compiled(buckets.record_value)


@compiled
def words(address, length):
    """The ``length`` int64 words at ``address`` as an array that owns nothing."""
    return carray(as_pointer(address), (length,))
