"""The part of the report about the tail: how much of it is explained, by what, and the slowest episodes."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import columns, count, fraction, plural, printable, wrap
from sysmeter.units import format_ns

_MAX_EPISODES = 5
_MAX_PARTS = 8
_MAX_CAUSES = 8
_MAX_EVENTS = 6
_EVIDENCE = ("witnessed", "inferred", "unexplained")


def tail_lines(result: dict[str, Any], width: int) -> list[str]:
    """Threshold, samples, and sample and wall time, each split by evidence; then the causes by share."""
    tail = result["tail"]
    if tail["threshold_ns"] is None:
        return wrap(f"Tail: not measured: {tail['threshold_source']}", width)
    source = tail["threshold_source"]
    what = "times" if tail.get("histogram") == "service" else "responses"
    words = f"Tail: {what} of at least {format_ns(tail['threshold_ns'])}, "
    if source == "storage floor":
        words += "above the slowest batch that was not kept"
    else:
        words += f"the exact {source} of {tail.get('histogram', 'total')}"
    words += f": {plural(tail['samples'], 'sample')} in {plural(tail['n_episodes'], 'episode')}"
    lines = wrap(words, width, "", "  ")
    if tail["n_above_in_histogram"] != tail["n_above_found"]:
        lines += wrap(
            f"NOT COMPLETE: the loop's histogram holds {count(tail['n_above_in_histogram'])} samples above "
            f"this value's bucket, and the batches account for {count(tail['n_above_found'])}.",
            width,
            "  ",
        )
    if not tail["samples"]:
        return lines
    widths = (-14, 12, 14, 14, 14)
    lines.append(columns(["", "whole", *_EVIDENCE], widths))
    for label, key in (("  sample time", "sample_time"), ("  wall time", "wall_time")):
        row = tail[key]
        shares = [fraction(row[f"{evidence}_ns"], row["whole_ns"]) for evidence in _EVIDENCE]
        lines.append(columns([label, format_ns(row["whole_ns"]), *shares], widths))
    if tail["n_reordered"]:
        lines += wrap(
            f"{plural(tail['n_reordered'], 'release')} outside the message's own time, drawn to its edge.",
            width,
            "  ",
        )
    lines += wrap("What held the thread that held the message, by share of sample time:", width, "  ")
    for row in tail["causes"][:_MAX_CAUSES]:
        share = fraction(row["sample_time_ns"], tail["sample_time"]["whole_ns"])
        lines += wrap(_cause_words(row), width, f"  {share:>9}  ", " " * 13)
    rest = tail["causes"][_MAX_CAUSES:]
    if rest:
        share = fraction(sum(row["sample_time_ns"] for row in rest), tail["sample_time"]["whole_ns"])
        lines += wrap(f"{plural(len(rest), 'other cause')}", width, f"  {share:>9}  ")
    return lines


def episode_lines(result: dict[str, Any], width: int) -> list[str]:
    """The slowest episodes, each with its parts; the parts shown add up to its length."""
    tail = result["tail"]
    shown = tail["episodes"][:_MAX_EPISODES]
    if not shown:
        return []
    lines = wrap(
        f"Slowest episodes ({len(shown)} of {count(tail['n_episodes'])}), by peak; the parts say what held the oldest"
        " message at each instant",
        width,
        "",
        "  ",
    )
    for number, episode in enumerate(shown, start=1):
        since = episode["since_window_ns"]
        words = "" if since is None else f"at {since / 1e9:.6f} s of the window, "
        words += f"{format_ns(episode['duration_ns'])} long, peak {format_ns(episode['peak_ns'])}, "
        words += plural(episode["n_messages"], "slow message")
        lines += wrap(words, width, f"  {number}  ")
        for part in episode["parts"][:_MAX_PARTS]:
            lines += wrap(_cause_words(part), width, f"     {format_ns(part['time_ns']):>8}  ", " " * 15)
        rest = episode["parts"][_MAX_PARTS:]
        if rest:
            time_ns = sum(part["time_ns"] for part in rest)
            lines += wrap(_rest_words(rest), width, f"     {format_ns(time_ns):>8}  ", " " * 15)
        lines += _event_lines(episode, width)
    return lines


def _event_lines(episode: dict[str, Any], width: int) -> list[str]:
    events, n_events, rest = episode["events"], episode["n_events"], "more such event"
    n_faults = episode.get("n_page_faults")
    if n_faults is not None:
        # A live run: the collections one by one, and how many faults there were.
        events, n_events = [event for event in events if event["event"] != "page fault"], n_events - n_faults
        rest = "more collection"
    lines = [line for event in events[:_MAX_EVENTS] for line in wrap(_event_words(event), width, " " * 15, " " * 17)]
    if n_events > _MAX_EVENTS:
        lines += wrap(f"and {plural(n_events - _MAX_EVENTS, rest)}", width, " " * 15)
    if n_faults:
        lines += wrap(plural(n_faults, "page fault"), width, " " * 15)
    return lines


def _cause_words(row: dict[str, Any]) -> str:
    words = f"{row['thread']} {row['cause']}"
    if row["detail"]:
        words += f": {printable(row['detail'])}"
    return f"{words} [{row['evidence']}]"


def _rest_words(rest: list[dict[str, Any]]) -> str:
    evidence = ", ".join(sorted({part["evidence"] for part in rest}))
    return f"{plural(len(rest), 'smaller part')} [{evidence}]"


def _event_words(event: dict[str, Any]) -> str:
    length = "" if event["duration_ns"] is None else f", {format_ns(event['duration_ns'])}"
    if event["event"] == "page fault":
        return f"page fault of {event['thread']} at {event['address']:#x}, {event['mode']} mode{length}"
    if event["relation"] != "concurrent":
        return f"collection of generation {event['generation']} in {printable(event['thread'])}{length}"
    return f"concurrent, not a cause: collection of generation {event['generation']}{length}"
