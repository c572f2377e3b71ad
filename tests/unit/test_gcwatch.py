"""The collection watch against CPython's own count."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from sysmeter import records
from sysmeter.clock import now_ns
from sysmeter.gcwatch import GcWatch, collections_by_generation


class Watched:
    def __init__(self, capacity: int = 1000) -> None:
        self.storage = np.zeros(capacity, records.COLLECTION)
        self.header = np.full(2, 99, np.int64)
        self.watch = GcWatch(self.storage, self.header)

    @property
    def records(self) -> np.ndarray:
        return self.storage[: self.header[0]]

    def counts(self) -> list[int]:
        return np.bincount(self.records["generation"], minlength=3).tolist()


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.watch.stop()


def test_each_generation_is_seen_and_counted(watched: Watched) -> None:
    gc.disable()
    try:
        before = collections_by_generation()
        t_before_ns = now_ns()
        watched.watch.start()
        for generation in (2, 0, 1, 0, 2, 0):
            gc.collect(generation)
        watched.watch.stop()
        t_after_ns = now_ns()
        after = collections_by_generation()
    finally:
        gc.enable()
    found = watched.records
    assert found["generation"].tolist() == [2, 0, 1, 0, 2, 0]
    assert watched.counts() == [b - a for a, b in zip(before, after, strict=True)] == [3, 1, 2]
    assert set(found["tid"].tolist()) == {threading.get_native_id()}
    edges = np.column_stack([found["t_start_ns"], found["t_end_ns"]]).ravel()
    assert t_before_ns <= edges[0]
    assert edges[-1] <= t_after_ns
    assert (np.diff(edges) >= 0).all()
    assert (found["t_end_ns"] > found["t_start_ns"]).all()
    assert watched.header[1] == 0


def test_automatic_collections_are_seen(watched: Watched) -> None:
    before = collections_by_generation()
    watched.watch.start()
    kept = [[i] for i in range(20_000)]
    watched.watch.stop()
    after = collections_by_generation()
    assert len(kept) == 20_000
    assert watched.counts() == [b - a for a, b in zip(before, after, strict=True)]
    assert len(watched.records) > 0


def test_several_threads() -> None:
    watched = Watched(capacity=100_000)
    tids = []

    def collect() -> None:
        tids.append(threading.get_native_id())
        for i in range(60):
            gc.collect(i % 3)
            _ = [[i] for i in range(500)]

    threads = [threading.Thread(target=collect) for _ in range(4)]
    before = collections_by_generation()
    watched.watch.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watched.watch.stop()
    after = collections_by_generation()
    found = watched.records
    assert watched.counts() == [b - a for a, b in zip(before, after, strict=True)]
    assert watched.header[1] == 0
    # One thread's gc.collect() does nothing while another's is going on, so not every thread need appear.
    assert set(found["tid"].tolist()) <= {*tids, threading.get_native_id()}
    # Collections of one interpreter never overlap.
    assert (found["t_start_ns"][1:] >= found["t_end_ns"][:-1]).all()


def test_a_collection_carries_the_thread_that_did_it(watched: Watched) -> None:
    tids = []

    def collect() -> None:
        tids.append(threading.get_native_id())
        gc.collect(1)

    gc.disable()
    try:
        watched.watch.start()
        for _ in range(3):
            thread = threading.Thread(target=collect)
            thread.start()
            thread.join()
        watched.watch.stop()
    finally:
        gc.enable()
    assert watched.records["tid"].tolist() == tids
    assert watched.counts() == [0, 3, 0]


def test_full_storage_counts_what_it_loses() -> None:
    watched = Watched(capacity=2)
    gc.disable()
    try:
        watched.watch.start()
        for _ in range(5):
            gc.collect(0)
        watched.watch.stop()
    finally:
        gc.enable()
    assert watched.header.tolist() == [2, 3]
    assert watched.counts() == [2, 0, 0]


def test_storage_without_room() -> None:
    watched = Watched(capacity=0)
    watched.watch.start()
    gc.collect(0)
    watched.watch.stop()
    assert watched.header[0] == 0
    assert watched.header[1] >= 1


def test_start_and_stop_twice(watched: Watched) -> None:
    n_callbacks = len(gc.callbacks)
    watched.watch.start()
    watched.watch.start()
    assert len(gc.callbacks) == n_callbacks + 1
    watched.watch.stop()
    watched.watch.stop()
    assert len(gc.callbacks) == n_callbacks
    gc.collect(0)
    assert watched.header.tolist() == [0, 0]


def test_started_amid_a_collection_counts_it_as_lost(watched: Watched) -> None:
    def start_now(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            gc.callbacks.remove(start_now)
            gc.callbacks.append(lambda *_args: None)  # fills the place that the removal skips
            watched.watch.start()
            # The loop over the callbacks may still reach the new one in this phase: make it not have seen it.
            watched.watch._t_start_ns = -1

    callbacks = list(gc.callbacks)
    gc.disable()
    try:
        gc.callbacks.insert(0, start_now)
        gc.collect(0)
        watched.watch.stop()
    finally:
        gc.callbacks[:] = callbacks
        gc.enable()
    assert watched.header[0] + watched.header[1] == 1


def test_stopped_by_the_collecting_thread_does_not_hang(watched: Watched) -> None:
    class StopsWhenCollected:
        def __del__(self) -> None:
            watched.watch.stop()

    cycle = StopsWhenCollected()
    cycle.self = cycle  # type: ignore[attr-defined]
    gc.disable()
    try:
        watched.watch.start()
        del cycle
        t_before_ns = now_ns()
        gc.collect()
        assert now_ns() - t_before_ns < 2_000_000_000
    finally:
        gc.enable()
    assert watched.header.tolist() == [0, 1]


def test_callback_gives_the_collector_nothing_to_count(watched: Watched) -> None:
    callback = watched.watch._callback
    info = {"generation": 0, "collected": 0, "uncollectable": 0}
    gc.disable()
    try:
        gc.collect()
        before = gc.get_count()[0]
        for _ in range(500):
            callback("start", info)
            callback("stop", info)
        after = gc.get_count()[0]
    finally:
        gc.enable()
    assert after - before < 10
    assert watched.header[0] == 500


@pytest.mark.parametrize(
    ("storage", "header"),
    [
        (np.zeros(4), np.zeros(2, np.int64)),
        (np.zeros((2, 2), records.COLLECTION), np.zeros(2, np.int64)),
        (np.zeros(8, records.COLLECTION)[::2], np.zeros(2, np.int64)),
        (np.zeros(4, records.COLLECTION), np.zeros(3, np.int64)),
        (np.zeros(4, records.COLLECTION), np.zeros(2, np.int32)),
        (np.frombuffer(bytes(64), records.COLLECTION), np.zeros(2, np.int64)),
    ],
)
def test_unfit_arrays(storage: np.ndarray, header: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"storage|header"):
        GcWatch(storage, header)
