"""The comparison of collector policies as plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sysmeter.report.layout import MIN_WIDTH, columns, plural, wrap
from sysmeter.report.live import format_bytes
from sysmeter.report.parts import clock_words, fit, host_lines, labelled, note_lines
from sysmeter.units import format_ns

_LATENCY_WIDTHS = (-16, 9, 9, 9, 9, 9, 9, 9)
_COLLECTION_WIDTHS = (-16, 9, 9, 9, 16, 16)
_SERVICE = ("p50_ns", "p99_ns", "p99_9_ns", "max_ns")
_RESPONSE = ("p99_ns", "p99_9_ns", "max_ns")


def run_line(number: int, total: int, run: dict[str, Any]) -> str:
    """What is said of one run when it is done."""
    name = "service" if run["response"]["max_ns"] is None else "response"
    words = f"run {number} of {total}, --gc {run['policy']}: {name} p99.9 {format_ns(run[name]['p99_9_ns'])}, "
    words += f"max {format_ns(run[name]['max_ns'])}, "
    counts = run["collections"]
    return words + ("collections not measured" if counts is None else f"collections {'/'.join(map(str, counts))}")


def render_gc_comparison(result: dict[str, Any], width: int = 80) -> str:
    """The report of a ``sysmeter.live-gc/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    lines = [*_head_lines(result, width), ""]
    lines.append(columns(["", "service", "", "", "", "response", "", ""], _LATENCY_WIDTHS))
    lines.append(columns(["--gc", "p50", "p99", "p99.9", "max", "p99", "p99.9", "max"], _LATENCY_WIDTHS))
    for entry in result["policies"]:
        figures = [entry["service"][key] for key in _SERVICE] + [entry["response"][key] for key in _RESPONSE]
        lines += _rows(entry, [(figure, format_ns) for figure in figures], _LATENCY_WIDTHS)
    lines += ["", columns(["", "collections", "", "", "", ""], (-16, 18, 5, 4, 16, 16))]
    lines.append(columns(["--gc", "gen 0", "gen 1", "gen 2", "collecting", "memory grown"], _COLLECTION_WIDTHS))
    for entry in result["policies"]:
        counts = entry["collections"] or [None] * 3
        cells: list[tuple[Any, Callable[[Any], str]]] = [(counts[k], _format_count) for k in range(3)]
        cells += [(entry["gc_time_ns"], format_ns), (entry["rss_growth_bytes"], format_bytes)]
        lines += _rows(entry, cells, _COLLECTION_WIDTHS)
    lines += ["", *wrap(_method_words(result), width)]
    if result["settings"]["mode"] != "paced":
        lines += wrap("There is no response time without a schedule: a flat run is late for nothing.", width)
    if any(run["gc_agrees"] is False for run in result["runs"]):
        lines += wrap("NOT PROVEN: in some run gc.callbacks and gc.get_stats counted different collections.", width)
    notes = note_lines(result, width)
    lines += ["", *notes] if notes else []
    if result["interrupted"]:
        words = f"INTERRUPTED after {plural(len(result['runs']), 'run')} of {result['n_runs_planned']}: "
        words += "this is what was measured until then; the run that was cut short is not in it."
        lines += ["", *wrap(words, width)]
    return "\n".join(part for line in lines for part in fit(line, width))


def _head_lines(result: dict[str, Any], width: int) -> list[str]:
    settings = result["settings"]
    pace = f"paced at {settings['rate_hz']:,} messages/s" if settings["mode"] == "paced" else "flat"
    words = f"{plural(settings['rounds'], 'round')} of each policy in turns, {pace}, {settings['seconds']:g} s each of"
    words += f" which {settings['warmup_seconds']:g} s are warm-up; {settings['orders']:,} orders in the cache, "
    words += f"{plural(settings['threads'], 'other Python thread')}, CPU {settings['cpus'][0]}"
    lines = labelled("live", words, width)
    lines += host_lines(result["host"], width)
    return lines + labelled("clock", clock_words(result["clock"]), width)


def _rows(entry: dict[str, Any], figures: list[tuple[Any, Callable[[Any], str]]], widths: tuple[int, ...]) -> list[str]:
    """The medians, and below them the lowest and the highest where there was more than one run."""
    if not entry["n_runs"]:
        return [columns([entry["policy"], "not run", *[""] * (len(widths) - 2)], widths)]
    kinds = [(entry["policy"], "median")]
    if entry["n_runs"] > 1:
        kinds += [("  lowest", "low"), ("  highest", "high")]
    return [
        columns([label, *("n/a" if figure is None else show(figure[kind]) for figure, show in figures)], widths)
        for label, kind in kinds
    ]


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _method_words(result: dict[str, Any]) -> str:
    counts = {entry["n_runs"] for entry in result["policies"]}
    n_runs = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return (
        f"Medians over {n_runs} runs of each policy, with the lowest and the highest. service: from the begin of the"
        " work on a message to its end; response: from the intended time. collecting: the time in collections of all"
        " generations; memory grown: resident memory from the window's begin to its end."
    )
