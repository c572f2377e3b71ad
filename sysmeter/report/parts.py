"""Parts that the reports of both workloads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sysmeter.report.layout import cells, columns, count, wrap
from sysmeter.units import format_ns

_PERCENTILES = (
    ("p50", "p50_ns", 2),
    ("p90", "p90_ns", 10),
    ("p99", "p99_ns", 100),
    ("p99.9", "p99_9_ns", 1_000),
    ("p99.99", "p99_99_ns", 10_000),
)
_VALUE_WIDTH = 9


def fit(line: str, width: int) -> list[str]:
    """A line that was laid out for more columns, wrapped."""
    indent = line[: len(line) - len(line.lstrip())]
    return [line] if cells(line) <= width else wrap(line.strip(), width, indent, indent + "  ")


def labelled(label: str, text: str, width: int) -> list[str]:
    """Text with a label before it, in a column of its own."""
    return wrap(text, width, f"{label:<12}", " " * 12)


def host_lines(host: dict[str, Any], width: int) -> list[str]:
    """What of the host bears on latency."""
    words = [f"{host.get('hostname', '?')}, Linux {host.get('kernel', '?')}, {host.get('machine', '?')}"]
    words.append(f"{host.get('n_cpus_online', '?')} CPUs online")
    if host.get("cpu_model"):
        words.append(str(host["cpu_model"]))
    return labelled("host", ", ".join(words), width) + labelled("", _host_details(host), width)


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


def clock_words(clock: dict[str, Any]) -> str:
    """The clock, its resolution, what a read of it costs, and whether the kernel reads the same one."""
    words = f"{clock.get('name', '?')} from {clock.get('source', '?')}"
    if clock.get("fast") is False:
        words += " (SLOW: each read enters the kernel)"
    if clock.get("resolution_ns") is not None:
        words += f", resolution {format_ns(clock['resolution_ns'])}"
    if clock.get("python_read_cost_ns") is not None:
        words += f", {format_ns(clock['python_read_cost_ns'])} a read from Python"
    start, end = clock.get("checked_start"), clock.get("checked_end")
    if start is None and end is None:
        return f"{words}; kernel's clock not compared: {clock.get('reason') or 'probes were off'}"
    if start and end:
        return f"{words}; the kernel's probes read the same clock, checked at start and end"
    return f"{words}; NOT the clock the kernel's probes read: {clock.get('reason') or 'the check failed'}"


def latency_lines(rows: dict[str, dict[str, Any]], names: Sequence[str], width: int) -> list[str]:
    """The latency table of the histograms ``names``, what each covers, and what no figure stands for."""
    shown = [name for name in names if rows[name]["count"] is not None]
    counts = [count(rows[name]["count"]) for name in shown]
    label_width = max(max(map(len, names)), 6)
    values = len(_PERCENTILES) + 2
    count_width = max(*map(len, counts), 5) + 1
    value_width = _VALUE_WIDTH if label_width + count_width + values * _VALUE_WIDTH <= width else _VALUE_WIDTH - 1
    widths = [-label_width, count_width] + [value_width] * values
    lines = [columns(["", "count", "mean", *(name for name, _, _ in _PERCENTILES), "max"], widths)]
    missing: dict[str, list[str]] = {}
    for name, number in zip(shown, counts, strict=True):
        row = rows[name]
        texts = [name, number, format_ns(row["mean_ns"])]
        for label, key, needed in _PERCENTILES:
            texts.append(format_ns(row[key]))
            if row[key] is None:
                missing.setdefault(f"{label} needs {needed:,}", []).append(name)
        lines.append(columns([*texts, format_ns(row["max_ns"])], widths))
    for name in names:
        lead, indent = f"{name:<{label_width}} ", " " * (label_width + 1)
        words = rows[name]["interval"]
        lines += wrap(words if name in shown else f"not measured: {rows[name]['reason']}", width, lead, indent)
    if missing:
        texts = [f"{needed} ({' and '.join(of)})" for needed, of in missing.items()]
        lines += wrap("n/a (few samples): " + ", ".join(texts), width, "", "  ")
    error = 100 / 2 ** rows[names[0]]["sub_bits"]
    return lines + wrap(
        f"Percentiles are upper bounds of buckets, at most {error:.2g} % high; count, mean, max are exact.",
        width,
    )


def note_lines(result: dict[str, Any], width: int) -> list[str]:
    """What a reader must know to judge the result."""
    notes = [line for note in result["notes"] for line in wrap(str(note), width, "  - ", "    ")]
    return ["Notes", *notes] if notes else []
