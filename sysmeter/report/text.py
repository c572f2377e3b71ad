"""The result of a run as plain text. It needs no colour to be understood, and no terminal."""

from __future__ import annotations

from typing import Any

from sysmeter.report.claims import claim_lines, gc_line, off_cpu_lines, probe_lines
from sysmeter.report.diagnosis import concurrent_lines, episode_lines, tail_lines
from sysmeter.report.layout import MIN_WIDTH, count, plural, printable, wrap
from sysmeter.report.observation import observation_lines
from sysmeter.report.parts import clock_words, fit, host_lines, labelled, latency_lines, note_lines
from sysmeter.report.stalls import stall_lines
from sysmeter.report.userclaims import user_claim_lines
from sysmeter.units import NS_PER_S, format_ns

_MAX_TIME_BUCKETS = 5


def render_run(result: dict[str, Any], width: int = 80) -> str:
    """The report of a ``sysmeter.run/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    sections = [
        _settings_lines(result, width),
        _flow_lines(result, width),
        [*latency_lines(result["latency"], ("think", "total"), width), *gc_line(result, width)],
        claim_lines(result, width),
        user_claim_lines(result.get("claims"), width),
        off_cpu_lines(result, width),
        [*probe_lines(result, width), *observation_lines(result, width)],
        stall_lines(result, width),
        tail_lines(result["tail"], result["tail"], width),
        concurrent_lines(result["tail"], width),
        episode_lines(result["tail"], result["tail"], width),
        note_lines(result, width),
        _closing_lines(result, width),
    ]
    lines: list[str] = []
    for section in sections:
        if section:
            lines += section if not lines else ["", *section]
    # The sections are laid out for 80 columns; what is asked for narrower than they need is wrapped here.
    return "\n".join(part for line in lines for part in fit(line, width))


def _settings_lines(result: dict[str, Any], width: int) -> list[str]:
    settings, host, clock, threads = (result[key] for key in ("settings", "host", "clock", "threads"))
    mode = settings["mode"]
    pace = f"paced at {settings['rate_hz']:,} messages/s" if mode == "paced" else "flat (as fast as the queue takes it)"
    planned_seconds = result["messages_planned"] / settings["rate_hz"]
    what = "the whole message file, " if settings.get("seconds") is None else ""
    pace += f", {what}{planned_seconds:g} s"
    pace += f" of which {settings['warmup_seconds']:g} s are warm-up"
    in_file = result["messages_in_file"]
    if in_file is not None and result["messages_planned"] > in_file:
        pace += f", the file of {in_file:,} messages repeated"
    lines = labelled("run", pace, width)
    lines += labelled("feed", str(settings["feed"]), width)
    parts = [
        f"book {settings.get('book', '?')}",
        f"queue {settings.get('queue', '?')}" + (f" of {settings['ring_slots']:,}" if settings["ring_slots"] else ""),
    ]
    parts.append(f"gaps from {format_ns(settings['gap_threshold_ns'])} on")
    if settings.get("stop_above_ns") is not None:
        parts.append(f"stop above {format_ns(settings['stop_above_ns'])}")
    lines += labelled("loop", ", ".join(parts), width)
    places = [
        f"{name} on CPU {threads[name].get('cpu')} (tid {threads[name].get('tid')})" for name in ("feed", "strategy")
    ]
    lines += labelled("threads", ", ".join(places), width)
    lines += host_lines(host, width)
    lines += labelled("clock", clock_words(clock), width)
    return lines


def _flow_lines(result: dict[str, Any], width: int) -> list[str]:
    elapsed, achieved = result["elapsed_ns"], result["achieved_rate_hz"]
    if result["messages"] is None or not elapsed:
        return wrap("No message of the window was decided: nothing was measured.", width)
    words = f"{plural(result['messages'], 'message')} in {format_ns(elapsed)} "
    words += f"({count(result['messages_released'])} released with the warm-up), "
    words += plural(result["batches"] or 0, "batch", "batches")
    lines = labelled("window", words, width)
    target = result["settings"]["rate_hz"] if result["settings"]["mode"] == "paced" else None
    if achieved is not None:
        words = f"{achieved:,.0f} messages/s"
        if target:
            # Floor, so that "100 %" is never the rounding of less.
            share = int(100_000 * achieved / target) / 1_000
            words = f"achieved {words}, {share:.3f} % of the target {target:,}"
        lines += labelled("rate", words, width)
    words = (
        f"ring full {count(result['ring_full_waits'])}, sequence gaps {count(result['sequence_gaps'])}, "
        f"duplicates {count(result['duplicates'])}, other instruments {count(result['other_instruments'])}, "
        f"unknown instruments {count(result['unknown_instruments'])}, "
    )
    words += "live at the end" if result["live"] else "NOT live at the end"
    return lines + labelled("feed state", words, width)


def _closing_lines(result: dict[str, Any], width: int) -> list[str]:
    lines = []
    if result["interrupted"]:
        lines += wrap("INTERRUPTED: the run was stopped early; this is what was measured until then.", width)
    if result.get("stopped_by") == "stop_above":
        limit = result["settings"].get("stop_above_ns")
        lines += wrap(f"Stopped by the first response above {format_ns(limit)}.", width)
    slowest = sorted(
        (row for row in result["time_buckets"] if row["n_messages"]), key=lambda row: -row["total_max_ns"]
    )[:_MAX_TIME_BUCKETS]
    if slowest:
        origin_ns = result["time_buckets"][0]["t_start_ns"]
        words = "Slowest slices of the run (its start, mean and max of total): " + "; ".join(
            f"{(row['t_start_ns'] - origin_ns) / NS_PER_S:.0f} s, {format_ns(row['total_mean_ns'])},"
            f" {format_ns(row['total_max_ns'])}"
            for row in slowest
        )
        lines += wrap(words, width, "", "  ")
    if result["steal_ns"]:
        words = ", ".join(f"CPU {cpu} {format_ns(value)}" for cpu, value in result["steal_ns"].items())
        lines += wrap(f"Stolen by the hypervisor as far as it says (/proc/stat): {words}.", width, "", "  ")
    lines += labelled("decisions", _decisions_words(result), width)
    place = "not saved" if result["recording"] is None else printable(result["recording"])
    return lines + labelled("recording", place, width)


def _decisions_words(result: dict[str, Any]) -> str:
    found = result["decisions"]
    if found["count"] is None:
        return f"not kept: {found['reason']}"
    return f"{count(found['count'])}{'' if result['recording'] is None else ', in decisions.csv'}"
