"""Histograms of files as plain text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sysmeter.report.layout import MIN_WIDTH, cells, columns, count, plural, wrap
from sysmeter.units import NS_PER_S, format_ns

_KINDS = {
    "hlog": "HdrHistogram log",
    "hgrm": "HdrHistogram percentile distribution",
    "json": "histogram",
    "recording": "Recording",
}
_FIGURES = (
    *(("min", "min_ns"), ("mean", "mean_ns"), ("p50", "p50_ns"), ("p90", "p90_ns"), ("p99", "p99_ns")),
    *(("p99.9", "p99_9_ns"), ("p99.99", "p99_99_ns"), ("max", "max_ns")),
)
# Times before this are not since the epoch: the log counts from an instant of its own.
_FIRST_DATE_NS = 31_536_000 * NS_PER_S


def render_histograms(result: dict[str, Any], width: int = 80) -> str:
    """The text of a ``sysmeter.histogram/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    blocks = ["\n".join(_file_lines(file, width)) for file in result["files"]]
    return "\n\n".join(blocks)


def _file_lines(file: dict[str, Any], width: int) -> list[str]:
    unit = f", values in {file['unit']}" if file["kind"] in ("hlog", "hgrm") else ""
    lines = wrap(f"{file['path']}: {_KINDS[file['kind']]}{unit}", width, "", "  ")
    if file["start_time_ns"] is not None:
        lines += wrap(_instant(file["start_time_ns"]), width, "  started   ")
    for comment in file["comments"]:
        lines += wrap(comment, width, "  comment   ")
    if not file["histograms"]:
        lines.append("  no histogram in it")
    for found in file["histograms"]:
        lines += ["", *_histogram_lines(found, file["kind"], width)]
    return lines


def _histogram_lines(found: dict[str, Any], kind: str, width: int) -> list[str]:
    words = plural(found["count"], "value")
    if kind == "hlog":
        words += f" in {plural(len(found['intervals']), 'interval')}"
    lines = wrap(words, width, "no tag: " if found["tag"] is None else f"{found['tag']}: ", "  ")
    if kind in ("hlog", "recording"):
        lines += _interval_lines(found["intervals"], width)
    for what, key in (("negative", "n_negative"), ("above 2^63-1 ns", "n_overflow")):
        if found[key]:
            lines += wrap(f"{plural(found[key], 'value')} {what}, in none of the figures", width, "  ", "  ")
    if not found["count"]:
        return lines
    lines += _figure_lines(found, width)
    if any(found[key] is None for _, key in _FIGURES):
        lines += wrap("n/a: too few samples stand behind it", width, "  ", "  ")
    lines += wrap(_exactness(found), width, "  ", "  ")
    rows = [
        [row["percentile"], format_ns(row["value_ns"]), count(row["n_up_to"]), count(found["count"] - row["n_up_to"])]
        for row in found["percentiles"]
    ]
    return [*lines, "", *_table(["percentile", "value", "up to it", "beyond"], rows, [12, 11, 17, 17], width)]


def _interval_lines(intervals: list[dict[str, Any]], width: int) -> list[str]:
    rows = [[format_ns(row["length_ns"]), count(row["count"]), format_ns(row["max_ns"])] for row in intervals]
    if all(row["t_start_ns"] is None for row in intervals):
        return _table(["length", "count", "max"], rows, [12, 17, 12], width)
    rows = [[f"  {_instant(row['t_start_ns'])}", *texts] for row, texts in zip(intervals, rows, strict=True)]
    return _table(["  start", "length", "count", "max"], rows, [-29, 12, 17, 12], width)


def _table(labels: list[str], rows: list[list[str]], widths: list[int], width: int) -> list[str]:
    """A table; where it is too wide for its columns, each row as words."""
    lines = [columns(row, widths) for row in (labels, *rows)]
    if max(map(cells, lines)) <= width:
        return lines
    return [
        line
        for row in rows
        for line in wrap(
            ", ".join(f"{label.strip()} {text.strip()}" for label, text in zip(labels, row, strict=True)),
            width,
            "  ",
            "    ",
        )
    ]


def _figure_lines(found: dict[str, Any], width: int) -> list[str]:
    """Labels above values, in as many pairs of lines as it takes."""
    above, below = "", ""
    lines: list[str] = []
    for label, key in _FIGURES:
        value = format_ns(found[key])
        column = max(cells(value), len(label)) + 2
        if above and cells(above) + column > width:
            lines += [above, below]
            above, below = "", ""
        above, below = above + f"{label:>{column}}", below + f"{value:>{column}}"
    return [*lines, above, below]


def _exactness(found: dict[str, Any]) -> str:
    words = f"Percentiles are upper bounds of buckets, at most {100 / 2 ** found['sub_bits']:.2g} % high"
    exact = [name for name in ("count", "min", "mean", "max") if name not in found["bucketed"]]
    words += f"; {', '.join(exact)} {'is' if len(exact) == 1 else 'are'} exact"
    if found["bucketed"]:
        words += f", {', '.join(found['bucketed'])} as exact as the file's buckets"
    return words + "."


def _instant(t_ns: int | None) -> str:
    if t_ns is None:
        return "n/a"
    if t_ns < _FIRST_DATE_NS:
        return f"{t_ns // NS_PER_S}.{t_ns % NS_PER_S // 1_000_000:03d} s"
    try:
        date = datetime.fromtimestamp(t_ns // NS_PER_S, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{t_ns // NS_PER_S} s"
    return f"{date:%Y-%m-%d %H:%M:%S}.{t_ns % NS_PER_S // 1_000_000:03d} UTC"


def render_merge(facts: dict[str, Any], path: str, width: int = 80) -> str:
    """What a merge did, a paragraph for each histogram."""
    lines = []
    for one in facts["histograms"]:
        name = "" if one["tag"] is None else f"{one['tag']}: "
        words = f"{plural(one['count'], 'value')} from {plural(one['n_merged'], 'histogram')}"
        words += f" of {plural(facts['n_files'], 'file')}, precision {one['sub_bits']} bits"
        if one["n_coarsened"]:
            words += f" (the coarsest; {plural(one['n_coarsened'], 'histogram')} came finer)"
        if one["bucketed"]:
            words += f"; {', '.join(one['bucketed'])} only as exact as the buckets of the files"
        if one["n_outside"]:
            lost = "lost: a .hgrm file has no place for them" if facts["kind"] == "hgrm" else "kept apart"
            words += f"; {plural(one['n_outside'], 'value')} outside 0 to 2^63-1 ns {lost}"
        lines += wrap(f"{name}{words}", width, "", "  ")
    return "\n".join([*wrap(f"wrote {path}", width, "", "  "), *lines])
