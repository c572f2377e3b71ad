"""The histogram against a sorted list."""

from __future__ import annotations

import copy
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysmeter.hist import (
    MAX_VALUE,
    LatencyHistogram,
    bucket_index,
    bucket_upper_bound,
    enough_samples,
    n_buckets,
    percentile_rank,
)
from tests.support.histograms import filled

SUB_BITS = st.integers(1, 12)
VALUES = st.integers(0, 2**63 - 1) | st.integers(0, 10_000_000)
EDGES = st.integers(0, 63).flatmap(lambda k: st.sampled_from([2**k - 1, 2**k, 2**k + 1]))
WIDE = VALUES | EDGES.filter(lambda value: value <= MAX_VALUE)
ANY = WIDE | EDGES | st.integers(-10, -1) | st.integers(-(2**63), 2**64 - 1)
LISTS = st.lists(ANY, max_size=60)
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
    found = histogram.reportable_percentile(p)
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


@given(st.lists(VALUES, min_size=1, max_size=50), SUB_BITS)
def test_percentiles_0_and_100_are_the_ends(values: list[int], sub_bits: int) -> None:
    histogram = filled(values, sub_bits)
    assert histogram.percentile(0) == min(
        bucket_upper_bound(bucket_index(min(values), sub_bits), sub_bits), max(values)
    )
    assert histogram.percentile(100) == histogram.max == max(values)
    assert histogram.reportable_percentile(100) is None


@given(LISTS, SUB_BITS)
def test_record_counts_by_the_book(values: list[int], sub_bits: int) -> None:
    histogram = LatencyHistogram(sub_bits)
    for value in values:
        histogram.record(value)
    assert_holds(histogram, values)


@given(LISTS, LISTS, SUB_BITS)
def test_record_many_counts_by_the_book(values: list[int], more: list[int], sub_bits: int) -> None:
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(values)
    for value in more[:5]:
        histogram.record(value)
    histogram.record_many(iter(more[5:]))
    assert_holds(histogram, values + more)


DTYPES = [np.dtype(kind) for kind in ("i1", "<i2", ">i4", "<i8", ">i8", "u1", "<u2", "<u4", "<u8", ">u8", "?")]


@given(st.sampled_from(DTYPES), st.data(), SUB_BITS)
def test_record_many_of_any_integer_array(dtype: np.dtype[np.generic], data: st.DataObject, sub_bits: int) -> None:
    limits = np.iinfo(np.uint8) if dtype.kind == "b" else np.iinfo(dtype)
    values = data.draw(st.lists(ANY.filter(lambda v: limits.min <= v <= limits.max), min_size=2, max_size=40))
    array = np.array(values).astype(dtype) if dtype.kind == "b" else np.array(values, dtype)
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(array[::2])
    histogram.record_many(array.reshape(2, -1).T if len(array) % 2 == 0 else array)
    assert_holds(histogram, [int(value) for value in array.tolist()[::2] + array.tolist()])


@pytest.mark.parametrize("sub_bits", range(1, 13))
def test_record_many_finds_the_bucket_at_every_edge(sub_bits: int) -> None:
    values = sorted({v for k in range(64) for v in range(2**k - 3, 2**k + 4) if 0 <= v <= MAX_VALUE})
    values += [bucket_upper_bound(index, sub_bits) + d for index in range(0, n_buckets(sub_bits), 7) for d in (0, 1)]
    values = [value for value in values if value <= MAX_VALUE]
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(np.array(values, np.int64))
    assert_holds(histogram, values)


def test_record_many_of_more_than_a_block() -> None:
    generator = np.random.default_rng(1)
    values = (10 ** generator.uniform(0, 18.9, 50_001)).astype(np.int64)
    values[::1_000] = -1
    histogram = LatencyHistogram(9)
    histogram.record_many(values)
    assert_holds(histogram, values.tolist())


@given(st.integers(0, 10**5), st.integers(-2, 3_000), SUB_BITS)
def test_record_corrected_fills_in_what_was_omitted(value: int, interval: int, sub_bits: int) -> None:
    histogram = LatencyHistogram(sub_bits)
    histogram.record(7)
    histogram.record_corrected(value, interval)
    expected, missing = [7, value], value - interval
    while interval > 0 and missing >= interval:
        expected.append(missing)
        missing -= interval
    assert_holds(histogram, expected)


@given(st.lists(st.tuples(LISTS, SUB_BITS), min_size=3, max_size=3))
def test_merging_is_recording_in_one_and_order_does_not_matter(parts: list[tuple[list[int], int]]) -> None:
    a, b, c = ([values, bits] for values, bits in parts)
    one = merged(merged(filled(*a), filled(*b)), filled(*c))
    other = merged(filled(*c), merged(filled(*b), filled(*a)))
    assert one == other == filled(a[0] + b[0] + c[0], min(a[1], b[1], c[1]))


@given(LISTS, SUB_BITS)
def test_an_empty_histogram_changes_nothing_and_merging_with_itself_doubles(values: list[int], sub_bits: int) -> None:
    histogram = merged(filled(values, sub_bits), LatencyHistogram(sub_bits))
    assert_holds(histogram, values)
    histogram.merge(histogram)
    assert_holds(histogram, values * 2)


@given(LISTS, SUB_BITS)
def test_what_is_written_is_read_back(values: list[int], sub_bits: int) -> None:
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(values)
    for again in (
        LatencyHistogram.from_dict(json.loads(json.dumps(histogram.to_dict()))),
        pickle.loads(pickle.dumps(histogram)),
        copy.copy(histogram),
    ):
        assert_holds(again, values)
        again.record(5)
        assert_holds(again, [*values, 5])
    assert_holds(histogram, values)


def assert_holds(histogram: LatencyHistogram, values: list[int]) -> None:
    """The histogram is what the values give by the book; its figures are theirs, exactly."""
    counted = sorted(value for value in values if 0 <= value <= MAX_VALUE)
    assert histogram == filled(values, histogram.sub_bits)
    assert (histogram.count, histogram.sum) == (len(counted), sum(counted))
    assert histogram.n_negative == sum(value < 0 for value in values)
    assert histogram.n_overflow == sum(value > MAX_VALUE for value in values)
    if counted:
        assert (histogram.min, histogram.max) == (counted[0], counted[-1])
        assert histogram.mean == sum(counted) / len(counted)
    else:
        assert (histogram.min, histogram.max, histogram.mean, histogram.percentile(50)) == (None, None, None, None)


def merged(one: LatencyHistogram, other: LatencyHistogram) -> LatencyHistogram:
    before = copy.copy(other)
    one.merge(other)
    assert other == before
    return one
