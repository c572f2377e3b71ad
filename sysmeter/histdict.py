"""What ``LatencyHistogram.to_dict`` returns and its JSON files hold: checked, read and written.

The object has ``schema`` (``sysmeter.hist/1``), ``sub_bits``, ``count``, ``min_ns`` and ``max_ns`` (null without
samples), ``sum_ns``, ``n_negative``, ``n_overflow`` and ``counts``: ``[bucket, samples]`` of each bucket that is not
empty, ascending.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from sysmeter.buckets import MAX_SUB_BITS, MAX_VALUE, MIN_SUB_BITS, bucket_index, n_buckets
from sysmeter.errors import HistogramFileError
from sysmeter.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "sysmeter.hist/1"


class Parts(NamedTuple):
    """A described histogram, checked. ``min_ns`` and ``max_ns`` are 0 without samples."""

    sub_bits: int
    filled: list[int]
    samples: list[int]
    n_values: int
    min_ns: int
    max_ns: int
    sum_ns: int
    n_negative: int
    n_overflow: int


def parse(described: Any) -> Parts:
    """Check a description whole: types, ranges, and that its figures do not contradict each other.

    Raises:
        ValueError: it is no description of a histogram, or not a sound one.
    """
    found = described.get("schema") if isinstance(described, dict) else None
    if found != SCHEMA:
        raise ValueError(f"the schema is {found!r}, not {SCHEMA!r}")
    sub_bits, count = _whole(described, "sub_bits", MAX_SUB_BITS), _whole(described, "count")
    if sub_bits < MIN_SUB_BITS:
        raise ValueError(f"sub_bits is {sub_bits}, and {MIN_SUB_BITS} is the lowest")
    filled, samples = _buckets(described.get("counts"), n_buckets(sub_bits))
    if sum(samples) != count:
        raise ValueError(f"count is {count}, but there are {sum(samples)} samples in counts")
    sum_ns, min_ns, max_ns = _whole(described, "sum_ns", count * MAX_VALUE), 0, 0
    if count:
        min_ns, max_ns = _whole(described, "min_ns"), _whole(described, "max_ns")
        if [bucket_index(min_ns, sub_bits), bucket_index(max_ns, sub_bits)] != [filled[0], filled[-1]]:
            raise ValueError("min_ns or max_ns lies in another bucket than the first or the last sample")
        if not count * min_ns <= sum_ns <= count * max_ns:
            raise ValueError("sum_ns cannot be the sum of values from min_ns to max_ns")
    n_negative, n_overflow = _whole(described, "n_negative"), _whole(described, "n_overflow")
    return Parts(sub_bits, filled, samples, count, min_ns, max_ns, sum_ns, n_negative, n_overflow)


def write(path: str | Path, described: dict[str, Any], replace: bool = True) -> None:
    """Write a description to a JSON file, whole or not at all.

    Raises:
        HistogramFileError: it cannot be written, or is there and must not be replaced.
    """
    write_histogram_file(path, json.dumps(described, allow_nan=False).encode() + b"\n", replace)


def write_histogram_file(path: str | Path, content: bytes, replace: bool) -> None:
    """Write any file of histograms, whole or not at all.

    Raises:
        HistogramFileError: as :func:`write`.
    """
    try:
        write_atomically(path, content, replace)
    except OSError as error:
        hint = "free some space there, or name a file that can be written; nothing half-written was left"
        if isinstance(error, FileExistsError):
            hint = "name another file, or remove this one"
        raise HistogramFileError(f"cannot write the histogram file {path}: {error.strerror}", hint) from error


def read(path: str | Path) -> Parts:
    """Read and check a file that :func:`write` wrote.

    Raises:
        HistogramFileError: it cannot be read, or is no such file, or is damaged.
    """
    try:
        with open(path, "rb") as file:
            return parse(json.loads(file.read()))
    except OSError as error:
        raise HistogramFileError(
            f"cannot read the histogram file {path}: {error.strerror}", "name a file that can be read"
        ) from error
    except (ValueError, RecursionError) as error:
        raise HistogramFileError(
            f"{path} is not a histogram file, or is damaged: {error}",
            "name a file that LatencyHistogram.save() or `sysmeter hist merge` wrote, or make it again",
        ) from error


def _buckets(pairs: Any, n: int) -> tuple[list[int], list[int]]:
    if not isinstance(pairs, list):
        raise ValueError("counts is missing, or no list")
    filled: list[int] = []
    samples: list[int] = []
    for pair in pairs:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int
        if not is_pair or not (filled[-1] if filled else -1) < pair[0] < n or not 0 < pair[1] <= MAX_VALUE:
            raise ValueError(f"counts holds {pair!r}, not a bucket (ascending, below {n}) and its samples")
        filled.append(pair[0])
        samples.append(pair[1])
    return filled, samples


def _whole(described: dict[str, Any], name: str, limit: int = MAX_VALUE) -> int:
    value = described.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{name} is {value!r}, not a whole number from 0 to {limit}")
    return value
