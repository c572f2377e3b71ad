"""The histogram's bucket arithmetic on whole arrays: the same buckets as sysmeter.hist's functions, much faster.

The top bits of an integer as a float64 are its exponent and the bits after its highest one, next to each other and in
this order: the bit pattern, shifted right, numbers the buckets of all powers of two at once. 0.5 is added before, so
that 0 gets an exponent of its own (that of 0.5) and nothing else changes: the half stands below the last bit that
counts. What is left is to move the buckets below ``2**sub_bits`` together, where a histogram has one for each value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_MAX_INT64 = 2**63 - 1
# From here on the half no longer fits into the 53 bits of a float64's significand. Without its 12 lowest bits any
# value fits, and the 13 highest, which alone tell the bucket at the highest precision, are far above them.
_INEXACT_FROM = 2**52
_LOW_BITS = 2**12 - 1
_MANTISSA_BITS = 52
_EXPONENT_OF_HALF = 1022  # as float64 stores it, biased by 1023
# The block's floats stay in the second-level cache between the passes.
_BLOCK_LENGTH = 1 << 14


class Counted(NamedTuple):
    """Exact figures of counted values, ns; ``min_ns`` and ``max_ns`` mean nothing where there are none."""

    n_values: int
    min_ns: int
    max_ns: int
    sum_ns: int


def count_values(counts: npt.NDArray[np.int64], values: npt.NDArray[Any], sub_bits: int) -> tuple[Counted, int]:
    """Add values to bucket counts. ``counts`` has shape ``(n_buckets(sub_bits),)``, ``values`` one dimension.

    ``values`` is of any integer type. Values below 0 or above 2**63 - 1 go into no bucket. Returns the figures of
    those that did, and how many were above 2**63 - 1.
    """
    count, low, high, total, n_overflow = 0, _MAX_INT64, 0, 0, 0
    buffer = np.empty(min(_BLOCK_LENGTH, len(values)), np.float64)
    for at in range(0, len(values), _BLOCK_LENGTH):
        block = values[at : at + _BLOCK_LENGTH]
        if block.dtype.kind == "u" and int(block.max()) > _MAX_INT64:
            kept = block[block <= _MAX_INT64]
            n_overflow += len(block) - len(kept)
            block = kept
        block = block.astype(np.int64, copy=False)  # also from the other byte order
        if len(block) and int(block.min()) < 0:
            block = block[block >= 0]
        if not len(block):
            continue
        block_low, block_high = int(block.min()), int(block.max())
        low, high = min(low, block_low), max(high, block_high)
        count += len(block)
        if block_high * len(block) <= _MAX_INT64:
            total += int(block.sum())
        else:
            total += (int((block >> 32).sum()) << 32) + int((block & 0xFFFFFFFF).sum())
        if block_high >= _INEXACT_FROM:
            block = np.where(block >= _INEXACT_FROM, block & ~_LOW_BITS, block)
        _count_block(counts, block, buffer[: len(block)], sub_bits)
    return Counted(count, low, high, total), n_overflow


def _count_block(
    counts: npt.NDArray[np.int64],
    block: npt.NDArray[np.int64],
    floats: npt.NDArray[np.float64],
    sub_bits: int,
) -> None:
    np.add(block, 0.5, out=floats)
    places = floats.view(np.int64)
    np.right_shift(places, _MANTISSA_BITS - sub_bits, out=places)
    # Counted from the lowest value's place on, so that a few values do not cost an array of all places.
    first = int(places.min())
    places -= first
    found = np.bincount(places)
    first -= _EXPONENT_OF_HALF << sub_bits
    # Place 0 is that of value 0, `1 << sub_bits` that of value 1, `split` that of `1 << sub_bits`.
    split = (sub_bits + 1) << sub_bits
    n_small = max(0, split - first)
    small = np.flatnonzero(found[:n_small])
    place = small + first
    counts[((1 << sub_bits) + (place & ((1 << sub_bits) - 1))) >> (sub_bits + 1 - (place >> sub_bits))] += found[small]
    large = found[n_small:]
    if len(large):
        to = first + n_small - (sub_bits << sub_bits)
        counts[to : to + len(large)] += large


def upper_bounds(indices: npt.NDArray[np.int64], sub_bits: int) -> npt.NDArray[np.int64]:
    """``bucket_upper_bound`` of each index."""
    shift = np.maximum((indices >> sub_bits) - 1, 0)
    is_linear = indices < (1 << sub_bits)
    sub_bucket = (indices & ((1 << sub_bits) - 1)) + (1 << sub_bits)
    # The bound of the last bucket is 2**63 - 1: the 2**63 before wraps to -2**63, and back.
    return np.where(is_linear, indices, ((sub_bucket + 1) << shift) - 1)


def coarser(counts: npt.NDArray[np.int64], sub_bits: int, coarser_bits: int) -> npt.NDArray[np.int64]:
    """Bucket counts of precision ``sub_bits`` as counts of precision ``coarser_bits``, which is lower."""
    result = np.zeros((64 - coarser_bits) << coarser_bits, np.int64)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return result
    upper = upper_bounds(filled, sub_bits)
    # Ascending upper bounds of ascending buckets: a coarser bucket ends where its own upper bound is reached.
    own = upper_bounds(np.arange(len(result)), coarser_bits)
    np.add.at(result, np.searchsorted(own, upper), counts[filled])
    return result
