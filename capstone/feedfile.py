"""The message file: a fixed header and fixed-size records, all little-endian. Format version 1.

Header, 64 bytes::

    offset  size  field
         0     8  magic, the ASCII letters SYSMFEED
         8     4  u32 version, 1
        12     4  u32 header_bytes, 64
        16     4  u32 record_bytes, 24
        20     4  u32 n_instruments: ids below it are of the universe, others are unknown
        24     8  u64 count of records
        32    32  reserved, zero

Records follow without padding, so that a file has exactly ``64 + 24 * count`` bytes. Each is a
:data:`MESSAGE`. Read as three little-endian 64-bit words, as the compiled loop does, it is: the sequence
number; ``instrument | side << 32 | kind << 40``; ``price_ticks | quantity << 32``.

A file is sound when every record is: side and kind known, reserved bytes zero, sequence number below
2**63, prices 0 or more and within :data:`MAX_PRICE_SPAN_TICKS` of each other (the book is an array
indexed by price), quantity 0 or more, and at least 1 for an add or a change. Gaps and duplicates in the
sequence, and unknown instruments, are sound: counting them is the feed handler's work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sysmeter.errors import FeedFileError

if TYPE_CHECKING:
    import numpy.typing as npt

MAGIC = b"SYSMFEED"
VERSION = 1

MESSAGE = np.dtype(
    [
        ("seq", "<u8"),
        ("instrument", "<u4"),
        ("side", "u1"),
        ("kind", "u1"),
        ("reserved", "<u2"),
        ("price_ticks", "<i4"),
        ("quantity", "<i4"),
    ]
)
SIDE_BID, SIDE_ASK = 0, 1
KIND_ADD, KIND_CHANGE, KIND_DELETE = (
    0,
    1,
    2,
)  # quantity is the level's new quantity; of a delete it is ignored

MAX_PRICE_SPAN_TICKS = 1 << 22
NOMINAL_RATE_HZ = 100_000

_HEADER = struct.Struct("<8sIIIIQ32s")
HEADER_BYTES = _HEADER.size
RECORD_BYTES = MESSAGE.itemsize
_RESERVED = bytes(32)

_MAKE = "make one with `sysmeter feed make FILE`"
_MAKE_AGAIN = "make it again with `sysmeter feed make --force FILE`"


@dataclass(frozen=True)
class FeedFile:
    """A sound message file. ``messages``: shape ``(count,)``, dtype :data:`MESSAGE`, read-only, mapped."""

    path: Path
    version: int
    n_instruments: int
    count: int
    size_bytes: int
    messages: npt.NDArray[Any]

    @property
    def duration_ns(self) -> int:
        """How long the file lasts at :data:`NOMINAL_RATE_HZ`."""
        return self.count * 1_000_000_000 // NOMINAL_RATE_HZ


def write(path: Path, messages: npt.NDArray[Any], n_instruments: int, *, overwrite: bool = True) -> None:
    """Write a message file under a temporary name beside its place, flush it to the disk and rename it.

    ``messages`` has shape ``(n,)`` with n of 1 or more and dtype :data:`MESSAGE`.

    Raises:
        FeedFileError: unsound messages, a place that cannot be written or is taken, a full disk. Nothing
            half-written is left, and a file that stood there before stays as it was.
    """
    if messages.dtype != MESSAGE or messages.ndim != 1:
        raise FeedFileError(f"messages have dtype {messages.dtype} and {messages.ndim} dimensions, not one of MESSAGE")
    if not 1 <= n_instruments < 1 << 32:
        raise FeedFileError(f"{n_instruments} instruments do not fit the header", "give a number from 1 to 4294967295")
    _check_messages(path, messages, "mend the messages before writing them")
    check_place(path, overwrite)
    header = _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, RECORD_BYTES, n_instruments, len(messages), _RESERVED)
    place = Path(os.path.realpath(path))  # through a symbolic link, as a plain open would
    temporary: str | None = None
    try:
        temporary_fd, temporary = tempfile.mkstemp(".unfinished", ".sysmeter-feed-", place.parent)
        with open(temporary_fd, "wb") as file:
            os.fchmod(temporary_fd, 0o644)  # others may read what root made
            file.write(header)
            file.write(np.ascontiguousarray(messages).data)
            file.flush()
            os.fsync(temporary_fd)
        os.rename(temporary, place)
        temporary = None
        _sync_directory(place.parent)
    except OSError as error:
        raise FeedFileError(
            f"cannot write {path}: {error.strerror}",
            "free some space there, or name a place that can be written; nothing half-written was left",
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_place(path: Path, overwrite: bool) -> None:
    """Refuse a place that is no place for a file, or is taken and may not be overwritten.

    Raises:
        FeedFileError: with what stands there.
    """
    # A rename onto /dev/null, done as root, would replace it.
    if os.path.lexists(path) and not path.is_file():
        what = "is a directory" if path.is_dir() else "exists and is not a regular file"
        raise FeedFileError(f"{path} {what}", "name a file")
    if not overwrite and os.path.lexists(path):
        raise FeedFileError(f"{path} exists already", "name another file, or overwrite it with --force")


def read(path: Path) -> FeedFile:
    """Open a message file, check all of it and map its records.

    The mapping follows the file: who needs the records while the file may be cut short copies them first.

    Raises:
        FeedFileError: missing, not a regular file, not readable, or not sound; the hint says what to do.
    """
    try:
        # A named pipe without a writer would block in open for ever.
        if not stat.S_ISREG(os.stat(path).st_mode):
            what = "is a directory" if path.is_dir() else "is not a regular file"
            raise FeedFileError(f"{path} {what}, not a message file", f"name a message file, or {_MAKE}")
        with open(path, "rb") as file:
            return _read_open(path, file)
    except FileNotFoundError as error:
        raise FeedFileError(f"message file {path} does not exist", f"check the name, or {_MAKE}") from error
    except OSError as error:
        raise FeedFileError(
            f"cannot read message file {path}: {error.strerror}", "check the path and its permissions"
        ) from error


def info(path: Path) -> dict[str, Any]:
    """What a message file holds, as plain values fit for JSON.

    ``sequence_gaps`` counts the places where a number is more than one above the highest before it,
    ``missing_sequence_numbers`` how many are skipped there; ``duplicates`` counts numbers not above the
    highest before them, as the feed handler does.

    Raises:
        FeedFileError: as :func:`read`.
    """
    feed = read(path)
    messages = feed.messages
    seq = messages["seq"].astype(np.int64)
    highest = np.maximum.accumulate(seq)
    step = seq[1:] - highest[:-1]
    ids, id_counts = np.unique(messages["instrument"], return_counts=True)
    kinds = np.bincount(messages["kind"], minlength=3)
    return {
        "path": str(path),
        "version": feed.version,
        "count": feed.count,
        "n_instruments": feed.n_instruments,
        "instruments": {str(id_): int(n) for id_, n in zip(ids.tolist(), id_counts.tolist(), strict=True)},
        "kinds": {"add": int(kinds[0]), "change": int(kinds[1]), "delete": int(kinds[2])},
        "first_seq": int(seq[0]),
        "last_seq": int(seq[-1]),
        "min_seq": int(seq.min()),
        "max_seq": int(highest[-1]),
        "sequence_gaps": int(np.count_nonzero(step > 1)),
        "missing_sequence_numbers": int((step[step > 1] - 1).sum()),
        "duplicates": int(np.count_nonzero(step < 1)),
        "min_price_ticks": int(messages["price_ticks"].min()),
        "max_price_ticks": int(messages["price_ticks"].max()),
        "size_bytes": feed.size_bytes,
        "nominal_rate_hz": NOMINAL_RATE_HZ,
        "duration_ns": feed.duration_ns,
        "sha256": sha256(path),
    }


def sha256(path: Path) -> str:
    """SHA-256 of the whole file, in hexadecimal.

    Raises:
        FeedFileError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise FeedFileError(
            f"cannot read message file {path}: {error.strerror}", "check the path and its permissions"
        ) from error
    return digest.hexdigest()


def _read_open(path: Path, file: BinaryIO) -> FeedFile:
    size_bytes = os.fstat(file.fileno()).st_size
    if size_bytes == 0:
        raise FeedFileError(f"message file {path} is empty", _MAKE_AGAIN)
    head = file.read(HEADER_BYTES)
    if not head.startswith(MAGIC[: len(head)]):
        raise FeedFileError(
            f"{path} is not a message file: it starts with {head[:8]!r}, not {MAGIC!r}",
            f"name a message file, or {_MAKE}",
        )
    if len(head) < HEADER_BYTES:
        raise FeedFileError(f"{path} is truncated: {len(head)} of {HEADER_BYTES} header bytes", _MAKE_AGAIN)
    _, version, header_bytes, record_bytes, n_instruments, count, reserved = _HEADER.unpack(head)
    if version != VERSION:
        raise FeedFileError(
            f"{path} has message file version {version}, and this sysmeter reads version {VERSION}",
            f"use the sysmeter that made it, or {_MAKE_AGAIN}",
        )
    if (header_bytes, record_bytes, reserved) != (
        HEADER_BYTES,
        RECORD_BYTES,
        _RESERVED,
    ) or n_instruments == 0:
        raise FeedFileError(
            f"{path} has a damaged header: header of {header_bytes} bytes (must be {HEADER_BYTES}), "
            f"records of {record_bytes} (must be {RECORD_BYTES}), "
            f"{n_instruments} instruments (must be 1 or more), "
            f"reserved bytes {'zero' if reserved == _RESERVED else 'not zero (must be)'}",
            _MAKE_AGAIN,
        )
    whole, rest = divmod(size_bytes - HEADER_BYTES, RECORD_BYTES)
    if rest:
        raise FeedFileError(
            f"{path} is truncated, or has something behind its end: its last record has {rest} of {RECORD_BYTES} bytes "
            f"(the header counts {count} records, {whole} are whole)",
            _MAKE_AGAIN,
        )
    if count != whole:
        raise FeedFileError(
            f"{path} is damaged: the header counts {count} records, the size holds {whole}",
            _MAKE_AGAIN,
        )
    if count == 0:
        raise FeedFileError(f"{path} has no records", f"{_MAKE_AGAIN}, with --messages of 1 or more")
    mapped = np.memmap(file, dtype=MESSAGE, mode="r", offset=HEADER_BYTES, shape=(count,))
    messages = mapped.view(np.ndarray)
    _check_messages(path, messages, _MAKE_AGAIN)
    return FeedFile(path, version, n_instruments, count, size_bytes, messages)


def _check_messages(path: Path, messages: npt.NDArray[Any], hint: str) -> None:
    if len(messages) == 0:
        raise FeedFileError(f"{path} would have no records", "give 1 message or more")
    price, quantity = messages["price_ticks"], messages["quantity"]
    for what, bad in (
        ("sequence number of 2**63 or more", messages["seq"] >= np.uint64(1 << 63)),
        ("side other than 0 (bid) and 1 (ask)", messages["side"] > SIDE_ASK),
        ("kind other than 0 (add), 1 (change) and 2 (delete)", messages["kind"] > KIND_DELETE),
        ("reserved field that is not zero", messages["reserved"] != 0),
        ("negative price", price < 0),
        ("negative quantity", quantity < 0),
        ("quantity of 0 in an add or a change", (quantity == 0) & (messages["kind"] != KIND_DELETE)),
    ):
        if bad.any():
            raise FeedFileError(f"{path}: record {int(bad.argmax())} (counted from 0) has a {what}", hint)
    low, high = int(price.min()), int(price.max())
    if high - low >= MAX_PRICE_SPAN_TICKS:
        raise FeedFileError(
            f"{path}: prices span {low} to {high} ticks, too wide for a book indexed by price",
            f"keep all prices within {MAX_PRICE_SPAN_TICKS} ticks of each other; otherwise {hint}",
        )


def _sync_directory(directory: Path) -> None:
    # The file is whole and in its place by now; a file system that cannot flush a directory is no failure.
    with contextlib.suppress(OSError):
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory_fd)
        finally:
            os.close(directory_fd)
