"""The result of a live run as plain text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.claims import live_claim_lines, off_cpu_lines, probe_lines
from sysmeter.report.diagnosis import concurrent_lines, episode_lines, tail_lines
from sysmeter.report.layout import MIN_WIDTH, columns, count, plural, printable, wrap
from sysmeter.report.observation import observation_lines
from sysmeter.report.parts import clock_words, fit, host_lines, labelled, latency_lines, note_lines
from sysmeter.units import format_ns

_GC_WIDTHS = (-14, 12, 14, 14)


def render_live(result: dict[str, Any], width: int = 80) -> str:
    """The report of a ``sysmeter.live/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    sections = [
        _settings_lines(result, width),
        _flow_lines(result, width),
        [*latency_lines(result["latency"], ("service", "response"), width), *_beside_lines(result, width)],
        _collection_lines(result, width),
        live_claim_lines(result, width),
        off_cpu_lines(result, width),
        [*probe_lines(result, width), *observation_lines(result, width)],
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
    return "\n".join(part for line in lines for part in fit(line, width))


def format_bytes(n_bytes: int | None) -> str:
    """A size in MiB with one decimal, its sign where it shrank; ``n/a`` for None."""
    return "n/a" if n_bytes is None else f"{n_bytes / (1 << 20):.1f} MiB"


def _settings_lines(result: dict[str, Any], width: int) -> list[str]:
    settings, thread = result["settings"], result["threads"]["worker"]
    if settings["mode"] == "paced":
        pace = f"paced at {settings['rate_hz']:,} messages/s, {result['messages_planned'] / settings['rate_hz']:g} s"
        pace += f" of which {settings['warmup_seconds']:g} s are warm-up"
    else:
        n_warmup = round(settings["warmup_seconds"] * settings["rate_hz"])
        pace = f"flat (each message when the one before is done), {result['messages_planned']:,} messages"
        pace += f" of which {n_warmup:,} are warm-up"
    lines = labelled("live", pace, width)
    words = f"order messages built, split, parsed and kept: {settings['orders']:,} orders in the cache"
    lines += labelled("work", f"{words}; gaps from {format_ns(settings['gap_threshold_ns'])} on", width)
    words = f"worker on CPU {thread.get('cpu')} (tid {thread.get('tid')})"
    if settings["threads"]:
        words += f", and {plural(settings['threads'], 'other Python thread')} of its process"
    lines += labelled("threads", words, width)
    lines += labelled("collector", _policy_words(result["gc"]), width)
    lines += host_lines(result["host"], width)
    return lines + labelled("clock", clock_words(result["clock"]), width)


def _policy_words(gc: dict[str, Any]) -> str:
    words = f"--gc {gc['policy']}"
    if gc["policy"] == "off":
        words += ": no automatic collection"
    elif gc["thresholds"]:
        words += f": thresholds {', '.join(f'{n:,}' for n in gc['thresholds'])}"
    if gc["frozen_objects"]:
        words += f", {gc['frozen_objects']:,} objects frozen"
    return words


def _flow_lines(result: dict[str, Any], width: int) -> list[str]:
    if not result["messages"] or not result["elapsed_ns"]:
        return wrap("No message of the window was worked on: nothing was measured.", width)
    lines = labelled("window", f"{plural(result['messages'], 'message')} in {format_ns(result['elapsed_ns'])}", width)
    achieved, settings = result["achieved_rate_hz"], result["settings"]
    if achieved is not None:
        words = f"{achieved:,.0f} messages/s"
        if settings["mode"] == "paced":
            share = int(100_000 * achieved / settings["rate_hz"]) / 1_000  # floor: "100 %" is never rounded up
            words = f"achieved {words}, {share:.3f} % of the target {settings['rate_hz']:,}"
        lines += labelled("rate", words, width)
    memory = result["memory"]
    words = f"resident {format_bytes(memory['rss_open_bytes'])} at the window's begin, grown by "
    growth = "an unknown amount" if memory["rss_growth_bytes"] is None else format_bytes(memory["rss_growth_bytes"])
    return lines + labelled("memory", f"{words}{growth} at its end", width)


def _beside_lines(result: dict[str, Any], width: int) -> list[str]:
    """p99, p99.9 and max beside the collections of the same window: a tail without them is half a measurement."""
    name = "service" if result["latency"]["response"]["count"] is None else "response"
    row, gc = result["latency"][name], result["gc"]
    shown = [f"{label} {format_ns(row[key])}" for label, key in (("p99", "p99_ns"), ("p99.9", "p99_9_ns"))]
    words = f"{name} {', '.join(shown)}, max {format_ns(row['max_ns'])}; "
    if gc["collections"] is None:
        return wrap(f"{words}collections not measured", width, "", "  ")
    by_generation = ", ".join(f"{n:,} of gen {k}" for k, n in enumerate(gc["collections"]))
    words += f"collections in the window: {by_generation}, {format_ns(sum(gc['time_ns']))} in all"
    return wrap(words, width, "", "  ")


def _collection_lines(result: dict[str, Any], width: int) -> list[str]:
    gc, lock = result["gc"], result["interpreter_lock"]
    if gc["collections"] is None:
        return wrap("Collections: not measured: the run ended before its window was complete", width, "", "  ")
    lines = [columns(["Collections", "count", "total", "longest"], _GC_WIDTHS)]
    for generation, n in enumerate(gc["collections"]):
        total, longest = gc["time_ns"][generation], gc["max_ns"][generation]
        row = [f"  generation {generation}", count(n), format_ns(total) if n else "-", format_ns(longest) if n else "-"]
        lines.append(columns(row, _GC_WIDTHS))
    words = ", ".join(
        f"{printable(name)} {row['collections']:,}x {format_ns(row['time_ns'])}"
        for name, row in gc["by_thread"].items()
    )
    if words:
        lines += wrap(f"by thread: {words}", width, "  ", "    ")
    if lock["count"] is None:
        words = f"not measured: {lock['reason']}"
    elif lock["count"]:
        words = f"{plural(lock['count'], 'time')}, {format_ns(lock['time_ns'])} (longest {format_ns(lock['max_ns'])})"
    else:
        words = "never"
    return lines + wrap(f"The worker waited for the interpreter lock: {words}.", width, "  ", "    ")


def _closing_lines(result: dict[str, Any], width: int) -> list[str]:
    lines = []
    if result["interrupted"]:
        lines += wrap("INTERRUPTED: the run was stopped early; this is what was measured until then.", width)
    if result["steal_ns"]:
        words = ", ".join(f"CPU {cpu} {format_ns(value)}" for cpu, value in result["steal_ns"].items())
        lines += wrap(f"Stolen by the hypervisor as far as it says (/proc/stat): {words}.", width, "", "  ")
    place = "not saved" if result["recording"] is None else printable(result["recording"])
    return lines + labelled("recording", place, width)
