"""The message file: what is written is read, and whatever is not sound is refused by name."""

from __future__ import annotations

import hashlib
import os
import resource
import struct
from pathlib import Path

import numpy as np
import pytest

from capstone import feedfile
from sysmeter.errors import FeedFileError


def some_messages(n: int = 5) -> np.ndarray:
    messages = np.zeros(n, feedfile.MESSAGE)
    messages["seq"] = np.arange(1, n + 1)
    messages["instrument"] = 42
    messages["price_ticks"] = 100_000 + np.arange(n)
    messages["quantity"] = 10
    return messages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.feed"
    feedfile.write(path, some_messages(), 64)
    return path


def damage(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def refused(path: Path, *words: str) -> None:
    with pytest.raises(FeedFileError) as caught:
        feedfile.read(path)
    assert caught.value.hint
    for word in words:
        assert word in caught.value.message


def test_layout_is_the_documented_one(path: Path) -> None:
    data = path.read_bytes()
    assert data[:64] == struct.pack("<8sIIIIQ32s", b"SYSMFEED", 1, 64, 24, 64, 5, bytes(32))
    assert len(data) == 64 + 5 * 24
    assert data[64:88] == struct.pack("<QIBBHii", 1, 42, 0, 0, 0, 100_000, 10)


def test_a_record_is_three_words() -> None:
    message = np.zeros(1, feedfile.MESSAGE)
    message[0] = (7, 42, 1, 2, 0, 100_001, 33)
    assert message.view("<i8").tolist() == [7, 42 | 1 << 32 | 2 << 40, 100_001 | 33 << 32]


def test_round_trip(path: Path) -> None:
    feed = feedfile.read(path)
    assert (feed.version, feed.n_instruments, feed.count, feed.size_bytes) == (1, 64, 5, 184)
    assert feed.duration_ns == 50_000
    assert np.array_equal(feed.messages, some_messages())
    assert not feed.messages.flags.writeable


def test_info_counts_gaps_and_duplicates(tmp_path: Path) -> None:
    messages = some_messages(7)
    messages["seq"] = [1, 2, 5, 5, 3, 6, 9]
    messages["instrument"] = [42, 42, 42, 7, 42, 42, 99]
    messages["kind"] = [0, 1, 2, 0, 0, 0, 1]
    path = tmp_path / "a.feed"
    feedfile.write(path, messages, 64)
    info = feedfile.info(path)
    assert info["sequence_gaps"] == 2
    assert info["missing_sequence_numbers"] == 4
    assert info["duplicates"] == 2
    assert info["instruments"] == {"7": 1, "42": 5, "99": 1}
    assert info["kinds"] == {"add": 4, "change": 2, "delete": 1}
    assert (info["min_price_ticks"], info["max_price_ticks"]) == (100_000, 100_006)
    assert (info["min_seq"], info["max_seq"], info["first_seq"], info["last_seq"]) == (1, 9, 1, 9)
    assert info["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_info_of_one_message(tmp_path: Path) -> None:
    feedfile.write(tmp_path / "a", some_messages(1), 64)
    info = feedfile.info(tmp_path / "a")
    assert (info["count"], info["sequence_gaps"], info["duplicates"]) == (1, 0, 0)


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path / "none", "does not exist")


def test_directory(tmp_path: Path) -> None:
    refused(tmp_path, "directory")


def test_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


def test_below_a_file(path: Path) -> None:
    refused(path / "x", "cannot read")


def test_empty(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    refused(tmp_path / "a", "empty")


@pytest.mark.parametrize("content", [b"x", b"hello, this is text\n" * 9, bytes(200)])
def test_not_a_message_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    refused(tmp_path / "a", "not a message file")


@pytest.mark.parametrize("length", [1, 8, 9, 63])
def test_truncated_header(path: Path, length: int) -> None:
    os.truncate(path, length)
    refused(path, "truncated", f"{length} of 64 header bytes")


def test_wrong_version(path: Path) -> None:
    damage(path, 8, struct.pack("<I", 2))
    refused(path, "version 2", "version 1")


@pytest.mark.parametrize(("offset", "value"), [(12, 65), (16, 32), (20, 0), (60, 1)])
def test_damaged_header(path: Path, offset: int, value: int) -> None:
    damage(path, offset, struct.pack("<I", value))
    refused(path, "damaged header")


@pytest.mark.parametrize("cut", [1, 23])
def test_truncated_last_record(path: Path, cut: int) -> None:
    os.truncate(path, path.stat().st_size - cut)
    refused(path, "truncated", f"last record has {24 - cut} of 24 bytes")


@pytest.mark.parametrize("count", [0, 4, 6, (1 << 64) - 1])
def test_count_disagrees_with_size(path: Path, count: int) -> None:
    damage(path, 24, struct.pack("<Q", count))
    refused(path, f"counts {count} records", "holds 5")


def test_no_records(path: Path) -> None:
    damage(path, 24, struct.pack("<Q", 0))
    os.truncate(path, 64)
    refused(path, "no records")


@pytest.mark.parametrize(
    ("offset", "data", "word"),
    [
        (7, b"\x80", "sequence number"),
        (12, b"\x02", "side"),
        (13, b"\x03", "kind"),
        (14, b"\x01", "reserved"),
        (16, struct.pack("<i", -1), "negative price"),
        (20, struct.pack("<i", -1), "negative quantity"),
        (20, struct.pack("<i", 0), "quantity of 0"),
    ],
)
def test_unsound_record(path: Path, offset: int, data: bytes, word: str) -> None:
    damage(path, 64 + 2 * 24 + offset, data)
    refused(path, "record 2 ", word)


def test_price_span_bound(tmp_path: Path) -> None:
    messages = some_messages(2)
    messages["price_ticks"] = [5, 5 + feedfile.MAX_PRICE_SPAN_TICKS - 1]
    feedfile.write(tmp_path / "a", messages, 64)
    assert feedfile.read(tmp_path / "a").count == 2
    damage(tmp_path / "a", 64 + 16, struct.pack("<i", 4))
    refused(tmp_path / "a", "prices span", "too wide")


def test_unsound_messages_are_not_written(tmp_path: Path) -> None:
    messages = some_messages()
    messages["side"][3] = 9
    with pytest.raises(FeedFileError, match="record 3"):
        feedfile.write(tmp_path / "a", messages, 64)
    with pytest.raises(FeedFileError, match="no records"):
        feedfile.write(tmp_path / "a", some_messages(0), 64)
    with pytest.raises(FeedFileError, match="instruments"):
        feedfile.write(tmp_path / "a", some_messages(), 0)
    with pytest.raises(FeedFileError, match="dtype"):
        feedfile.write(tmp_path / "a", np.zeros(3), 64)
    assert list(tmp_path.iterdir()) == []


def test_write_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(FeedFileError, match="cannot write"):
        feedfile.write(tmp_path / "no" / "a", some_messages(), 64)
    with pytest.raises(FeedFileError, match="is a directory"):
        feedfile.write(tmp_path, some_messages(), 64)
    with pytest.raises(FeedFileError, match="not a regular file"):
        feedfile.write(Path("/dev/null"), some_messages(), 64)
    assert Path("/dev/null").is_char_device()


def test_write_overwrites_only_when_told(path: Path) -> None:
    with pytest.raises(FeedFileError, match="exists already"):
        feedfile.write(path, some_messages(9), 64, overwrite=False)
    assert feedfile.read(path).count == 5
    feedfile.write(path, some_messages(9), 64)
    assert feedfile.read(path).count == 9


def test_write_goes_through_a_symbolic_link(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to(path)
    feedfile.write(link, some_messages(9), 64)
    assert link.is_symlink()
    assert feedfile.read(path).count == 9


def test_full_disk_leaves_what_was_there(path: Path) -> None:
    # The limit on a file's size makes write(2) fail half-way as a full disk does.
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(FeedFileError, match="cannot write") as caught:
            feedfile.write(path, some_messages(1000), 64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "space" in caught.value.hint
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        feedfile.write(tmp_path / "a", some_messages(), 64)
    assert list(tmp_path.iterdir()) == []


def test_sha256_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FeedFileError, match="cannot read"):
        feedfile.sha256(tmp_path / "none")
