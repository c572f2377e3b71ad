"""HdrHistogram's percentile distributions (``.hgrm``) as text: read strictly, and made exact after writing.

Such a file is a table of value, percentile, samples up to there, and 1/(1-percentile), with three lines after it::

           Value     Percentile TotalCount 1/(1-Percentile)

        1003.000 0.000000000000          1           1.00
        6815.000 1.000000000000       1000
    #[Mean    =     2330.902, StdDeviation   =     2085.101]
    #[Max     =     6815.000, TotalCount     =     1000.000]
    #[Buckets =           35, SubBuckets     =         2048]

A table is less than a histogram: all that is known of the samples between two rows is that they are at most the
upper row's value. They are taken to be just that, so every percentile read from such a file is the table's, or that of
the next row above. The count is exact; maximum and mean are the printed ones, which other programs take from buckets.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from sysmeter.buckets import MAX_SUB_BITS, MAX_VALUE, MIN_SUB_BITS, bucket_index, bucket_upper_bound
from sysmeter.hist import LatencyHistogram

_NUMBER = r"(\d+(?:\.\d+)?)"
_HEADER = re.compile(r"Value\s+Percentile\s+TotalCount\s+1/\(1-Percentile\)")
_ROW = re.compile(rf"{_NUMBER}\s+{_NUMBER}\s+(\d+)(?:\s+(?:{_NUMBER}|inf|Infinity))?")
_MEAN = re.compile(rf"#\[Mean\s*=\s*(?:{_NUMBER}|NaN|nan),\s*StdDeviation\s*=\s*(?:{_NUMBER}|NaN|nan)\]")
_MAX = re.compile(rf"#\[Max\s*=\s*{_NUMBER},\s*Total ?[Cc]ount\s*=\s*{_NUMBER}\]")
_BUCKETS = re.compile(r"#\[Buckets\s*=\s*(\d+),\s*SubBuckets\s*=\s*(\d+)\]")


class BrokenLineError(ValueError):
    """A line that is not what the format has there; ``line`` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


class Distribution(NamedTuple):
    """What a file says: one histogram, and its comments without the ``#``."""

    histogram: LatencyHistogram
    comments: list[str]


class _Row(NamedTuple):
    line: int
    value: str
    n_up_to: int


def parse(lines: list[str], unit_ns: int) -> Distribution:
    """Read the lines of a file whose values are in units of ``unit_ns`` ns.

    Raises:
        BrokenLineError: with the first line that is not what it must be; one past the last where lines are missing.
    """
    rows: list[_Row] = []
    comments: list[str] = []
    expected = ["the header", "a row or #[Mean", "#[Max", "#[Buckets", ""]
    state, mean, last_percentile, n_buckets_per_half = 0, Fraction(0), Fraction(0), 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if text.startswith("#") and not text.startswith(("#[Mean", "#[Max", "#[Buckets")):
            comments.append(text[1:])
        elif state == 0 and _HEADER.fullmatch(text):
            state = 1
        elif state == 1 and (found := _ROW.fullmatch(text)):
            percentile = Fraction(found[2])
            _check_order(number, rows, found[1], int(found[3]))
            if not last_percentile <= percentile <= 1:
                raise BrokenLineError(number, f"the percentile {found[2]} does not ascend to 1")
            last_percentile = percentile
            rows.append(_Row(number, found[1], int(found[3])))
        elif state == 1 and (found := _MEAN.fullmatch(text)):
            state, mean = 2, Fraction(found[1] or 0)
        elif state == 2 and (found := _MAX.fullmatch(text)):
            total = rows[-1].n_up_to if rows else 0
            if Fraction(found[2]) != total:
                raise BrokenLineError(number, f"TotalCount is {found[2]}, but the rows count up to {total}")
            state = 3
        elif state == 3 and (found := _BUCKETS.fullmatch(text)):
            state, n_buckets_per_half = 4, int(found[2]) // 2
        else:
            wanted = f", where {expected[state]} must be" if expected[state] else " after the last line"
            raise BrokenLineError(number, f"{text[:60]!r}{wanted}")
    if state != 4:
        raise BrokenLineError(len(lines) + 1, f"the file ends where {expected[state]} must be")
    if rows and last_percentile != 1:
        raise BrokenLineError(rows[-1].line, "the last row is not that of percentile 1")
    # HdrHistogram has SubBuckets/2 buckets in each power of two, as many as this precision.
    sub_bits = max(MIN_SUB_BITS, min(MAX_SUB_BITS, n_buckets_per_half.bit_length() - 1))
    return Distribution(_histogram(rows, mean, unit_ns, sub_bits), comments)


def _check_order(number: int, rows: list[_Row], value: str, n_up_to: int) -> None:
    if rows and (Fraction(value) < Fraction(rows[-1].value) or n_up_to < rows[-1].n_up_to):
        raise BrokenLineError(number, "value or count is below that of the row before")
    if n_up_to > MAX_VALUE or (not rows and n_up_to == 0):
        raise BrokenLineError(number, f"{n_up_to} samples")


def _histogram(rows: list[_Row], mean: Fraction, unit_ns: int, sub_bits: int) -> LatencyHistogram:
    histogram = LatencyHistogram(sub_bits)
    n_before, lowest_ns, highest_ns, n_kept, n_overflow = 0, 0, 0, 0, 0
    for row in rows:
        n, n_before = row.n_up_to - n_before, row.n_up_to
        if n == 0:
            continue
        value_ns = Fraction(row.value) * unit_ns
        if value_ns.denominator != 1:
            raise BrokenLineError(
                row.line, f"{row.value} is finer than a nanosecond: is the unit another one (--unit)?"
            )
        if value_ns > MAX_VALUE:
            n_overflow += n
            continue
        index = bucket_index(int(value_ns), sub_bits)
        if n_kept == 0:
            lowest_ns = bucket_upper_bound(index - 1, sub_bits) + 1 if index else 0
        histogram.counts[index] += n
        highest_ns, n_kept = int(value_ns), n_kept + n
    sum_ns = max(n_kept * lowest_ns, min(n_kept * highest_ns, round(mean * unit_ns * n_kept)))
    return LatencyHistogram.from_parts(
        histogram.counts, sub_bits, n_kept, lowest_ns, highest_ns, sum_ns, n_overflow=n_overflow
    )


def made_exact(text: str, histogram: LatencyHistogram) -> str:
    """The package's text of ``histogram`` (in ns), with mean, maximum and count exact and no value above the maximum.

    The package prints the middle of buckets for the mean, a bucket's bound for the maximum, and floats.
    """
    digits = 0
    lines = []
    for line in text.splitlines():
        row = _ROW.fullmatch(line.strip())
        if row is not None:
            digits = len(row[1].partition(".")[2])
            value = min(int(Fraction(row[1])), histogram.max or 0)
            line = f"{_decimal(Fraction(value), digits):>12}" + line[line.index(row[1]) + len(row[1]) :]
        elif (found := _MEAN.fullmatch(line)) is not None and histogram.count:
            mean = _decimal(Fraction(histogram.sum, histogram.count), digits)
            line = f"#[Mean    = {mean:>12}, StdDeviation   = {found[1] and found[2]:>12}]"
        elif _MAX.fullmatch(line) is not None and histogram.count:
            maximum, total = (_decimal(Fraction(value), digits) for value in (histogram.max or 0, histogram.count))
            line = f"#[Max     = {maximum:>12}, TotalCount     = {total:>12}]"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _decimal(value: Fraction, digits: int) -> str:
    scaled = round(value * 10**digits)
    text = f"{scaled:0{digits + 1}d}"
    return f"{text[:-digits]}.{text[-digits:]}" if digits else text
