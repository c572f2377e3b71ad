"""Log-linear latency histogram: ``2**sub_bits`` linear sub-buckets per power of two.

The three bucket functions are plain integer code: the capstone compiles them as they stand, so that the
measured loop and the analysis can never disagree about a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MIN_SUB_BITS = 1
MAX_SUB_BITS = 12


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


def percentile_rank(p: float | int | str, count: int) -> int:
    """Rank of percentile ``p`` among ``count`` sorted samples: ceil(p*count/100), at least 1, in exact arithmetic.

    ``Fraction(99.9)`` is not 999/10, so the decimal text of ``p`` is what counts.
    """
    exact = Fraction(p if isinstance(p, str) else repr(p)) * count / 100
    return max(1, -(-exact.numerator // exact.denominator))


def enough_samples(p: float | int | str, count: int) -> bool:
    """True when at least one sample is expected beyond percentile ``p``: p99.9 wants 1,000 samples."""
    beyond = (100 - Fraction(p if isinstance(p, str) else repr(p))) * count / 100
    return count > 0 and beyond >= 1


@dataclass(frozen=True)
class LatencyHistogram:
    """A filled histogram: bucket counts, with count, min, max and sum exact.

    ``counts`` has shape ``(n_buckets(sub_bits),)`` and dtype int64. Values are nanoseconds.
    ``n_negative`` counts values below zero, which are in no bucket and in no other figure.
    """

    counts: npt.NDArray[np.int64]
    sub_bits: int
    count: int
    min_ns: int
    max_ns: int
    sum_ns: int
    n_negative: int = 0

    @property
    def mean_ns(self) -> float | None:
        """Exact mean, or None without samples."""
        return self.sum_ns / self.count if self.count else None

    def percentile_ns(self, p: float | int | str) -> int | None:
        """Upper bound of the bucket that holds percentile ``p``, at most the exact maximum.

        None where fewer samples stand behind it than :func:`enough_samples` asks for.
        """
        if not enough_samples(p, self.count):
            return None
        rank = percentile_rank(p, self.count)
        index = int(self.counts.cumsum().searchsorted(rank))
        return min(bucket_upper_bound(index, self.sub_bits), self.max_ns)
