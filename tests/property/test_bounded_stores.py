"""The stores that keep the largest: against sorting everything."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

# numba's cache belongs to the workload process; here nothing is cached on disk.
os.environ.setdefault("NUMBA_CACHE_DIR", "/proc/self/no-cache")

from capstone import gaps, keep_largest, tail_store


@given(st.lists(st.integers(0, 50), max_size=80), st.integers(1, 12))
def test_heap_keeps_exactly_what_is_above_its_floor(keys, capacity):
    heap = np.zeros(keep_largest.n_words(capacity), np.int64)
    keep_largest.initialize(heap, capacity)
    entries = {}
    for number, key in enumerate(keys):
        slot = keep_largest.offer(heap, key)
        if slot >= 0:
            entries[slot] = (key, number)
    held = int(heap[keep_largest.HELD])
    floor = int(heap[keep_largest.FLOOR])
    kept = sorted(heap[keep_largest.KEYS :][:held].tolist())
    assert kept == sorted(keys, reverse=True)[:held][::-1]
    assert all(key > floor for key in kept) or floor in keys
    assert held + int(heap[keep_largest.N_DROPPED]) == len(keys)
    slots = heap[keep_largest.KEYS + capacity :][:held].tolist()
    assert sorted(entries[slot][0] for slot in slots) == kept
    assert all(key >= min(kept, default=0) for key in keys if key > floor)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(5_001, 10**7), min_size=1, max_size=300))
def test_gaps_come_back_by_time(lengths):
    store = np.zeros(gaps.n_words(), np.int64)
    keep_largest.initialize(store[: keep_largest.n_words(gaps.CAPACITY)], gaps.CAPACITY)
    expected, now_ns = [], 0
    for length in lengths:
        gaps.keep_gap(store, now_ns, now_ns + length, length % 2)
        expected.append([now_ns, now_ns + length, length % 2])
        now_ns += length + 1
    assert gaps.kept(store).tolist() == expected


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 3_000), st.integers(1, 400))
def test_tail_store_keeps_the_slowest_batches_with_their_releases(seed, n_batches, most_messages):
    random = np.random.default_rng(seed)
    # Large batches exhaust the chunks, many small ones the heap: the bounds are crossed either way.
    sizes = random.integers(1, most_messages + 1, n_batches) * (40 if n_batches < 100 else 8)
    peaks = random.permutation(n_batches * 10)[:n_batches] + 1
    releases = random.integers(0, 2**40, int(sizes.sum()))
    store = np.zeros(tail_store.n_words(), np.int64)
    tail_store.initialize(store)
    firsts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    batch = np.zeros(6, np.int64)
    for number, (size, peak, first) in enumerate(zip(sizes, peaks, firsts, strict=True)):
        batch[:] = (number, number, first, size, 0, 0)
        tail_store.offer_batch(store, int(peak), batch, releases, 2**62 - 1)
    kept, kept_releases, offsets = tail_store.kept(store)
    floor = int(store[keep_largest.FLOOR])
    assert kept[:, 0].tolist() == [number for number in range(n_batches) if peaks[number] > floor]
    for row, offset in zip(kept, offsets, strict=True):
        size, first = int(row[3]), int(row[2])
        assert np.array_equal(kept_releases[offset : offset + size], releases[first : first + size])
    chunks_used = sum(-(-int(size) // 16) for size in kept[:, 3])
    assert chunks_used + int(store[tail_store._FREE]) == tail_store.N_CHUNKS
