"""Where the tail comes from, as text: how much of it is explained, by what, and the slowest episodes."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import MIN_WIDTH, columns, count, fraction, plural, printable, wrap
from sysmeter.units import format_ns

TEXT_EPISODES = 5
_MAX_PARTS = 8
_MAX_CAUSES = 10
_MAX_EVENTS = 6
_MAX_CONCURRENT = 5
_EVIDENCE = ("witnessed", "inferred", "unexplained")


def render_diagnosis(result: dict[str, Any], width: int = 80, n_episodes: int = TEXT_EPISODES) -> str:
    """The text of `sysmeter diagnose` for a result of schema sysmeter.diagnose/1."""
    width = max(width, MIN_WIDTH)
    blocks = [
        tail_lines(result["tail"], result, width),
        concurrent_lines(result, width),
        episode_lines(result["tail"], result, width, n_episodes),
        wrap("`sysmeter diagnose --explain CAUSE` says what a cause is, and what helps.", width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def tail_lines(tail: dict[str, Any], lists: dict[str, Any], width: int) -> list[str]:
    """Threshold, samples, and sample and wall time, each split by evidence; then the causes by share.

    ``lists`` holds ``causes`` and ``corroboration``.
    """
    if tail["threshold_ns"] is None:
        return wrap(f"Tail: not measured: {tail['threshold_source']}", width)
    lines = wrap(f"Tail: {_threshold_words(tail)}", width, "", "  ")
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
    for label, whole_ns, shares in (
        ("  sample time", tail["sample_time_ns"], tail),
        ("  wall time", tail["wall_time_ns"], tail["wall"]),
    ):
        texts = [fraction(shares[f"{evidence}_ns"], whole_ns) for evidence in _EVIDENCE]
        lines.append(columns([label, format_ns(whole_ns), *texts], widths))
    if tail["not_inferred_because"]:
        lines += wrap(f"Nothing is inferred from gaps: {tail['not_inferred_because']}.", width, "  ")
    if tail["n_reordered"]:
        lines += wrap(
            f"{plural(tail['n_reordered'], 'release')} outside the message's own time, drawn to its edge.",
            width,
            "  ",
        )
    return [*lines, *_cause_lines(tail, lists["causes"], width), *_corroboration_lines(lists["corroboration"], width)]


def concurrent_lines(lists: dict[str, Any], width: int) -> list[str]:
    """What went on beside the tail on threads that did not hold the message."""
    rows = lists["concurrent"][:_MAX_CONCURRENT]
    if not rows:
        return []
    lines = wrap("Beside the tail, on threads that did not hold the message: concurrent, never a cause", width)
    for row in rows:
        who = f"{row['thread']} {row['event']}" if row["thread"] else f"{row['event']} in the process"
        words = f"{who}: beside {row['n_overlapping']:,} of {plural(row['n_episodes'], 'episode')}; "
        if row["ratio"] is None:
            words += "none in the rest of the run to compare with"
        else:
            chance = fraction(round(1_000_000 * row["rest_frac"]), 1_000_000)
            words += f"by chance {chance}: {row['ratio']:.2g} times as often"
            words += f" ({row['ratio_low']:.2g} to {row['ratio_high']:.2g})"
        lines += wrap(words, width, "  ", "    ")
    rest = len(lists["concurrent"]) - len(rows)
    return lines + (wrap(f"and {plural(rest, 'kind')} of event more", width, "  ") if rest else [])


def episode_lines(tail: dict[str, Any], lists: dict[str, Any], width: int, limit: int = TEXT_EPISODES) -> list[str]:
    """The slowest episodes, each with its parts; the parts shown add up to its length."""
    shown = lists["episodes"][:limit]
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
        lines += wrap(words, width, f"{number:>3}  ")
        for part in episode["parts"][:_MAX_PARTS]:
            lines += wrap(_cause_words(part), width, f"     {format_ns(part['time_ns']):>8}  ", " " * 15)
        rest = episode["parts"][_MAX_PARTS:]
        if rest:
            time_ns = sum(part["time_ns"] for part in rest)
            lines += wrap(_rest_words(rest), width, f"     {format_ns(time_ns):>8}  ", " " * 15)
        if episode["late_tick"] in ("yes", "no"):
            when = "late" if episode["late_tick"] == "yes" else "neither in time nor late"
            lines += wrap(f"the clock interrupt due in it came {when}", width, " " * 15, " " * 17)
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


def _threshold_words(tail: dict[str, Any]) -> str:
    source = tail["threshold_source"]
    what = "times" if tail["histogram"] == "service" else "responses"
    words = f"{what} of at least {format_ns(tail['threshold_ns'])}, "
    if source == "storage floor":
        words += "above the slowest batch that was not kept"
    elif source == "--above":
        words += "as asked for"
    else:
        words += f"the exact {source} of {tail['histogram']}"
    return f"{words}: {plural(tail['samples'], 'sample')} in {plural(tail['n_episodes'], 'episode')}"


def _cause_lines(tail: dict[str, Any], causes: list[dict[str, Any]], width: int) -> list[str]:
    lines = wrap("Causes, by their share of the sample time; first the thread that had the message:", width, "  ")
    lines.append("     share   samples    wall")
    for row in causes[:_MAX_CAUSES]:
        share = fraction(row["sample_time_ns"], tail["sample_time_ns"])
        first = f"  {share:>8}  {row['samples']:>8,} {format_ns(row['wall_time_ns']):>8}  "
        lines += wrap(_cause_words(row), width, first, " " * len(first))
    rest = causes[_MAX_CAUSES:]
    if rest:
        share = fraction(sum(row["sample_time_ns"] for row in rest), tail["sample_time_ns"])
        wall = format_ns(sum(row["wall_time_ns"] for row in rest))
        lines += wrap(plural(len(rest), "other cause"), width, f"  {share:>8}  {'':>8} {wall:>8}  ")
    return lines


def _corroboration_lines(found: dict[str, Any] | None, width: int) -> list[str]:
    if found is None:
        return []
    ticks = found["late_tick"]
    if not sum(ticks.values()):
        return []
    words = (
        f"Outside the guest: {format_ns(ticks['yes_ns'])} of this wall time confirmed by a late clock interrupt,"
        f" {format_ns(ticks['no_ns'])} contradicted, {format_ns(ticks['not_possible_ns'])} with none known to be due."
    )
    steal = [
        f"CPU {row['cpu']} {format_ns(row['outside_the_guest_ns'])} (steal column"
        f" {'not there' if row['steal_column_ns'] is None else format_ns(row['steal_column_ns'])})"
        for row in found["steal"]
    ]
    return wrap(f"{words} In the whole run: {', '.join(steal)}.", width, "  ")


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
