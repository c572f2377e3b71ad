"""The arithmetic of a log-linear histogram: ``2**sub_bits`` linear sub-buckets per power of two.

Plain integer code without imports of weight: :class:`sysmeter.hist.LatencyHistogram` uses it, and the capstone
compiles it as it stands, so that the measured loop and the analysis can never disagree about a bucket. It is apart
from the class so that the command line can know the limits, and the compile cache the source, without NumPy and
without the rest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decimal import Decimal

    import numpy as np
    import numpy.typing as npt

MIN_SUB_BITS = 1
MAX_SUB_BITS = 12
DEFAULT_SUB_BITS = 5
MAX_VALUE = 2**63 - 1

# The words of a histogram's ``stats``. The sum is STAT_SUM + STAT_SUM_HIGH * 2**63: one word would overflow
# with the second value of 2**63 - 1.
STAT_COUNT, STAT_MIN, STAT_MAX, STAT_SUM, STAT_NEGATIVE, STAT_SUM_HIGH, STAT_OVERFLOW = range(7)
N_STATS = 7


def highest_bit(value: int) -> int:
    """Position of the highest set bit of a value from 1 to 2**63 - 1, by halving.

    Five well-predicted branches cost a compiled loop no more than the processor's own instruction.
    """
    position = 0
    if value >> 32:
        value >>= 32
        position = 32
    if value >> 16:
        value >>= 16
        position += 16
    if value >> 8:
        value >>= 8
        position += 8
    if value >> 4:
        value >>= 4
        position += 4
    if value >> 2:
        value >>= 2
        position += 2
    return position + (value >> 1)


def bucket_index(value: int, sub_bits: int) -> int:
    """The bucket of a value of 0 or more. Below ``2**sub_bits`` each value has a bucket of its own."""
    if value < (1 << sub_bits):
        return value
    shift = highest_bit(value) - sub_bits
    return ((shift + 1) << sub_bits) + (value >> shift) - (1 << sub_bits)


def bucket_upper_bound(index: int, sub_bits: int) -> int:
    """The largest value that falls into bucket ``index``."""
    if index < (1 << sub_bits):
        return index
    shift = (index >> sub_bits) - 1
    sub_bucket = (index & ((1 << sub_bits) - 1)) + (1 << sub_bits)
    return ((sub_bucket + 1) << shift) - 1


def n_buckets(sub_bits: int) -> int:
    """How many buckets hold every value from 0 to 2**63 - 1."""
    return (64 - sub_bits) << sub_bits


def record_value(counts: Any, stats: Any, value: int, sub_bits: int) -> None:
    """Count one value of at most 2**63 - 1 in ``counts`` and ``stats``, as ``LatencyHistogram.record`` does.

    For compiled code, where it takes a few nanoseconds and allocates nothing. Numba compiles it once it knows the
    functions called from here (the capstone does so in capstone/compiled.py)::

        for function in (buckets.highest_bit, buckets.bucket_index):
            numba.extending.register_jitable(function)
        record_value = numba.njit(buckets.record_value)
        ...
        record_value(histogram.counts, histogram.stats, value, histogram.sub_bits)  # in compiled code, on its arrays

    ``counts`` and ``stats`` are int64 arrays as a histogram holds them. Both the value and every sum formed here
    fit in 64 bits, so that compiled code, which does not notice an overflow, gets the same as Python.
    """
    if value < 0:
        stats[STAT_NEGATIVE] += 1
        return
    counts[bucket_index(value, sub_bits)] += 1
    stats[STAT_COUNT] += 1
    room = MAX_VALUE - value
    if stats[STAT_SUM] > room:
        stats[STAT_SUM] -= room + 1
        stats[STAT_SUM_HIGH] += 1
    else:
        stats[STAT_SUM] += value
    if value < stats[STAT_MIN]:
        stats[STAT_MIN] = value
    if value > stats[STAT_MAX]:
        stats[STAT_MAX] = value


def empty_stats(stats: npt.NDArray[np.int64]) -> None:
    """Bring the ``stats`` words of a histogram to their state without samples."""
    stats[:] = 0
    stats[STAT_MIN] = MAX_VALUE  # above none, so that the first value becomes the minimum


def stats_sum(stats: npt.NDArray[np.int64]) -> int:
    """The exact sum in ``stats``, which 64 bits may not hold."""
    return int(stats[STAT_SUM]) + (int(stats[STAT_SUM_HIGH]) << 63)


def percentile_rank(p: float | int | str, count: int) -> int:
    """Rank of percentile ``p`` among ``count`` sorted samples: ceil(p*count/100), at least 1, in exact arithmetic.

    ``Fraction(99.9)`` is not 999/10, so the decimal text of ``p`` is what counts.
    """
    exact = exact_percentile(p) * count / 100
    return max(1, -(-exact.numerator // exact.denominator))


def enough_samples(p: float | int | str, count: int) -> bool:
    """True when at least one sample is expected beyond percentile ``p``: p99.9 wants 1,000 samples."""
    return count > 0 and (100 - exact_percentile(p)) * count >= 100


def exact_percentile(p: float | int | str | Fraction | Decimal) -> Fraction:
    """The percentile as its decimal text says it.

    Raises:
        ValueError: it is no number.
    """
    # NumPy's floats are floats too, but their repr() names their type.
    return Fraction(float.__repr__(p) if isinstance(p, float) else p)
