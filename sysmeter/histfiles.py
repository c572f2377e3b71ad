"""Files of histograms: HdrHistogram's logs (``.hlog``) and percentile distributions (``.hgrm``), and our own JSON.

The package hdrhistogram encodes and decodes the histograms inside a log and makes the table of a distribution. What is
around them is read and written here, because the package's log reader stops silently at what it cannot read, keeps no
comments and no tag of its own, and its writer fails on a start time and rounds the maximum down.

How exact it is. A log's histogram has as many buckets a power of two as one of ours of precision 4, 7, 10 (for 1, 2, 3
significant digits), and they are the same buckets; 4 and 5 digits are read into precision 12 at the upper edge. So each
percentile is the file's. The count is exact; minimum (from the first bucket), maximum (upper edge of the last)
and mean (middles of all) are only as exact as the buckets. Where the unit is not ns, percentiles may be one more width
of a bucket high.

One of ours is written with the fewest digits that are not coarser, each sample at its bucket's upper edge, so that
other programs find the same percentiles. What they cannot know (exact minimum, maximum and sum, precision, values
outside) is in a comment line before each histogram; with it a log is read back without any loss. A distribution keeps
the percentiles of its rows only (see sysmeter.hgrm), and of the values outside nothing.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import hgrm, histdict
from sysmeter.errors import HistogramFileError, SysmeterError
from sysmeter.hgrm import BrokenLineError
from sysmeter.hist import MAX_SUB_BITS, MAX_VALUE, MIN_SUB_BITS, LatencyHistogram, bucket_index, bucket_upper_bound
from sysmeter.units import NS_PER_MS, NS_PER_S, UNIT_NS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOG, DISTRIBUTION, JSON = "hlog", "hgrm", "json"
KINDS = (LOG, DISTRIBUTION, JSON)

_START_TIME = re.compile(r"#\[StartTime: *(\d+(?:\.\d+)?) .*\]")
_BASE_TIME = re.compile(r"#\[BaseTime: *(\d+(?:\.\d+)?) .*\]")
_VERSION = re.compile(r"#\[Histogram log format version (\d+)\.\d+\]")
# What an encoded histogram cannot say of the one it was made of, before its line. A comment to other programs.
_FIGURES = ("sub_bits", "count", "min_ns", "max_ns", "sum_ns", "n_negative", "n_overflow")
_OWN_FIGURES = re.compile(r"#\[sysmeter(?: [a-z_]+=\d+)+\]")
_LEGEND = '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"'
_INTERVAL = re.compile(r"(?:Tag=([^,\s]+),)?(\d+(?:\.\d+)?),(\d+(?:\.\d+)?),(\d+(?:\.\d+)?),(\S+)")
_TAG = re.compile(r"[^,\s]+")
# A log without a base time has times since the epoch, unless they lie more than this before its start time: then
# they are relative to it. HdrHistogram's own rule (HistogramLogReader).
_RELATIVE_BELOW_NS = 365 * 24 * 3_600 * NS_PER_S

_HIGHEST_NS = 3_600 * NS_PER_S  # the customary range, so that other programs can add such histograms
_HEADER_BYTES, _PAYLOAD_HEADER_BYTES = 8, 40
_MAX_PAYLOAD_BYTES = 1 << 26  # ten times what the largest histogram takes
_DIGITS = {4: 1, 7: 2, 10: 3, 14: 4}  # of significance, by the precision that has the same buckets


@dataclass(frozen=True)
class Interval:
    """A histogram of a file, and when it was filled.

    ``t_start_ns`` is since the epoch as far as the log says so, else since an unknown instant, and None where the file
    has no times. ``bucketed`` names the figures that are only as exact as the file's buckets.
    """

    histogram: LatencyHistogram
    tag: str | None = None
    t_start_ns: int | None = None
    length_ns: int | None = None
    bucketed: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistogramFile:
    """What a file holds. Times are ns since the epoch; ``base_time_ns`` is what a log's own times count from."""

    kind: str
    intervals: list[Interval]
    comments: list[str] = field(default_factory=list)
    start_time_ns: int | None = None
    base_time_ns: int | None = None
    has_foreign_unit: bool = False  # the caller's unit was applied to the values


def kind_of_name(path: Path) -> str | None:
    """The kind of file that the suffix names, or None."""
    suffix = path.suffix.lower().removeprefix(".")
    return suffix if suffix in KINDS else None


def read(path: Path, unit: str = "ns") -> HistogramFile:
    """Read a file of any kind: as its suffix says, else as its first line looks. Values are in ``unit``.

    What this program wrote into JSON files and logs is in ns, whatever ``unit`` says.

    Raises:
        HistogramFileError: it cannot be read or is damaged; the message has the line, counted from 1, that is at fault.
        SysmeterError: the package hdrhistogram is needed and missing.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HistogramFileError(
            f"cannot read the histogram file {path}: {error.strerror}", "name a file that can be read"
        ) from error
    kind = kind_of_name(path) or _kind_of_content(content)
    if kind == JSON:
        return HistogramFile(JSON, [Interval(LatencyHistogram.load(path))])
    try:
        if not content.strip():
            raise BrokenLineError(1, "the file is empty")
        lines = _decoded(content)
        if kind == LOG:
            return _read_log(lines, UNIT_NS[unit])
        histogram, comments = hgrm.parse(lines, UNIT_NS[unit])
        return HistogramFile(
            DISTRIBUTION, [Interval(histogram, bucketed=("min", "mean", "max"))], comments, has_foreign_unit=True
        )
    except BrokenLineError as error:
        raise HistogramFileError(
            f"{path}: line {error.line}: {error.what}", "nothing of the file was used: copy or make it again"
        ) from error


def write(path: Path, kind: str, file: HistogramFile, replace: bool = False) -> None:
    """Write a file of a kind, whole or not at all; a distribution and JSON take the first interval's histogram only.

    Raises:
        HistogramFileError: it cannot be written, or is there and must not be replaced.
        SysmeterError: the package hdrhistogram is needed and missing.
        ValueError: a tag holds a comma or a space, or a comment a line end.
    """
    histogram = file.intervals[0].histogram if file.intervals else LatencyHistogram()
    if kind == JSON:
        histdict.write(path, histogram.to_dict(), replace)
        return
    text = _log_text(file) if kind == LOG else _distribution_text(histogram)
    histdict.write_histogram_file(path, text.encode(), replace)


def _kind_of_content(content: bytes) -> str:
    start = content.lstrip()[:20]
    if start.startswith(b"{"):
        return JSON
    return DISTRIBUTION if start.startswith(b"Value ") else LOG


def _decoded(content: bytes) -> list[str]:
    lines = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
        try:
            lines.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise BrokenLineError(number, f"not text: {line[:20]!r}") from error
    return lines


# ── logs ──


def _read_log(lines: Sequence[str], unit_ns: int) -> HistogramFile:
    intervals: list[Interval] = []
    comments: list[str] = []
    first_start_ns = start_ns = base_ns = None
    base_is_stated = has_foreign = False
    figures: dict[str, int] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith('"StartTimestamp"'):
            continue
        if line.startswith("#"):
            if found := _START_TIME.fullmatch(line):
                start_ns = _seconds_ns(found[1])
                first_start_ns = start_ns if first_start_ns is None else first_start_ns
                base_ns = base_ns if base_is_stated else None
            elif found := _BASE_TIME.fullmatch(line):
                base_ns, base_is_stated = _seconds_ns(found[1]), True
            elif line.startswith(("#[StartTime", "#[BaseTime")):
                raise BrokenLineError(number, f"{line[:60]!r} states no time in seconds")
            elif found := _VERSION.fullmatch(line):
                if found[1] != "1":
                    raise BrokenLineError(number, f"{line[:60]!r}: only versions 1.x are known")
            elif line.startswith("#[sysmeter "):
                if not _OWN_FIGURES.fullmatch(line):
                    raise BrokenLineError(number, f"{line[:60]!r} is damaged")
                figures = {name: int(value) for name, value in re.findall(r" ([a-z_]+)=(\d{1,40})\b", line)}
            else:
                comments.append(line[1:])
            continue
        found = _INTERVAL.fullmatch(line.strip())
        if found is None:
            raise BrokenLineError(number, f"{line[:60]!r} is not [Tag=…,]start,length,max,histogram")
        tag, stamp, length, _rounded_max, encoded = found.groups()
        stamp_ns = _seconds_ns(stamp)
        if start_ns is None:
            start_ns = first_start_ns = stamp_ns
        if base_ns is None:
            base_ns = start_ns if stamp_ns < start_ns - _RELATIVE_BELOW_NS else 0
        has_foreign |= figures is None
        histogram = _decode(number, encoded, figures, unit_ns)
        bucketed = ("min", "mean", "max") if figures is None else ()
        intervals.append(Interval(histogram, tag, base_ns + stamp_ns, _seconds_ns(length), bucketed))
        figures = None
    return HistogramFile(LOG, intervals, comments, first_start_ns, base_ns, has_foreign)


def _decode(number: int, encoded: str, figures: dict[str, int] | None, unit_ns: int) -> LatencyHistogram:
    hdr_class = _hdr_histogram_class()
    try:
        _check_payload(base64.b64decode(encoded, validate=True))
        decoded = hdr_class.decode(encoded)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise BrokenLineError(number, f"its histogram cannot be decoded: {error}") from error
    except Exception as error:  # the package raises classes of its own, and IndexError and the like
        raise BrokenLineError(number, f"its histogram cannot be decoded: {type(error).__name__} {error}") from error
    samples = np.frombuffer(decoded.counts, np.uint64)
    filled = np.flatnonzero(samples)
    n_samples = [int(n) for n in samples[filled]]
    if sum(n_samples) > MAX_VALUE or (
        n_samples and decoded.get_highest_equivalent_value(decoded.get_value_from_index(int(filled[-1]))) > MAX_VALUE
    ):
        raise BrokenLineError(number, "its histogram holds values or counts that 63 bits do not hold")
    low, high = _edges(filled, decoded.sub_bucket_half_count_magnitude, decoded.unit_magnitude)
    if figures is not None:
        try:
            return _with_figures(figures, low.tolist(), high.tolist(), n_samples)
        except (ValueError, KeyError) as error:
            raise BrokenLineError(number, f"it does not fit the figures in the line before ({error})") from error
    sub_bits = min(MAX_SUB_BITS, decoded.sub_bucket_half_count_magnitude)
    return _from_buckets(sub_bits, low.tolist(), high.tolist(), n_samples, unit_ns)


def _check_payload(content: bytes) -> None:
    """Refuse what the package would not notice, before it allocates anything.

    Raises:
        ValueError: it is no whole histogram.
    """
    if len(content) <= _HEADER_BYTES:
        raise ValueError("it is too short")
    unpacker = zlib.decompressobj()
    payload = unpacker.decompress(content[_HEADER_BYTES:], _MAX_PAYLOAD_BYTES)
    if not unpacker.eof:
        raise ValueError("it is cut off, or much too large")
    if len(payload) < _PAYLOAD_HEADER_BYTES:
        raise ValueError("its header is cut off")
    length, offset, digits = (int.from_bytes(payload[at : at + 4], "big") for at in (4, 8, 12))
    lowest, highest = (int.from_bytes(payload[at : at + 8], "big") for at in (16, 24))
    if length != len(payload) - _PAYLOAD_HEADER_BYTES:
        raise ValueError("its length is not the stated one")
    if offset or not 1 <= digits <= 5 or not 1 <= lowest <= highest // 2 or highest > MAX_VALUE:
        raise ValueError("it is of a kind that cannot be read (shifted, or of an impossible range or precision)")


def _edges(filled: Any, half_bits: int, unit_bits: int) -> tuple[Any, Any]:
    """Lowest and highest value of each of the package's buckets, as its get_value_from_index has it."""
    power = np.maximum((filled >> half_bits) - 1, 0)
    sub_bucket = np.where(filled >> half_bits == 0, filled, (filled & ((1 << half_bits) - 1)) + (1 << half_bits))
    low = sub_bucket << (power + unit_bits)
    return low, low + ((np.int64(1) << (power + unit_bits)) - 1)


def _with_figures(figures: dict[str, int], low: list[int], high: list[int], n_samples: list[int]) -> LatencyHistogram:
    counts: dict[int, int] = {}
    if not MIN_SUB_BITS <= figures["sub_bits"] <= MAX_SUB_BITS:
        raise ValueError(f"sub_bits is {figures['sub_bits']}")
    if high and not low[-1] <= figures["max_ns"] <= high[-1]:
        raise ValueError(f"max_ns is {figures['max_ns']}, and the last bucket goes from {low[-1]} to {high[-1]}")
    for upper_ns, n in zip(high, n_samples, strict=True):
        index = bucket_index(min(upper_ns, figures["max_ns"]), figures["sub_bits"])
        counts[index] = counts.get(index, 0) + n
    return LatencyHistogram.from_dict({"schema": histdict.SCHEMA, **figures, "counts": sorted(counts.items())})


def _from_buckets(
    sub_bits: int, low: list[int], high: list[int], n_samples: list[int], unit_ns: int
) -> LatencyHistogram:
    histogram = LatencyHistogram(sub_bits)
    n_overflow = n_kept = sum_ns = min_ns = max_ns = 0
    for below, above, n in zip(low, high, n_samples, strict=True):
        upper_ns = above * unit_ns
        if upper_ns > MAX_VALUE:
            n_overflow += n
            continue
        index = bucket_index(upper_ns, sub_bits)
        if n_kept == 0:
            # In ns the package's bucket starts where ours does, or inside it; in other units it may start below.
            min_ns = max(below * unit_ns, bucket_upper_bound(index - 1, sub_bits) + 1 if index else 0)
        histogram.counts[index] += n
        max_ns, n_kept = upper_ns, n_kept + n
        sum_ns += n * min((below + (above + 1 - below) // 2) * unit_ns, upper_ns)
    sum_ns = max(sum_ns, n_kept * min_ns)
    return LatencyHistogram.from_parts(histogram.counts, sub_bits, n_kept, min_ns, max_ns, sum_ns, 0, n_overflow)


def _log_text(file: HistogramFile) -> str:
    start_ns, base_ns = file.start_time_ns or 0, file.base_time_ns or 0
    lines = ["#[Histogram log format version 1.2]"]
    for comment in file.comments:
        if "\n" in comment or "\r" in comment:
            raise ValueError(f"the comment {comment!r} holds a line end")
        lines.append(f"#{comment}")
    date = datetime.fromtimestamp(start_ns // NS_PER_S, UTC).isoformat(" ")
    lines.append(f"#[StartTime: {_seconds(start_ns)} (seconds since epoch), {date}]")
    lines.append(f"#[BaseTime: {_seconds(base_ns)} (seconds since epoch)]")
    lines.append(_LEGEND)
    for interval in file.intervals:
        if interval.tag is not None and not _TAG.fullmatch(interval.tag):
            raise ValueError(f"the tag {interval.tag!r} is empty or holds a comma or a space")
        tag = "" if interval.tag is None else f"Tag={interval.tag},"
        stamp_ns = max(0, (base_ns if interval.t_start_ns is None else interval.t_start_ns) - base_ns)
        maximum, described = interval.histogram.max or 0, interval.histogram.to_dict()
        lines.append(f"#[sysmeter {' '.join(f'{name}={described[name] or 0}' for name in _FIGURES)}]")
        lines.append(
            f"{tag}{_seconds(stamp_ns)},{_seconds(interval.length_ns or 0)},"
            f"{maximum // NS_PER_MS}.{maximum % NS_PER_MS:06d},{_encode(interval.histogram)}"
        )
    return "\n".join(lines) + "\n"


def _encode(histogram: LatencyHistogram) -> str:
    hdr = _as_hdr(histogram)
    encoded: bytes = hdr.encode()
    # A count of 2**62 or more comes out wrong, without an error.
    if hdr.total_count != type(hdr).decode(encoded).total_count:
        raise HistogramFileError(
            f"{histogram.count} samples are more than a log of HdrHistogram's can hold", "write a .json file"
        )
    return encoded.decode()


def _distribution_text(histogram: LatencyHistogram) -> str:
    output = io.BytesIO()
    _as_hdr(histogram).output_percentile_distribution(output, 1)
    return hgrm.made_exact(output.getvalue().decode(), histogram)


def _as_hdr(histogram: LatencyHistogram) -> Any:
    """The package's histogram of the same samples, each at the upper bound of its bucket or the exact maximum."""
    maximum = histogram.max or 0
    digits = next(digits for half_bits, digits in _DIGITS.items() if half_bits >= histogram.sub_bits)
    hdr = _hdr_histogram_class()(1, max(_HIGHEST_NS, maximum), digits)
    filled = np.flatnonzero(histogram.counts)
    for index, n in zip(filled.tolist(), histogram.counts[filled].tolist(), strict=True):
        hdr.record_value(min(bucket_upper_bound(index, histogram.sub_bits), maximum), n)
    return hdr


def _hdr_histogram_class() -> Any:
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise SysmeterError(
            f"the package hdrhistogram is missing, and it is what reads and writes HdrHistogram's files ({error})",
            "install it into the same environment: python -m pip install hdrhistogram (it has ready-made packages for "
            "x86-64 only, elsewhere it needs a C compiler); .json files need nothing",
        ) from error
    return HdrHistogram


def _seconds_ns(text: str) -> int:
    return round(Fraction(text) * NS_PER_S)


def _seconds(value_ns: int) -> str:
    """Seconds with as many decimals as there are, three at least, as HdrHistogram writes."""
    whole, rest = divmod(value_ns, NS_PER_S)
    decimals = f"{rest:09d}".rstrip("0")
    return f"{whole}.{decimals:0<3}"
