"""Histograms filled by the book."""

from __future__ import annotations

import numpy as np

from sysmeter.hist import LatencyHistogram, bucket_index, n_buckets


def filled(values: list[int], sub_bits: int = 7) -> LatencyHistogram:
    counts = np.zeros(n_buckets(sub_bits), np.int64)
    for value in values:
        counts[bucket_index(value, sub_bits)] += 1
    return LatencyHistogram(counts, sub_bits, len(values), min(values), max(values), sum(values))
