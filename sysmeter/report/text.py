"""The result of a run as plain text. It needs no colour to be understood, and no terminal."""

from __future__ import annotations

from typing import Any

from sysmeter.report.claims import claim_lines, gc_line, off_cpu_lines, probe_lines
from sysmeter.report.layout import MIN_WIDTH, cells, columns, count, plural, printable, wrap
from sysmeter.report.stalls import stall_lines
from sysmeter.report.tail import episode_lines, tail_lines
from sysmeter.report.userclaims import user_claim_lines
from sysmeter.units import NS_PER_S, format_ns

_MAX_TIME_BUCKETS = 5

_PERCENTILES = (
    ("p50", "p50_ns", 2),
    ("p90", "p90_ns", 10),
    ("p99", "p99_ns", 100),
    ("p99.9", "p99_9_ns", 1_000),
    ("p99.99", "p99_99_ns", 10_000),
)
_VALUE_WIDTH = 9


def render_run(result: dict[str, Any], width: int = 80) -> str:
    """The report of a ``sysmeter.run/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    sections = [
        _settings_lines(result, width),
        _flow_lines(result, width),
        _latency_lines(result, width),
        claim_lines(result, width),
        user_claim_lines(result.get("claims"), width),
        off_cpu_lines(result, width),
        probe_lines(result, width),
        stall_lines(result, width),
        tail_lines(result, width),
        episode_lines(result, width),
        _note_lines(result, width),
        _closing_lines(result, width),
    ]
    lines: list[str] = []
    for section in sections:
        if section:
            lines += section if not lines else ["", *section]
    # The sections are laid out for 80 columns; what is asked for narrower than they need is wrapped here.
    return "\n".join(part for line in lines for part in _fit(line, width))


def _fit(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return [line] if cells(line) <= width else wrap(line.strip(), width, indent, indent + "  ")


def _labelled(label: str, text: str, width: int) -> list[str]:
    return wrap(text, width, f"{label:<12}", " " * 12)


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
    lines = _labelled("run", pace, width)
    lines += _labelled("feed", str(settings["feed"]), width)
    parts = [
        f"book {settings.get('book', '?')}",
        f"queue {settings.get('queue', '?')}" + (f" of {settings['ring_slots']:,}" if settings["ring_slots"] else ""),
    ]
    parts.append(f"gaps from {format_ns(settings['gap_threshold_ns'])} on")
    if settings.get("stop_above_ns") is not None:
        parts.append(f"stop above {format_ns(settings['stop_above_ns'])}")
    lines += _labelled("loop", ", ".join(parts), width)
    places = [
        f"{name} on CPU {threads[name].get('cpu')} (tid {threads[name].get('tid')})" for name in ("feed", "strategy")
    ]
    lines += _labelled("threads", ", ".join(places), width)
    words = [f"{host.get('hostname', '?')}, Linux {host.get('kernel', '?')}, {host.get('machine', '?')}"]
    words.append(f"{host.get('n_cpus_online', '?')} CPUs online")
    if host.get("cpu_model"):
        words.append(str(host["cpu_model"]))
    lines += _labelled("host", ", ".join(words), width)
    lines += _labelled("", _host_details(host), width)
    lines += _labelled("clock", _clock_words(clock), width)
    return lines


def _host_details(host: dict[str, Any]) -> str:
    siblings = []
    for cpu in host.get("cpus") or []:
        others = cpu.get("smt_siblings")
        known = "unknown" if others is None else ", ".join(str(other) for other in others) or "none"
        siblings.append(f"CPU {cpu['cpu']}: {known}")
    words = [
        f"SMT siblings {'; '.join(siblings) or 'unknown'}",
        f"virtualisation {host.get('virtualization') or 'unknown'}",
    ]
    words.append(f"isolated CPUs {host.get('isolated_cpus') or 'none'}")
    words.append(f"nohz_full {host.get('nohz_full') or 'none'}")
    if host.get("cpu_governor"):
        words.append(f"governor {host['cpu_governor']}")
    return ", ".join(words)


def _clock_words(clock: dict[str, Any]) -> str:
    words = f"{clock.get('name', '?')} from {clock.get('source', '?')}"
    if clock.get("fast") is False:
        words += " (slow: each read enters the kernel)"
    start, end = clock.get("checked_start"), clock.get("checked_end")
    if start is None and end is None:
        return f"{words}; kernel's clock not compared: {clock.get('reason') or 'probes were off'}"
    if start and end:
        return f"{words}; the kernel's probes read the same clock, checked at start and end"
    return f"{words}; NOT the clock the kernel's probes read: {clock.get('reason') or 'the check failed'}"


def _flow_lines(result: dict[str, Any], width: int) -> list[str]:
    elapsed, achieved = result["elapsed_ns"], result["achieved_rate_hz"]
    if result["messages"] is None or not elapsed:
        return wrap("No message of the window was decided: nothing was measured.", width)
    words = f"{plural(result['messages'], 'message')} in {format_ns(elapsed)} "
    words += f"({count(result['messages_released'])} released with the warm-up), "
    words += plural(result["batches"] or 0, "batch", "batches")
    lines = _labelled("window", words, width)
    target = result["settings"]["rate_hz"] if result["settings"]["mode"] == "paced" else None
    if achieved is not None:
        words = f"{achieved:,.0f} messages/s"
        if target:
            # Floor, so that "100 %" is never the rounding of less.
            share = int(100_000 * achieved / target) / 1_000
            words = f"achieved {words}, {share:.3f} % of the target {target:,}"
        lines += _labelled("rate", words, width)
    words = (
        f"ring full {count(result['ring_full_waits'])}, sequence gaps {count(result['sequence_gaps'])}, "
        f"duplicates {count(result['duplicates'])}, other instruments {count(result['other_instruments'])}, "
        f"unknown instruments {count(result['unknown_instruments'])}, "
    )
    words += "live at the end" if result["live"] else "NOT live at the end"
    return lines + _labelled("feed state", words, width)


def _latency_lines(result: dict[str, Any], width: int) -> list[str]:
    rows = result["latency"]
    counts = [count(rows[name]["count"]) for name in ("think", "total")]
    values = len(_PERCENTILES) + 2
    count_width = max(max(map(len, counts)), 5) + 1
    value_width = _VALUE_WIDTH if 6 + count_width + values * _VALUE_WIDTH <= width else _VALUE_WIDTH - 1
    widths = [-6, count_width] + [value_width] * values
    lines = [columns(["", "count", "mean", *(name for name, _, _ in _PERCENTILES), "max"], widths)]
    missing: dict[str, list[str]] = {}
    for name, number in zip(("think", "total"), counts, strict=True):
        row = rows[name]
        texts = [name, number, format_ns(row["mean_ns"])]
        for label, key, needed in _PERCENTILES:
            texts.append(format_ns(row[key]))
            if row[key] is None:
                missing.setdefault(f"{label} needs {needed:,}", []).append(name)
        lines.append(columns([*texts, format_ns(row["max_ns"])], widths))
    lines += [
        line for name in ("think", "total") for line in wrap(rows[name]["interval"], width, f"{name:<6} ", " " * 7)
    ]
    if missing:
        words = [f"{needed} ({' and '.join(names)})" for needed, names in missing.items()]
        lines += wrap("n/a (few samples): " + ", ".join(words), width, "", "  ")
    bits = rows["total"]["sub_bits"]
    error = 100 / 2**bits
    lines += wrap(
        f"Percentiles are upper bounds of buckets, at most {error:.2g} % high; count, mean, max are exact.",
        width,
    )
    return lines + gc_line(result, width)


def _note_lines(result: dict[str, Any], width: int) -> list[str]:
    notes = [line for note in result["notes"] for line in wrap(str(note), width, "  - ", "    ")]
    return ["Notes", *notes] if notes else []


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
    lines += _labelled("decisions", _decisions_words(result), width)
    place = "not saved" if result["recording"] is None else printable(result["recording"])
    return lines + _labelled("recording", place, width)


def _decisions_words(result: dict[str, Any]) -> str:
    found = result["decisions"]
    if found["count"] is None:
        return f"not kept: {found['reason']}"
    return f"{count(found['count'])}{'' if result['recording'] is None else ', in decisions.csv'}"
