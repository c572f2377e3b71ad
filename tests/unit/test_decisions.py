"""The decisions file: written as its format says, read strictly, joined on the sequence number."""

from __future__ import annotations

import io
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import decisions
from sysmeter.errors import DecisionsFileError
from sysmeter.records import DECISION
from tests.support.decisions import HEADER, some_decisions, text_of

ROW = "5,100,5,104,7,101,103"


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "d.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> DecisionsFileError:
    with pytest.raises(DecisionsFileError) as caught:
        decisions.read(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


def rows(*lines: str) -> np.ndarray[Any, Any]:
    return np.array([tuple(map(int, line.split(","))) for line in lines], DECISION)


def test_what_is_written_is_the_documented_text(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    decisions.write_csv(path, rows("2,100,5,-1,0,-1,-1", "5,100,5,104,7,101,103"))
    assert path.read_text() in (decisions.__doc__ or "").replace("    ", "")
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_no_line_is_longer_than_promised(tmp_path: Path) -> None:
    seq, field = np.iinfo(np.int64), np.iinfo(np.int32)
    longest = np.array([(seq.max, *[field.min] * 6)], DECISION)
    file = io.BytesIO()
    decisions.write_lines(file, longest)
    assert len(file.getvalue().splitlines(keepends=True)[1]) == decisions.MAX_LINE_BYTES
    assert (decisions.read(written(tmp_path, file.getvalue())) == longest).all()


@pytest.mark.parametrize("n", [0, 1, 2_047, 2_048, 2_049, 70_000])
def test_round_trip_over_the_borders_of_blocks(tmp_path: Path, n: int) -> None:
    expected = some_decisions(n)
    decisions.write_csv(tmp_path / "d.csv", expected)
    assert (tmp_path / "d.csv").read_bytes() == text_of(expected)
    found = decisions.read(tmp_path / "d.csv")
    assert found.dtype == DECISION
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("n", [3, 70_000])
def test_crlf_and_byte_order_mark_are_taken(tmp_path: Path, n: int) -> None:
    expected = some_decisions(n)
    text = text_of(expected).replace(b"\n", b"\r\n")
    assert np.array_equal(decisions.read(written(tmp_path, b"\xef\xbb\xbf" + text)), expected)


def test_leading_zeros_and_extremes_are_taken(tmp_path: Path) -> None:
    lines = [f"{'0' * 5_000}1,007,-0,08,-2147483648,2147483647,0", "9223372036854775807,1,2,3,4,5,6"]
    found = decisions.read(written(tmp_path, "\n".join([HEADER, *lines, ""])))
    assert found.tolist() == [(1, 7, 0, 8, -(2**31), 2**31 - 1, 0), (2**63 - 1, 1, 2, 3, 4, 5, 6)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "is empty"),
        ("5", "has 1 field, not 7"),
        ("5,1,2,3,4,5", "has 6 fields, not 7"),
        ("5,1,2,3,4,5,6,7", "has 8 fields, not 7"),
        ("5,1,2,3,4,5,", "wanted_ask is ''"),
        (",1,2,3,4,5,6", "seq is ''"),
        ("5,1,,3,4,5,6", "bid_quantity is ''"),
        ("5,1,-,3,4,5,6", "bid_quantity is '-'"),
        ("5,1,--2,3,4,5,6", "bid_quantity is '--2'"),
        ("5,1,2-,3,4,5,6", "bid_quantity is '2-'"),
        ("5,1,+2,3,4,5,6", r"bid_quantity is '\+2'"),
        ("5,1, 2,3,4,5,6", "bid_quantity is ' 2'"),
        ("5,1,2.0,3,4,5,6", "bid_quantity is '2.0'"),
        ("5,1,1e3,3,4,5,6", "bid_quantity is '1e3'"),
        ("5,1,0x2,3,4,5,6", "bid_quantity is '0x2'"),
        ("5,1,٣,3,4,5,6", "bid_quantity is"),
        ("5,1,\x00,3,4,5,6", r"bid_quantity is '\\x00'"),
        ('"5",1,2,3,4,5,6', "seq is '\"5\"'"),
        ("5;1;2;3;4;5;6", "has 1 field"),
        ("5,1,2,3,4,5,6\r", r"wanted_ask is '6\\r'"),
        ("5,1\r,2,3,4,5,6", r"bid_price is '1\\r'"),
        (HEADER, "seq is 'seq'"),
        ("9223372036854775808,1,2,3,4,5,6", "64 bits"),
        ("-9223372036854775809,1,2,3,4,5,6", "64 bits"),
        (f"{'9' * 5_000},1,2,3,4,5,6", "64 bits"),
        ("5,2147483648,2,3,4,5,6", "bid_price is '2147483648', which 32 bits"),
        ("5,1,2,3,4,5,-2147483649", "32 bits"),
        ("5,1,2,3,4,5,99999999999999999999", "32 bits"),
        ("1" * 3_000_000, "is longer than 1,048,576 bytes"),
    ],
)
@pytest.mark.parametrize("n_before", [0, 60_000])
def test_a_broken_line_is_named(tmp_path: Path, line: str, words: str, n_before: int) -> None:
    content = text_of(some_decisions(n_before)) + line.encode() + b"\r\n" * line.endswith("\r") + b"\n"
    error = refusal(written(tmp_path, content))
    assert f"line {n_before + 2}" in error.message
    with pytest.raises(DecisionsFileError, match=words):
        raise error
    assert len(error.message) < 300 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n", "is not a decisions file"),
        (b"\xef\xbb\xbf", "is not a decisions file"),
        (b"hello\n", "is not a decisions file: line 1 is 'hello'"),
        (f"{ROW}\n".encode(), "has no header"),
        (f"{HEADER},more\n{ROW},1\n".encode(), "is not a decisions file"),
        (f"{HEADER.upper()}\n{ROW}\n".encode(), "is not a decisions file"),
        (HEADER.encode(), "line 1 has no end"),
        (f"{HEADER}\r".encode(), "line 1 has no end"),
        (f"{HEADER}\n{ROW}".encode(), "line 2 has no end"),
        (f"{HEADER}\n{ROW}\r".encode(), "line 2 has no end"),
        (f"{HEADER}\n{ROW}\n\n".encode(), "line 3: is empty"),
        (f"{HEADER}\n{ROW}\n".encode("utf-16"), "is not a decisions file"),
        (b"\x7fELF" + bytes(range(256)) * 50, "is not a decisions file"),
        (b"\x1f\x8b\x08" + b"x" * 3_000_000, "is not a decisions file"),
        (f"{HEADER}\n6{ROW[1:]}\n7{ROW[1:]}\n7{ROW[1:]}\n".encode(), "line 4: the sequence number 7 repeats that of l"),
        (f"{HEADER}\n6{ROW[1:]}\n{ROW}\n".encode(), "line 3: the sequence number 5 comes after 6"),
    ],
)
def test_an_unsound_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(written(tmp_path, content)).message


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none").message
    assert "directory" in refusal(tmp_path).message
    assert "not a decisions file" in refusal(Path("/dev/zero")).message


def test_a_place_that_is_taken_is_refused_before_and_after(tmp_path: Path) -> None:
    path = written(tmp_path, "precious")
    for act in (lambda: decisions.check_place(path), lambda: decisions.write_csv(path, some_decisions(3))):
        with pytest.raises(DecisionsFileError, match="exists already"):
            act()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none")
    with pytest.raises(DecisionsFileError, match="exists already"):
        decisions.check_place(link)
    assert path.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_a_place_that_will_not_do_is_refused_before(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none" / "d.csv", "No such file"), (tmp_path / ("x" * 300), "too long")):
        with pytest.raises(DecisionsFileError, match=words):
            decisions.check_place(path)
    decisions.check_place(tmp_path / "good.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(DecisionsFileError, match="too large") as caught:
            decisions.write_csv(tmp_path / "d.csv", some_decisions(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "nothing half-written" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kernel
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        with pytest.raises(DecisionsFileError, match="No space"):
            decisions.write_csv(tmp_path / "d.csv", some_decisions(30_000))
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_the_first_difference_is_the_lowest_common_number_with_another_rest() -> None:
    a = rows("1,100,5,104,7,101,103", "3,100,5,104,7,101,103", "4,9,9,9,9,9,9", "8,100,5,104,7,101,103")
    b = rows("2,100,5,104,7,101,103", "3,100,5,104,7,101,103", "8,100,6,104,7,101,102", "9,1,1,1,1,1,1")
    assert decisions.compare(a, b) == {
        "common": 2,
        "equal": 1,
        "different": 1,
        "only_in_a": 2,
        "only_in_b": 2,
        "first_difference": {
            "seq": 8,
            "fields": ["bid_quantity", "wanted_ask"],
            "a": {"line": 5, "text": "8,100,5,104,7,101,103"},
            "b": {"line": 4, "text": "8,100,6,104,7,101,102"},
        },
    }


@pytest.mark.parametrize(("n_a", "n_b"), [(0, 0), (0, 3), (3, 0)])
def test_nothing_in_common_with_nothing(n_a: int, n_b: int) -> None:
    found = decisions.compare(some_decisions(n_a), some_decisions(n_b))
    assert (found["common"], found["only_in_a"], found["only_in_b"]) == (0, n_a, n_b)
    assert found["first_difference"] is None


def cpu_seconds(action: Any, n: int = 5) -> float:
    """The least of several: the host can only add."""
    times = []
    for _ in range(n):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return min(times)


def test_reading_and_writing_are_faster_than_a_plain_loop(tmp_path: Path) -> None:
    # Measured: writing 0.33 of the loop's time, reading 0.15. The bars are far from both.
    many = some_decisions(100_000)
    path = tmp_path / "d.csv"
    decisions.write_csv(path, many)

    def write_plainly() -> None:
        b"".join([b"%d,%d,%d,%d,%d,%d,%d\n" % row for row in many.tolist()])

    def read_plainly() -> None:
        np.array([tuple(map(int, line.split(b","))) for line in path.read_bytes().split(b"\n")[1:-1]], DECISION)

    assert cpu_seconds(lambda: decisions.write_lines(io.BytesIO(), many)) < cpu_seconds(write_plainly)
    assert cpu_seconds(lambda: decisions.read(path)) < cpu_seconds(read_plainly) / 2
