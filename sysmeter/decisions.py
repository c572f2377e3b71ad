"""The decisions file: what a run decided, one line a batch, so that two runs can be compared line by line.

The format is text, in ASCII::

    seq,bid_price,bid_quantity,ask_price,ask_quantity,wanted_bid,wanted_ask
    2,100,5,-1,0,-1,-1
    5,100,5,104,7,101,103

The first line is this header, to the letter. Each further line is one decision, in the order of the run, warm-up
included: the number of the last update in the batch, the top of the book after it, and the quote
wanted. A batch that decided nothing, or applied no update, has no line. All fields are decimal integers: the sequence
number of 64 bits, the rest (prices in ticks, quantities) of 32; quantity 0 and price -1 stand for an empty side of
the book, and a wanted price of -1 for no quote. Sequence numbers ascend strictly, so each names at most one line.

Every line ends in LF. A reader also takes CRLF, leading zeros and a byte order mark at the start, which
spreadsheets and editors add. It takes no last line without an end, because a file that was cut off may stop
inside a number.

Where a batch ends is a matter of timing, so two runs of one feed need not decide at the same sequence numbers.
Where they do, their books have seen the same updates, so their lines must be the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sysmeter.errors import DecisionsFileError
from sysmeter.records import DECISION

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

COLUMNS = ("seq", "bid_price", "bid_quantity", "ask_price", "ask_quantity", "wanted_bid", "wanted_ask")
MAX_LINE_BYTES = 19 + 6 * 11 + 7  # no line that is written is longer

_HEADER = ",".join(COLUMNS).encode()
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIRST_LINE = 2  # of the decisions; the header is line 1

_NAMES: tuple[str, ...] = DECISION.names or ()
_LIMITS = [np.iinfo(DECISION[name]) for name in _NAMES]
_LOW = np.array([limits.min for limits in _LIMITS])
_HIGH = np.array([limits.max for limits in _LIMITS])

_ROW_FORMAT = ",".join(["%d"] * len(COLUMNS)) + "\n"
# Formatting thousands of rows at once took 0.34 s a million lines, a call a row 0.85 s, digits by numpy 0.26 to
# 0.44 s, np.savetxt 3.4 s. Larger blocks are no faster.
_ROWS_AT_ONCE = 2_048

_BLOCK_BYTES = 1 << 18
_MAX_READ_LINE_BYTES = 1 << 20
_SEPARATORS = b"," * (len(COLUMNS) - 1) + b"\n"
_INTEGER = re.compile(rb"-?[0-9]+")
_MAKE = "name a decisions.csv that `sysmeter run` wrote, or the directory of its Recording"


def write_lines(file: BinaryIO, decisions: npt.NDArray[Any]) -> None:
    """Write header and lines to an open file. ``decisions`` has shape ``(n,)``, dtype records.DECISION."""
    file.write(_HEADER + b"\n")
    for at in range(0, len(decisions), _ROWS_AT_ONCE):
        rows = np.asarray(decisions[at : at + _ROWS_AT_ONCE])
        values = np.column_stack([rows[name] for name in _NAMES])
        file.write((_ROW_FORMAT * len(rows) % tuple(values.ravel().tolist())).encode())


def write_csv(path: Path, decisions: npt.NDArray[Any]) -> None:
    """Write a decisions file under a temporary name beside its place, flush it to the disk and rename it.

    Raises:
        DecisionsFileError: the place is taken or cannot be written, or the disk is full. Nothing half-written is left.
    """
    temporary = None
    try:
        _refuse_taken(path)
        temporary_fd, temporary = tempfile.mkstemp(".unfinished", ".sysmeter-decisions-", path.absolute().parent)
        with open(temporary_fd, "wb") as file:
            os.fchmod(temporary_fd, 0o644)  # others may read what root made
            write_lines(file, decisions)
            file.flush()
            os.fsync(temporary_fd)
        _refuse_taken(path)
        os.rename(temporary, path)
        temporary = None
    except OSError as error:
        raise DecisionsFileError(
            f"cannot write the decisions file {path}: {error.strerror}",
            "free some space there, or name a place that can be written; nothing half-written was left",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_place(path: Path) -> None:
    """Find out before a run whether :func:`write_csv` will be able to make this file after it.

    Raises:
        DecisionsFileError: the place is taken, or no file of this name can be made there.
    """
    _refuse_taken(path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        os.unlink(path)
    except OSError as error:
        raise DecisionsFileError(
            f"cannot write the decisions file {path}: {error.strerror}", "name a place that can be written"
        ) from error


def read(path: Path) -> npt.NDArray[Any]:
    """The decisions in a file: shape ``(n,)``, dtype records.DECISION, sequence numbers strictly ascending.

    Raises:
        DecisionsFileError: it cannot be read or is no decisions file; the message names the file, and the line where
            one is at fault.
    """
    try:
        with open(path, "rb") as file:
            return _read_open(path, file)
    except OSError as error:
        raise DecisionsFileError(f"cannot read the decisions file {path}: {error.strerror}", _MAKE) from error


def check_ascending(path: Path, decisions: npt.NDArray[Any]) -> None:
    """Refuse decisions whose sequence numbers do not ascend strictly.

    Raises:
        DecisionsFileError: with the line, as it stands in the file that :func:`write_lines` makes of them.
    """
    seq = decisions["seq"]
    behind = np.flatnonzero(seq[1:] <= seq[:-1])
    if len(behind):
        at = int(behind[0])
        before, after, line = int(seq[at]), int(seq[at + 1]), at + 1 + _FIRST_LINE
        what = f"repeats that of line {line - 1}" if before == after else f"comes after {before}"
        raise DecisionsFileError(
            f"{path}: line {line}: the sequence number {after} {what}",
            "each line must have a higher one than the line before; do not join or sort decisions files",
        )


def compare(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> dict[str, Any]:
    """Join two runs' decisions on the sequence number and compare the rest.

    Both arguments as :func:`read` returns them. Returns counts of sequence numbers, ``common`` = ``equal`` +
    ``different``, ``only_in_a``, ``only_in_b``, and ``first_difference``: None, or the lowest common ``seq`` whose
    decisions differ, the ``fields`` that differ (of :data:`COLUMNS`) and of ``a`` and ``b`` each the number of the
    ``line`` in its file and its ``text``.
    """
    seq_a, seq_b = np.ascontiguousarray(a["seq"]), np.ascontiguousarray(b["seq"])
    place = np.searchsorted(seq_b, seq_a)
    in_b = place < len(seq_b)
    in_b[in_b] = seq_b[place[in_b]] == seq_a[in_b]
    index_a, index_b = np.flatnonzero(in_b), place[in_b]
    different = np.flatnonzero(a.take(index_a) != b.take(index_b))  # ten times as fast as a[index_a]
    n_common, n_different = len(index_a), len(different)
    first = None
    if n_different:
        at_a, at_b = int(index_a[different[0]]), int(index_b[different[0]])
        values_a, values_b = a[at_a].item(), b[at_b].item()
        first = {
            "seq": int(values_a[0]),
            "fields": [name for name, left, right in zip(COLUMNS, values_a, values_b, strict=True) if left != right],
            "a": {"line": at_a + _FIRST_LINE, "text": _line(values_a)},
            "b": {"line": at_b + _FIRST_LINE, "text": _line(values_b)},
        }
    return {
        "common": n_common,
        "equal": n_common - n_different,
        "different": n_different,
        "only_in_a": len(a) - n_common,
        "only_in_b": len(b) - n_common,
        "first_difference": first,
    }


def _line(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _refuse_taken(path: Path) -> None:
    if os.path.lexists(path):
        raise DecisionsFileError(f"{path} exists already", "name another decisions file, or remove this one")


def _read_open(path: Path, file: BinaryIO) -> npt.NDArray[Any]:
    _check_header(path, file.readline(_MAX_READ_LINE_BYTES))
    parts, line, rest = [np.empty(0, DECISION)], _FIRST_LINE, b""
    while block := file.read(_BLOCK_BYTES):
        block = rest + block
        end = block.rfind(b"\n") + 1
        if end == 0 and len(block) > _MAX_READ_LINE_BYTES:
            raise _bad_line(path, line, f"is longer than {_MAX_READ_LINE_BYTES:,} bytes")
        rest = block[end:]
        if end:
            parts.append(_parse(path, block[:end], line))
            line += len(parts[-1])
    if rest:
        raise DecisionsFileError(
            f"{path}: line {line} has no end: the file was cut off in or after {_shown(rest)}",
            "copy or make it again; where it is whole, add the missing line feed",
        )
    decisions = np.concatenate(parts)
    check_ascending(path, decisions)
    return decisions


def _check_header(path: Path, line: bytes) -> None:
    if not line:
        raise DecisionsFileError(f"{path} is empty: a decisions file has a header at least", _MAKE)
    text = line.removeprefix(_BYTE_ORDER_MARK)
    words = text.rstrip(b"\r\n")
    if words != _HEADER:
        looks_like_one = _INTEGER.match(text) and text.count(b",") == len(COLUMNS) - 1
        what = "has no header" if looks_like_one else "is not a decisions file"
        raise DecisionsFileError(f"{path} {what}: line 1 is {_shown(words, 30)}, not {_HEADER.decode()}", _MAKE)
    if text not in (_HEADER + b"\n", _HEADER + b"\r\n"):
        raise DecisionsFileError(f"{path}: line 1 has no end, or not one of LF or CRLF", _MAKE)


def _parse(path: Path, block: bytes, first_line: int) -> npt.NDArray[Any]:
    """Whole lines of decisions."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    rows = _parse_at_once(block)
    if rows is None:
        lines = block.split(b"\n")[:-1]
        rows = np.array([_parse_line(path, number, line) for number, line in enumerate(lines, first_line)], np.int64)
    decisions = np.empty(len(rows), DECISION)
    for column, name in enumerate(_NAMES):
        decisions[name] = rows[:, column]
    return decisions


def _parse_at_once(block: bytes) -> npt.NDArray[np.int64] | None:
    """The fast way, some 0.2 s a million lines; None where only the slow one can tell what is there."""
    separators = block.translate(None, b"-0123456789")
    n_lines = len(separators) // len(_SEPARATORS)
    if separators != _SEPARATORS * n_lines:
        return None
    fields = block.replace(b"\n", b",")
    if b"-" in fields and b"-," in fields:  # numpy reads a lone sign as 0
        return None
    try:
        values = np.fromstring(fields, np.int64, sep=",")
    except ValueError:
        return None
    if len(values) != n_lines * len(COLUMNS):
        return None
    rows = values.reshape(n_lines, len(COLUMNS))
    if values.min() >= _LOW.max() and values.max() <= _HIGH.min():  # much faster than by column, and the common case
        return rows
    # numpy turns what is out of the range of 64 bits into its highest number.
    lowest, highest = rows.min(axis=0), rows.max(axis=0)
    is_exact = (lowest >= _LOW).all() and (highest <= _HIGH).all() and highest[0] != _HIGH[0]
    return rows if is_exact else None


def _parse_line(path: Path, number: int, line: bytes) -> list[int]:
    """The slow way: the definition of what a line may be."""
    fields = line.split(b",")
    if not line:
        raise _bad_line(path, number, "is empty")
    if len(fields) != len(COLUMNS):
        counted = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        raise _bad_line(path, number, f"has {counted}, not {len(COLUMNS)}: {_shown(line)}")
    values = []
    for name, limits, field in zip(COLUMNS, _LIMITS, fields, strict=True):
        if not _INTEGER.fullmatch(field):
            raise _bad_line(path, number, f"{name} is {_shown(field)}, not an integer")
        digits = field.lstrip(b"-").lstrip(b"0") or b"0"
        # int() refuses thousands of digits with an error of its own, so it is not asked about them.
        magnitude = int(digits) if len(digits) <= len(str(limits.max)) else limits.max + 2
        value = -magnitude if field.startswith(b"-") else magnitude
        if not limits.min <= value <= limits.max:
            raise _bad_line(path, number, f"{name} is {_shown(field)}, which {limits.bits} bits do not hold")
        values.append(value)
    return values


def _bad_line(path: Path, number: int, what: str) -> DecisionsFileError:
    return DecisionsFileError(f"{path}: line {number}: {what}", "copy or make the file again")


def _shown(text: bytes, limit: int = 60) -> str:
    return repr(text[:limit])[1:] + ("…" if len(text) > limit else "")
