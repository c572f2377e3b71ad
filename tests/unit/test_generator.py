"""The generator: pinned bytes, and a book that a reader of the messages can follow."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from capstone import feedfile, generator
from sysmeter.errors import FeedFileError, UsageError

SHA256_DEFAULT = "088527baabf5f89c8ae81b07250e4b7e44eda38fac2b8d6d922a08eb96305c69"
SHA256_SMALL = "61803c6ff0deca689ab38ee9447c61e6248529f1f9c36e2446f5c6abe817d090"  # 10,000 messages, seed 7


@pytest.fixture(scope="module")
def default_feed() -> np.ndarray:
    return generator.generate()


def test_default_file_is_pinned(tmp_path: Path, default_feed: np.ndarray) -> None:
    path = tmp_path / "default.feed"
    feedfile.write(path, default_feed, generator.DEFAULT_INSTRUMENTS)
    assert feedfile.sha256(path) == SHA256_DEFAULT
    info = feedfile.info(path)
    assert info["count"] == 2_000_000
    assert info["duration_ns"] == 20_000_000_000
    assert info["instruments"] == {"42": 2_000_000}
    assert info["n_instruments"] == 64
    assert (info["first_seq"], info["last_seq"], info["sequence_gaps"], info["duplicates"]) == (
        1,
        2_000_000,
        0,
        0,
    )


def test_small_file_is_pinned(tmp_path: Path) -> None:
    path = tmp_path / "small.feed"
    generator.make_file(path, 10_000, 7)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256_SMALL


def test_more_messages_begin_with_the_same_ones(default_feed: np.ndarray) -> None:
    assert np.array_equal(generator.generate(1_000), default_feed[:1_000])


def test_seed_and_instrument_count() -> None:
    assert not np.array_equal(generator.generate(1_000, 1), generator.generate(1_000, 2))
    assert set(generator.generate(100, 1, 5)["instrument"].tolist()) == {5}


@pytest.mark.parametrize("seed", [0, 3, (1 << 64) - 1])
def test_compiled_code_equals_python(seed: int) -> None:
    messages = np.zeros(10_000, feedfile.MESSAGE)
    generator.simulate(messages.view("<i8").reshape(-1, 3), generator.random_state(seed), 42)
    assert np.array_equal(messages, generator.generate(10_000, seed))


def test_random_state_is_splitmix64() -> None:
    # The first two outputs of the reference splitmix64.c for seed 0.
    assert generator.random_state(0).tolist() == [0x7B1DCDAF, 0xE220A839, 0xA1B965F4, 0x6E789E6A]


@pytest.mark.parametrize("seed", [1, 2, 99])
def test_book_is_consistent_and_never_crossed(seed: int) -> None:
    n_messages = 60_000
    book: tuple[dict[int, int], dict[int, int]] = ({}, {})
    spreads, best_bids = [], []
    n_filled = 0
    for _, _, side, kind, _, price, quantity in generator.generate(n_messages, seed).tolist():
        levels = book[side]
        if kind == feedfile.KIND_ADD:
            assert price not in levels
            levels[price] = quantity
        elif kind == feedfile.KIND_CHANGE:
            assert levels[price] != quantity
            levels[price] = quantity
        else:
            assert quantity == 0
            del levels[price]
        assert kind == feedfile.KIND_DELETE or quantity > 0
        assert abs(price - generator.CENTRE_TICKS) <= generator.MAX_OFFSET_TICKS
        if not (book[0] and book[1]):
            continue
        spreads.append(min(book[1]) - max(book[0]))
        best_bids.append(max(book[0]))
        if n_filled or min(len(book[0]), len(book[1])) > generator.MIN_LEVELS:
            n_filled += 1
            assert all(generator.MIN_LEVELS <= len(levels) <= generator.MAX_LEVELS for levels in book)
    assert min(spreads) > 0
    assert np.mean(np.array(spreads) <= 3) > 0.95
    assert n_filled > n_messages * 0.98
    moves = np.diff(best_bids)
    assert np.count_nonzero(moves > 0) > n_messages * 0.01
    assert np.count_nonzero(moves < 0) > n_messages * 0.01


def test_prices_come_back_from_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    # Run as Python with narrow bounds: the walk meets them, and stays within.
    monkeypatch.setattr(generator, "MAX_OFFSET_TICKS", 60)
    monkeypatch.setattr(generator, "_SOFT_OFFSET_TICKS", 20)
    messages = np.zeros(40_000, feedfile.MESSAGE)
    generator.simulate(messages.view("<i8").reshape(-1, 3), generator.random_state(1), 42)
    offsets = messages["price_ticks"] - generator.CENTRE_TICKS
    assert -60 <= offsets.min() < -30
    assert 30 < offsets.max() <= 60


@pytest.mark.parametrize(
    ("n_messages", "seed"), [(0, 1), (-5, 1), (generator.MAX_MESSAGES + 1, 1), (10, -1), (10, 1 << 64)]
)
def test_bad_arguments(n_messages: int, seed: int) -> None:
    with pytest.raises(UsageError) as caught:
        generator.generate(n_messages, seed)
    assert "give a number from" in caught.value.hint


def test_make_file_refuses_before_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "generate", lambda *_args: pytest.fail("generated"))
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(FeedFileError, match="exists already"):
        generator.make_file(tmp_path / "a", 10, 1, overwrite=False)
