"""The result of ``sysmeter verify`` as plain text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import MIN_WIDTH, cells, columns, plural, printable, wrap
from sysmeter.report.userclaims import user_claim_lines
from sysmeter.units import NS_PER_MS, NS_PER_US, format_ns

_WIDTHS = (-9, -20, -10, 9, 16, 16)
_ZERO_WORDS = {
    "allocations": "allocations",
    "voluntary_switches": "vol. switches",
    "minor_faults": "minor faults",
    "major_faults": "major faults",
    "syscalls": "system calls",
    "gc_collections": "collections",
}
_MAX_TASKS = 4


def run_line(number: int, total: int, combination: str, is_audit: bool, levels_ns: dict[str, float | None]) -> str:
    """What is said of one run when it is done."""
    head = f"run {number} of {total}, {combination}"
    if is_audit:
        return f"{head}: allocations counted"
    return f"{head}: think {format_ns(levels_ns['think'])}, total {format_ns(levels_ns['total'])}"


def render_verification(result: dict[str, Any], width: int = 80) -> str:
    """The report of a ``sysmeter.verify/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    lines = [*_head_lines(result, width), ""]
    lines.append(columns(["", "zero to break", "to move", "by", "95 % interval", "verdict"], _WIDTHS))
    lines += [columns(_row(entry), _WIDTHS) for entry in result["swaps"]]
    for entry in result["swaps"]:
        lines += ["", *_swap_lines(entry, width)]
    if result["claims"]:
        lines += ["", *user_claim_lines(result["claims"], width, by_combination=True)]
    if result["notes"]:
        lines += ["", "Notes", *(part for note in result["notes"] for part in wrap(note, width, "  - ", "    "))]
    lines += ["", *wrap(result["method"], width), ""]
    lines += wrap(f"Verdict: {result['verdict']}.", width)
    return "\n".join(part for line in lines for part in _fit(line, width))


def _fit(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return [line] if cells(line) <= width else wrap(line.strip(), width, indent, indent + "  ")


def _head_lines(result: dict[str, Any], width: int) -> list[str]:
    settings, host = result["settings"], result["host"]
    words = f"{plural(settings['rounds'], 'round')} of paced runs at {settings['rate_hz']:,} messages/s, "
    words += f"{settings['seconds']:g} s each of which {settings['warmup_seconds']:g} s are warm-up; "
    words += f"CPUs {', '.join(map(str, settings['cpus']))} of {host.get('hostname', '?')}, "
    words += f"Linux {host.get('kernel', '?')}, virtualisation {host.get('virtualization') or 'unknown'}"
    return wrap(words, width, "verify      ")


def _row(entry: dict[str, Any]) -> list[str]:
    observed, breaks = entry["observed"], entry["predicts"]["breaks"]
    zero = "-"
    if breaks is not None:
        found = observed["counters"][breaks]
        value = "not measured" if found["value"] is None else f"{found['value']:,}"
        value += "" if found["value"] is None or found["agrees"] is True else "?"
        zero = f"{_ZERO_WORDS.get(breaks, breaks)} {value}"
    moved = entry["predicts"]["histogram"] or "-"
    if (figure := entry["predicts"]["figure"] or "").startswith("one in "):
        moved += f" 1/{figure.removeprefix('one in ')}"
    by, interval = observed["by_ns"], observed["interval_ns"]
    return [
        entry["name"],
        zero,
        moved,
        "-" if by is None else _signed(by),
        "-" if interval is None else _interval(*interval),
        entry["verdict"],
    ]


def _swap_lines(entry: dict[str, Any], width: int) -> list[str]:
    observed = entry["observed"]
    lines = wrap(f"{entry['verdict']}", width, f"{entry['name']:<9}")
    details = [entry["reason"]] if entry["reason"] else []
    details += [_zero_words(observed["counters"]), _host_words(observed["counters"]["involuntary_switches"])]
    details += [_break_words(row) for row in observed["extra_breaks"]]
    if entry["predicts"]["figure"] is not None:
        details.append(_move_words(entry))
    details.append(_decision_words(entry["decisions"]))
    for words in details:
        lines += wrap(words, width, " " * 9, " " * 11)
    return lines


def _zero_words(counters: dict[str, Any]) -> str:
    words = []
    for name, label in _ZERO_WORDS.items():
        found = counters[name]
        if found["value"] is None:
            words.append(f"{label} not measured ({found['reason']})")
            continue
        source = {True: "", False: " (sources differ)", None: " (one source)"}[found["agrees"]]
        words.append(f"{label} {found['value']:,}{source}")
    return ", ".join(words)


def _host_words(found: dict[str, Any]) -> str:
    if found["value"] is None:
        return f"involuntary switches not measured ({found['reason']})"
    if not found["value"]:
        return "involuntary switches 0"
    names = ", ".join(printable(name) for name in found["by_host"][:_MAX_TASKS])
    more = len(found["by_host"]) - _MAX_TASKS
    names += f" and {plural(more, 'other')}" if more > 0 else ""
    return f"involuntary switches {found['value']:,}, by the host: {names or 'names not recorded'}"


def _break_words(row: dict[str, Any]) -> str:
    status = "" if row["status"] == "measured" else ", not proven"
    label = _ZERO_WORDS[row["counter"]]
    where = f"{row['value']:,} in {plural(row['n_runs'], 'run')}{status}"
    return f"also broke: {label} of {row['thread']}, {where}: {row['cause']}"


def _move_words(entry: dict[str, Any]) -> str:
    observed, predicts = entry["observed"], entry["predicts"]
    histogram, by_ns = predicts["histogram"], observed["by_ns"]
    if by_ns is None:
        return f"{histogram}: not compared"
    alone = "not measured alone" if predicts["by_ns"] is None else f"the piece alone {_signed(predicts['by_ns'])}"
    level = _level_words(histogram, observed["moves"].get(histogram))
    if predicts["figure"] == "stall":
        tails = [tail for tail in observed["total_p99_9_ns"] if tail is not None]
        words = f"{histogram} of the messages due in a stall: {_signed(by_ns)}, by arithmetic "
        words += f"{_signed(predicts['by_ns'])} (half a stall)" if predicts["by_ns"] is not None else "unknown"
        words += f"; p99.9 of all {format_ns(min(tails))} to {format_ns(max(tails))} by run" if tails else ""
        held = observed["moves"].get(f"stall {predicts['stays']}")
        words += f"; their {_level_words(predicts['stays'], held)}" if held else ""
        return words + f"; {_level_words(predicts['stays'], observed['moves'].get(predicts['stays']))}"
    if predicts["one_in"] is not None:
        n = predicts["one_in"]
        words = f"{histogram}: one message in {n} takes {_signed(n * by_ns)} longer than the others"
        return f"{words}, {_signed(by_ns)} on average; the level of all: {level}; {alone}"
    return f"{level}; {alone}"


def _level_words(name: str, move: dict[str, Any] | None) -> str:
    if move is None:
        return f"{name} not compared"
    words = f"{name} {format_ns(round(move['base_ns'], 1))}, {_signed(move['by_ns'])}"
    return words + (f" ({_interval(*move['interval_ns'])})" if move["interval_ns"] else "")


def _decision_words(found: dict[str, Any]) -> str:
    if not found["n_runs"]:
        return "decisions: not compared"
    words = f"decisions: {found['common']:,} common with the first default run in {plural(found['n_runs'], 'run')}, "
    if found["equal"] == found["common"]:
        return words + "all equal"
    first = found["first_difference"] or {}
    words += f"{found['common'] - found['equal']:,} DIFFER"
    if first:
        words += f"; first at sequence number {first['seq']}: default {first['a']['text']}, here {first['b']['text']}"
    return words


def _signed(value_ns: float) -> str:
    return ("+" if value_ns >= 0 else "") + format_ns(round(value_ns, 1))


def _interval(low_ns: float, high_ns: float) -> str:
    """Both ends in one unit, the larger one with three digits: ``+83.1..+91.0 ns``."""
    magnitude = max(abs(low_ns), abs(high_ns))
    divisor, unit = next(
        (found for found in ((NS_PER_MS, "ms"), (NS_PER_US, "µs")) if magnitude >= found[0]), (1, "ns")
    )
    digits = 0 if magnitude >= 99.95 * divisor else 1 if magnitude >= 9.995 * divisor else 2
    return f"{low_ns / divisor:+.{digits}f}..{high_ns / divisor:+.{digits}f} {unit}"
