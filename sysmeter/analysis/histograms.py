"""Histograms of files and Recordings: what they hold (schema ``sysmeter.histogram/1``), and several merged into one.

Result of :func:`describe`: ``files``, each with ``path``, ``kind`` (``hlog``, ``hgrm``, ``json`` or ``recording``),
``unit`` (of the values in the file; the result is in ns), ``comments``, ``start_time_ns`` (since the epoch, or null)
and ``histograms``: one for each tag (null: none) with all its intervals merged. Its keys are those of the latencies of
``sysmeter.run/1`` and

- ``n_overflow``, and ``bucketed``, the figures that are only as exact as the file's buckets;
- ``intervals``: ``t_start_ns``, ``length_ns``, ``count``, ``max_ns`` of each;
- ``percentiles``, the whole table: ``percentile`` (its decimal text), ``value_ns`` and ``n_up_to``, the samples in all
  buckets up to that value.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sysmeter import histfiles
from sysmeter import recording as recordings
from sysmeter.analysis.summary import PERCENTILES
from sysmeter.analysis.tail import histogram as recorded_histogram
from sysmeter.errors import RecordingError, UsageError
from sysmeter.hist import LatencyHistogram, bucket_index, enough_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sysmeter.histfiles import HistogramFile, Interval

SCHEMA = "sysmeter.histogram/1"
RECORDING = "recording"


def describe(paths: Sequence[Path], unit: str) -> dict[str, Any]:
    """What the files and Recordings hold; ``unit`` is that of the values in ``.hlog`` and ``.hgrm`` files.

    Raises:
        HistogramFileError: a file is not sound.
        RecordingError: a directory is no sound Recording.
    """
    return {"schema": SCHEMA, "files": [_describe_file(path, _read(path, unit), unit) for path in paths]}


def merge(paths: Sequence[Path], unit: str, tag: str | None, kind: str) -> tuple[HistogramFile, dict[str, Any]]:
    """The histograms of all files, one for each tag, or only those of ``tag``; and what to say about it.

    The interval of a merged histogram is from the start of its first to the end of its last one.

    Raises:
        HistogramFileError, RecordingError: as :func:`describe`.
        UsageError: nothing to merge, or tags that a file of this ``kind`` cannot keep apart.
    """
    files = [_read(path, unit) for path in paths]
    tags = _by_tag([interval for file in files for interval in file.intervals])
    if tag is not None:
        tags = {name: intervals for name, intervals in tags.items() if name == tag}
    if not tags:
        what = "the files hold no histogram" if tag is None else f"no histogram has the tag {tag}"
        raise UsageError(f"there is nothing to merge: {what}", "see what is in them: sysmeter hist show")
    if len(tags) > 1 and kind != histfiles.LOG:
        names = ", ".join("(none)" if name is None else name for name in tags)
        raise UsageError(
            f"a .{kind} file holds one histogram, and there are several tags: {names}",
            "choose one with --tag, or write a .hlog file, which keeps them apart",
        )
    intervals = [_merge_intervals(name, intervals) for name, intervals in tags.items()]
    merged = histfiles.HistogramFile(
        kind,
        intervals,
        [comment for file in files for comment in file.comments],
        min((file.start_time_ns for file in files if file.start_time_ns is not None), default=None),
        _common({file.base_time_ns for file in files if file.base_time_ns is not None}),
    )
    facts = [
        {
            "tag": interval.tag,
            "n_merged": len(tags[interval.tag]),
            "count": interval.histogram.count,
            "sub_bits": interval.histogram.sub_bits,
            "n_coarsened": sum(one.histogram.sub_bits > interval.histogram.sub_bits for one in tags[interval.tag]),
            "n_outside": interval.histogram.n_negative + interval.histogram.n_overflow,
            "bucketed": list(interval.bucketed),
        }
        for interval in intervals
    ]
    return merged, {"n_files": len(files), "kind": kind, "histograms": facts}


def _common(bases_ns: set[int]) -> int | None:
    # Times that count from different instants are written as absolute ones.
    return bases_ns.pop() if len(bases_ns) == 1 else None


def _read(path: Path, unit: str) -> HistogramFile:
    if not path.is_dir():
        return histfiles.read(path, unit)
    recording = recordings.load(path)
    try:
        elapsed_ns = recording.meta["run"].get("elapsed_ns")
        return histfiles.HistogramFile(
            RECORDING,
            [
                histfiles.Interval(recorded_histogram(recording, name), name, None, elapsed_ns)
                for name in recording.meta["histograms"]
            ],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{path} is damaged: meta.json does not hold what it must ({error!r})") from error


def _by_tag(intervals: Sequence[Interval]) -> dict[str | None, list[Interval]]:
    tags: dict[str | None, list[Interval]] = {}
    for interval in intervals:
        tags.setdefault(interval.tag, []).append(interval)
    return tags


def _merge_intervals(tag: str | None, intervals: Sequence[Interval]) -> Interval:
    merged = LatencyHistogram(min(interval.histogram.sub_bits for interval in intervals))
    for interval in intervals:
        merged.merge(interval.histogram)
    spans = [
        (interval.t_start_ns, interval.t_start_ns + (interval.length_ns or 0))
        for interval in intervals
        if interval.t_start_ns is not None
    ]
    t_start_ns = min((start for start, _ in spans), default=None)
    length_ns = max(end for _, end in spans) - t_start_ns if t_start_ns is not None else None
    bucketed = [name for name in ("min", "mean", "max") if any(name in interval.bucketed for interval in intervals)]
    return histfiles.Interval(merged, tag, t_start_ns, length_ns, tuple(bucketed))


def _describe_file(path: Path, file: HistogramFile, unit: str) -> dict[str, Any]:
    return {
        "path": str(path),
        "kind": file.kind,
        "unit": unit if file.has_foreign_unit else "ns",
        "comments": file.comments,
        "start_time_ns": file.start_time_ns,
        "histograms": [_describe_tag(tag, intervals) for tag, intervals in _by_tag(file.intervals).items()],
    }


def _describe_tag(tag: str | None, intervals: Sequence[Interval]) -> dict[str, Any]:
    merged = _merge_intervals(tag, intervals)
    found = merged.histogram
    return {
        "tag": tag,
        "count": found.count,
        "min_ns": found.min,
        "mean_ns": found.mean,
        **{key: found.reportable_percentile(percentile) for key, percentile in PERCENTILES},
        "max_ns": found.max,
        "n_negative": found.n_negative,
        "n_overflow": found.n_overflow,
        "sub_bits": found.sub_bits,
        "bucketed": list(merged.bucketed),
        "intervals": [
            {
                **{key: getattr(interval, key) for key in ("t_start_ns", "length_ns")},
                "count": interval.histogram.count,
                "max_ns": interval.histogram.max,
            }
            for interval in intervals
        ],
        "percentiles": _percentile_table(found),
    }


def _percentile_table(found: LatencyHistogram) -> list[dict[str, Any]]:
    rows = []
    up_to = found.counts.cumsum()
    for percentile in _levels(found.count):
        value_ns = found.percentile(percentile)
        if value_ns is not None:
            n_up_to = int(up_to[bucket_index(value_ns, found.sub_bits)])
            rows.append({"percentile": percentile, "value_ns": value_ns, "n_up_to": n_up_to})
    return rows


def _levels(count: int) -> Iterator[str]:
    """0, 10, … 90, 91, … 99, 99.1, … as long as a sample is expected beyond, and 100."""
    level, step = Fraction(0), Fraction(10)
    while enough_samples(text := _decimal(level), count):
        yield text
        level += step
        if level == 100 - step:
            step /= 10
    yield "100"


def _decimal(level: Fraction) -> str:
    n_decimals = 0
    while (level * 10**n_decimals).denominator != 1:
        n_decimals += 1
    digits = f"{int(level * 10**n_decimals):0{n_decimals + 1}d}"
    return f"{digits[:-n_decimals]}.{digits[-n_decimals:]}" if n_decimals else digits
