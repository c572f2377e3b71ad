"""Log-linear latency histogram: ``2**sub_bits`` linear sub-buckets per power of two.

:class:`LatencyHistogram` is for any Python program::

    from sysmeter.hist import LatencyHistogram

    histogram = LatencyHistogram()
    began_ns = time.perf_counter_ns()
    ...
    histogram.record(time.perf_counter_ns() - began_ns)
    print(histogram.summary("work", "us"))

The bucket arithmetic, which compiled code can use as well, is in sysmeter.buckets and importable from here.
"""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import histarrays, histdict
from sysmeter.buckets import (
    DEFAULT_SUB_BITS,
    MAX_SUB_BITS,
    MAX_VALUE,
    MIN_SUB_BITS,
    N_STATS,
    STAT_COUNT,
    STAT_MAX,
    STAT_MIN,
    STAT_NEGATIVE,
    STAT_OVERFLOW,
    STAT_SUM,
    STAT_SUM_HIGH,
    bucket_index,
    bucket_upper_bound,
    empty_stats,
    enough_samples,
    exact_percentile,
    highest_bit,
    n_buckets,
    percentile_rank,
    record_value,
    stats_sum,
)
from sysmeter.units import UNIT_NS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy.typing as npt

__all__ = [
    "MAX_SUB_BITS",
    "MAX_VALUE",
    "MIN_SUB_BITS",
    "LatencyHistogram",
    "bucket_index",
    "bucket_upper_bound",
    "enough_samples",
    "highest_bit",
    "n_buckets",
    "percentile_rank",
    "record_value",
]


class LatencyHistogram:
    """Counts values of 0 to 2**63 - 1 ns in buckets at most ``2**-sub_bits`` of their lower edge wide.

    ``sub_bits`` is 1 to 12; the default 5 means at most 3.1 %. Below ``2**(sub_bits + 1)`` every value has a bucket of
    its own. Count, min, max, mean and sum are exact; percentiles are upper bounds of buckets, at most the exact max.

    Values below 0 are in ``n_negative``, those above 2**63 - 1 in ``n_overflow``, and neither in any other figure: no
    latency is negative or lasts 292 years, so they are errors of measurement to be counted, not to be blended in.

    Recording costs a constant time and grows nothing. One histogram must not be recorded into by two threads at once:
    give each its own and :meth:`merge` them.
    """

    __slots__ = ("_bits", "_counts", "_high", "_low", "_n", "_stats", "_sum", "_view", "sub_bits")

    def __init__(self, sub_bits: int = DEFAULT_SUB_BITS) -> None:
        self._adopt(sub_bits, np.zeros(n_buckets(_checked_bits(sub_bits)), np.int64), np.empty(N_STATS, np.int64))
        empty_stats(self._stats)

    def _adopt(self, sub_bits: int, counts: npt.NDArray[np.int64], stats: npt.NDArray[np.int64]) -> None:
        self.sub_bits = sub_bits
        self._counts, self._stats = counts, stats
        # record() goes through a memoryview, which is twice as fast as an array, and keeps three things to itself:
        self._view = counts.data
        self._bits = sub_bits + 1
        # values within these were recorded already, so that min and max need not be looked at,
        self._low, self._high = MAX_VALUE, -1
        # and count and sum of what is in the buckets but not yet in the stats.
        self._n = self._sum = 0

    @classmethod
    def from_parts(
        cls,
        counts: npt.NDArray[np.int64],
        sub_bits: int,
        count: int,
        min_ns: int,
        max_ns: int,
        sum_ns: int,
        n_negative: int = 0,
        n_overflow: int = 0,
    ) -> LatencyHistogram:
        """A histogram from a copy of its bucket counts, shape ``(n_buckets(sub_bits),)``, and its exact figures.

        ``min_ns`` and ``max_ns`` do not matter where ``count`` is 0.

        Raises:
            ValueError: ``counts`` has another length. Whether the figures fit the counts is not looked at.
        """
        histogram = cls(sub_bits)
        if counts.shape != histogram._counts.shape:
            raise ValueError(f"counts has shape {counts.shape}, not {histogram._counts.shape}")
        histogram._counts[:] = counts
        if count:
            histogram._add_figures(count, min_ns, max_ns, sum_ns)
        histogram._stats[STAT_NEGATIVE] = n_negative
        histogram._stats[STAT_OVERFLOW] = n_overflow
        return histogram

    def record(self, value_ns: int) -> None:
        """Count one value.

        Raises:
            TypeError: it is no integer; a float is none, even a whole one.
        """
        try:
            shift = value_ns.bit_length() - self._bits
        except AttributeError:  # an integer of NumPy's, or none at all
            self.record(_integer(value_ns))
            return
        if self._low <= value_ns <= self._high or self._widen(value_ns):
            if shift < 0:
                shift = 0
            # bucket_index in one expression: nothing that is called is as fast
            self._view[(shift << self.sub_bits) + (value_ns >> shift)] += 1
            self._n += 1
            self._sum += value_ns

    def _widen(self, value_ns: int) -> bool:
        """Take a new extreme into min or max; False for a value that is in no bucket, which is counted here."""
        stats = self._stats
        if value_ns < 0:
            stats[STAT_NEGATIVE] += 1
            return False
        if value_ns > MAX_VALUE:
            stats[STAT_OVERFLOW] += 1
            return False
        stats[STAT_MIN] = self._low = min(value_ns, int(stats[STAT_MIN]))
        stats[STAT_MAX] = self._high = max(value_ns, int(stats[STAT_MAX]))
        return True

    def record_many(self, values_ns: npt.ArrayLike | Iterable[int]) -> None:
        """Count many values: an array of any integer type and shape, or any iterable of integers.

        Raises:
            TypeError: some are no integers; nothing is counted then.
        """
        values = _as_array(values_ns)
        if values.dtype == object:
            for value in values.tolist():
                self.record(value)
            return
        if values.dtype.kind not in "iub":
            raise TypeError(f"values must be integers (of ns), not of type {values.dtype}; round them first")
        counted, n_overflow = histarrays.count_values(self._counts, values.reshape(-1), self.sub_bits)
        self._stats[STAT_NEGATIVE] += values.size - n_overflow - counted.n_values
        self._stats[STAT_OVERFLOW] += n_overflow
        if counted.n_values:
            self._add_figures(*counted)

    def record_corrected(self, value_ns: int, expected_interval_ns: int) -> None:
        """Count a value and, with it, what a tester that waited for it omitted.

        A tester that sends every ``expected_interval_ns`` and is held up for ``value_ns`` does not send the requests
        that were due meanwhile. Each of them would have waited one interval less than the one before: the values
        ``value_ns - expected_interval_ns``, ``value_ns - 2 * expected_interval_ns`` and so on are counted as well, as
        long as they are not shorter than the interval. With an interval of 0 or less there was no schedule: only the
        value itself is counted. All as HdrHistogram's recordValueWithExpectedInterval in Java and C; the Python
        package hdrhistogram counts one value below the interval more.

        The time it takes depends on the number of buckets, not of values.

        Raises:
            TypeError: an argument is no integer.
            OverflowError: there would be more than 2**63 - 1 values in the histogram.
        """
        value, interval = _integer(value_ns), _integer(expected_interval_ns)
        n_values = value // interval if interval > 0 else 1
        if n_values <= 1 or value > MAX_VALUE:
            self.record(value)
            return
        self._check_room(n_values)
        # The values are rest + interval * (1 to n_values): how many lie at or below each bucket's upper bound?
        rest = value - interval * n_values
        first, last = bucket_index(rest + interval, self.sub_bits), bucket_index(value, self.sub_bits)
        upper_ns = histarrays.upper_bounds(np.arange(first, last + 1), self.sub_bits)
        n_below = np.minimum((upper_ns - rest) // interval, n_values)
        self._counts[first : last + 1] += np.diff(n_below, prepend=0)
        sum_ns = n_values * rest + interval * (n_values * (n_values + 1) // 2)
        self._add_figures(n_values, rest + interval, value, sum_ns)

    def merge(self, other: LatencyHistogram) -> None:
        """Add another histogram's samples to this one; ``other`` stays as it is.

        Where the precisions differ, this one takes the coarser: a finer bucket's samples go where its upper edge lies.
        As finer buckets never straddle an edge of coarser ones, this gives the same as recording coarsely at once.

        Raises:
            OverflowError: there would be more than 2**63 - 1 values in the histogram.
        """
        self._check_room(other.count)
        other_counts = other._counts
        if other.sub_bits > self.sub_bits:
            other_counts = histarrays.coarser(other_counts, other.sub_bits, self.sub_bits)
        elif other.sub_bits < self.sub_bits:
            stats = self.stats
            self._adopt(other.sub_bits, histarrays.coarser(self._counts, self.sub_bits, other.sub_bits), stats)
        theirs = other.stats
        self._counts += other_counts
        if theirs[STAT_COUNT]:
            self._add_figures(int(theirs[STAT_COUNT]), int(theirs[STAT_MIN]), int(theirs[STAT_MAX]), stats_sum(theirs))
        self._stats[STAT_NEGATIVE] += theirs[STAT_NEGATIVE]
        self._stats[STAT_OVERFLOW] += theirs[STAT_OVERFLOW]

    def _add_figures(self, count: int, min_ns: int, max_ns: int, sum_ns: int) -> None:
        """Take samples into the figures that are in the buckets already (count is not 0)."""
        self._n += count
        self._sum += sum_ns
        self._stats[STAT_MIN] = min(min_ns, int(self._stats[STAT_MIN]))
        self._stats[STAT_MAX] = max(max_ns, int(self._stats[STAT_MAX]))

    def _check_room(self, n_more: int) -> None:
        if self.count + n_more > MAX_VALUE:
            raise OverflowError("a histogram holds at most 2**63 - 1 values")

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The samples of each bucket, shape ``(n_buckets(sub_bits),)``: the histogram's own array, not a copy."""
        return self._counts

    @property
    def stats(self) -> npt.NDArray[np.int64]:
        """The exact figures as words, see ``STAT_COUNT`` and following: the histogram's own array, not a copy.

        :func:`record_value` may add to it. What :meth:`record` counts since is in it when it is asked for again.
        """
        if self._n:
            self._stats[STAT_COUNT] += self._n
            high, low = divmod(stats_sum(self._stats) + self._sum, 1 << 63)
            self._stats[STAT_SUM], self._stats[STAT_SUM_HIGH] = low, high
            self._n = self._sum = 0
        return self._stats

    @property
    def count(self) -> int:
        """How many values are in the buckets."""
        return int(self._stats[STAT_COUNT]) + self._n

    @property
    def min(self) -> int | None:
        """The exact minimum, ns; None without samples."""
        return int(self._stats[STAT_MIN]) if self.count else None

    @property
    def max(self) -> int | None:
        """The exact maximum, ns; None without samples."""
        return int(self._stats[STAT_MAX]) if self.count else None

    @property
    def sum(self) -> int:
        """The exact sum, ns."""
        return stats_sum(self._stats) + self._sum

    @property
    def mean(self) -> float | None:
        """The exact sum over the count, ns, rounded once; None without samples."""
        return self.sum / self.count if self.count else None

    @property
    def n_negative(self) -> int:
        """How many values were below 0; they are in no other figure."""
        return int(self._stats[STAT_NEGATIVE])

    @property
    def n_overflow(self) -> int:
        """How many values were above 2**63 - 1; they are in no other figure."""
        return int(self._stats[STAT_OVERFLOW])

    def percentile(self, p: float | int | str) -> int | None:
        """Upper bound of the bucket that holds percentile ``p`` (0 to 100), at most the exact maximum; None if empty.

        The rank is exact, see :func:`percentile_rank`. Percentile 0 is the bucket of the first value, 100 the maximum.

        Raises:
            ValueError: ``p`` is no number from 0 to 100.
        """
        exact = exact_percentile(p)
        if not 0 <= exact <= 100:
            raise ValueError(f"percentile {p} is not from 0 to 100")
        maximum = self.max
        if maximum is None:
            return None
        index = int(self._counts.cumsum().searchsorted(percentile_rank(p, self.count)))
        return min(bucket_upper_bound(index, self.sub_bits), maximum)

    def reportable_percentile(self, p: float | int | str) -> int | None:
        """As :meth:`percentile`, but None where too few samples stand behind it, see :func:`enough_samples`.

        The maximum, of which no sample lies beyond, has a property of its own: percentile 100 is never reportable.
        """
        return self.percentile(p) if enough_samples(p, self.count) else None

    def summary(self, name: str, unit: str = "ms") -> str:
        """One line: mean, percentiles, max in ``unit`` (``ns``, ``us``, ``ms`` or ``s``).

        A percentile without enough samples behind it is ``n/a``, and so is everything without samples.

        Raises:
            ValueError: the unit is another one.
        """
        if unit not in UNIT_NS:
            raise ValueError(f"unit {unit!r} is not one of {', '.join(UNIT_NS)}")
        mean = Fraction(self.sum, self.count) if self.count else None
        figures: list[tuple[str, Fraction | int | None]] = [("mean", mean)]
        figures += [(f"p{p}", self.reportable_percentile(p)) for p in (50, 90, 99, 99.9)]
        figures.append(("max", self.max))
        texts = [
            f"{label}={'n/a' if value_ns is None else format(float(Fraction(value_ns) / UNIT_NS[unit]), '.2f'):>8}"
            for label, value_ns in figures
        ]
        return f"{name:<10} {' '.join(texts)} {unit}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON: schema ``sysmeter.hist/1``, see sysmeter.histdict."""
        filled = np.flatnonzero(self._counts)
        return {
            "schema": histdict.SCHEMA,
            "sub_bits": self.sub_bits,
            "count": self.count,
            "min_ns": self.min,
            "max_ns": self.max,
            "sum_ns": self.sum,
            "n_negative": self.n_negative,
            "n_overflow": self.n_overflow,
            "counts": [[index, n] for index, n in zip(filled.tolist(), self._counts[filled].tolist(), strict=True)],
        }

    @classmethod
    def from_dict(cls, described: Any) -> LatencyHistogram:
        """The histogram that :meth:`to_dict` described.

        Raises:
            ValueError: it is not such a description, or its figures contradict each other.
        """
        return cls._from_parsed(histdict.parse(described))

    @classmethod
    def _from_parsed(cls, parts: histdict.Parts) -> LatencyHistogram:
        counts = np.zeros(n_buckets(parts.sub_bits), np.int64)
        counts[parts.filled] = parts.samples
        figures = (parts.n_values, parts.min_ns, parts.max_ns, parts.sum_ns, parts.n_negative, parts.n_overflow)
        return cls.from_parts(counts, parts.sub_bits, *figures)

    def save(self, path: str | Path) -> None:
        """Write the histogram to a JSON file, whole or not at all; a file of that name is replaced.

        Raises:
            HistogramFileError: it cannot be written.
        """
        histdict.write(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> LatencyHistogram:
        """Read a file that :meth:`save` wrote.

        Raises:
            HistogramFileError: it cannot be read, or is no such file, or is damaged.
        """
        return cls._from_parsed(histdict.read(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return (
            self.sub_bits == other.sub_bits
            and np.array_equal(self._counts, other._counts)
            and np.array_equal(self.stats, other.stats)
        )

    __hash__ = None  # type: ignore[assignment] # it changes

    def __reduce__(self) -> tuple[Any, ...]:
        # For pickle and copy: views have no such thing.
        return _rebuild, (self.sub_bits, self._counts.copy(), self.stats.copy())

    def __repr__(self) -> str:
        return f"<LatencyHistogram sub_bits={self.sub_bits} count={self.count} min={self.min} max={self.max}>"


def _rebuild(sub_bits: int, counts: npt.NDArray[np.int64], stats: npt.NDArray[np.int64]) -> LatencyHistogram:
    histogram = LatencyHistogram.__new__(LatencyHistogram)
    histogram._adopt(sub_bits, counts, stats)
    return histogram


def _checked_bits(sub_bits: int) -> int:
    if not MIN_SUB_BITS <= operator.index(sub_bits) <= MAX_SUB_BITS:
        raise ValueError(f"sub_bits is {sub_bits}, not from {MIN_SUB_BITS} to {MAX_SUB_BITS}")
    return sub_bits


def _integer(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"a value must be an integer (of ns), not {value!r}; round it first") from None


def _as_array(values: Any) -> npt.NDArray[Any]:
    is_array = hasattr(values, "__array__")
    if not is_array and not hasattr(values, "__len__"):
        values = list(values)
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype == object or (array.dtype.kind == "f" and not is_array):
        # Python integers that no one type of NumPy's holds become objects or floats. Real floats are refused here.
        array = np.array([_integer(value) for value in np.asarray(values, object).reshape(-1)], object)
    return array
