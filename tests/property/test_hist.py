"""The histogram against a sorted list."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from sysmeter.hist import (
    bucket_index,
    bucket_upper_bound,
    enough_samples,
    n_buckets,
    percentile_rank,
)
from tests.support.histograms import filled

SUB_BITS = st.integers(1, 12)
VALUES = st.integers(0, 2**63 - 1) | st.integers(0, 10_000_000)
PERCENTILES = st.sampled_from(["50", "90", "99", "99.9", "99.99"]) | st.decimals("0.01", "99.99", places=2).map(str)


@given(VALUES, SUB_BITS)
def test_a_value_lies_in_its_bucket_and_the_bucket_is_narrow(value: int, sub_bits: int) -> None:
    index = bucket_index(value, sub_bits)
    upper = bucket_upper_bound(index, sub_bits)
    lower = 0 if index == 0 else bucket_upper_bound(index - 1, sub_bits) + 1
    assert lower <= value <= upper
    assert 0 <= index < n_buckets(sub_bits)
    assert (upper - lower) << sub_bits <= max(lower, 1) or upper == lower


@given(VALUES, VALUES, SUB_BITS)
def test_buckets_keep_the_order(one: int, other: int, sub_bits: int) -> None:
    low, high = sorted((one, other))
    assert bucket_index(low, sub_bits) <= bucket_index(high, sub_bits)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), SUB_BITS, PERCENTILES)
def test_a_percentile_is_the_upper_bound_of_the_sorted_lists(values: list[int], sub_bits: int, p: str) -> None:
    histogram = filled(values, sub_bits)
    found = histogram.percentile_ns(p)
    if Fraction(100 - Fraction(p)) * len(values) < 100:
        assert found is None
        return
    exact = sorted(values)[math.ceil(Decimal(p) * len(values) / 100) - 1]
    assert found == min(bucket_upper_bound(bucket_index(exact, sub_bits), sub_bits), max(values))
    assert exact <= found


@given(st.integers(1, 10**12), PERCENTILES)
def test_the_rank_is_exact(count: int, p: str) -> None:
    rank = percentile_rank(p, count)
    assert (rank - 1) * 100 < Fraction(p) * count <= rank * 100
    assert percentile_rank(float(p), count) == rank
    if enough_samples(p, count):
        assert rank < count or Fraction(p) * count > (count - 1) * 100
