"""Histograms filled by the book: a value at a time, with nothing of what makes the class fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysmeter.hist import MAX_VALUE, LatencyHistogram, bucket_index, n_buckets


def filled(values: Sequence[int], sub_bits: int = 7) -> LatencyHistogram:
    counts = np.zeros(n_buckets(sub_bits), np.int64)
    counted = [value for value in values if 0 <= value <= MAX_VALUE]
    for value in counted:
        counts[bucket_index(value, sub_bits)] += 1
    n_negative = sum(value < 0 for value in values)
    n_overflow = len(values) - len(counted) - n_negative
    lowest, highest = min(counted, default=0), max(counted, default=0)
    figures = (len(counted), lowest, highest, sum(counted), n_negative, n_overflow)
    return LatencyHistogram.from_parts(counts, sub_bits, *figures)
