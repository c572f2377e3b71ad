"""Message file: sound messages come back as they went in, and damage is refused or harmless."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capstone import feedfile
from sysmeter.errors import FeedFileError

_I32_MAX = (1 << 31) - 1
_RECORD = st.tuples(
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, 1),
    st.integers(0, 2),
    st.just(0),
    st.integers(0, feedfile.MAX_PRICE_SPAN_TICKS - 1),
    st.integers(1, _I32_MAX),
)


@given(
    records=st.lists(_RECORD, min_size=1, max_size=50),
    lowest=st.integers(0, _I32_MAX - feedfile.MAX_PRICE_SPAN_TICKS),
    n_instruments=st.integers(1, (1 << 32) - 1),
)
def test_round_trip(records: list[tuple[int, ...]], lowest: int, n_instruments: int) -> None:
    messages = np.array(records, feedfile.MESSAGE)
    messages["price_ticks"] += lowest
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.feed"
        feedfile.write(path, messages, n_instruments)
        feed = feedfile.read(path)
        assert (feed.count, feed.n_instruments) == (len(records), n_instruments)
        assert np.array_equal(feed.messages, messages)

        highest, n_gaps, n_duplicates = int(messages["seq"][0]), 0, 0
        for seq in messages["seq"][1:].tolist():
            n_gaps += seq > highest + 1
            n_duplicates += seq <= highest
            highest = max(highest, seq)
        info = feedfile.info(path)
        assert (info["sequence_gaps"], info["duplicates"], info["max_seq"]) == (n_gaps, n_duplicates, highest)


@given(data=st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    messages = np.zeros(3, feedfile.MESSAGE)
    messages["seq"], messages["quantity"] = [1, 2, 3], 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.feed"
        feedfile.write(path, messages, 64)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        feed, error = None, None
        try:
            feed = feedfile.read(path)
        except FeedFileError as refusal:
            error = refusal
        if feed is None:
            assert error is not None
            assert error.hint
        else:
            assert feed.count == 3
            assert np.ptp(feed.messages["price_ticks"].astype(np.int64)) < feedfile.MAX_PRICE_SPAN_TICKS
