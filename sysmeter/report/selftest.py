"""The result of ``sysmeter selftest`` as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sysmeter.report.layout import MIN_WIDTH, cells, columns, plural, printable, wrap
from sysmeter.units import format_ns

# As many misses of each cause are listed one by one; --json has all of them.
_MAX_MISSES = 5
_CAUSE_WIDTHS = (-12, 9, 7, 10, 18)
# The columns of the confusion matrix, short enough for eleven of them beside a cause in 80 columns.
_SHORT = {
    "preemption": "preem",
    "page_fault": "fault",
    "interrupt": "irq",
    "migration": "migr",
    "collection": "coll",
    "wrong length": "len",
    "nothing": "none",
}
_MEANING = (
    "A trial is found when the diagnosis of its interval names the right cause with the injector's identity, for as "
    "long as the injector's own record says, within a fifth or 50 µs. A false cause is an injector's identity named "
    "in a control."
)


def plan_line(causes: Sequence[str], trials: int, seed: int, seconds: float) -> str:
    """What is said before it begins."""
    words = f"{plural(trials, 'trial')} each of {plural(len(causes), 'cause')} and as many controls, seed {seed}"
    return f"{words}; takes about {seconds:.0f} s"


def run_line(name: str, trials: int, found: int) -> str:
    """What is said of one run of injections when it is judged."""
    return f"run {name}: {found:,} of {plural(trials, 'trial')} as they should be"


def render_selftest(result: dict[str, Any], width: int = 80) -> str:
    """The report of a ``sysmeter.selftest/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    lines = [*_head_lines(result, width), ""]
    lines.append(columns(["", "injected", "found", "recall", "95 % interval"], _CAUSE_WIDTHS))
    lines += [columns(_cause_row(row), _CAUSE_WIDTHS) for row in result["causes"]]
    lines += [columns([row["cause"], "skipped"], _CAUSE_WIDTHS[:2]) for row in result["skipped"]]
    controls = result["controls"]
    words = f"{plural(controls['false_causes'], 'false cause')} in {plural(controls['trials'], 'control')}"
    if controls["false_high_frac"] is not None:
        words += f" ({_percent(controls['false_frac'])}, at most {_percent(controls['false_high_frac'])})"
    lines += wrap(words, width, "controls    ")
    lines += ["", "Injected (rows) against named (columns)", *_confusion_lines(result["confusion"], width)]
    if result["misses"]:
        lines += ["", "Not as they should be", *_miss_lines(result["misses"], width)]
    for row in result["skipped"]:
        lines += wrap(f"{row['cause']} was skipped: {row['reason']}", width, "", "  ")
    if result["not_carried_out"]:
        lines += ["", *_not_carried_out_lines(result["not_carried_out"], width)]
    lines += ["", *_ordinary_lines(result, width), "", *wrap(_MEANING, width)]
    if result["recordings"]:
        lines += wrap(f"Recordings: {', '.join(result['recordings'])}", width)
    if result["notes"]:
        lines += ["", "Notes", *(part for note in result["notes"] for part in wrap(note, width, "  - ", "    "))]
    lines += ["", *_verdict_lines(result, width)]
    return "\n".join(part for line in lines for part in _fit(line, width))


def _fit(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return [line] if cells(line) <= width else wrap(line.strip(), width, indent, indent + "  ")


def _head_lines(result: dict[str, Any], width: int) -> list[str]:
    settings, host = result["settings"], result["host"]
    words = f"{plural(settings['trials'], 'trial')} of each cause and as many controls, seed {settings['seed']}; "
    words += (
        f"capstone at {settings['injections_rate_hz']:,} messages/s on CPUs {', '.join(map(str, settings['cpus']))} "
    )
    words += f"of {host.get('hostname', '?')}, Linux {host.get('kernel', '?')}, "
    words += f"virtualisation {host.get('virtualization') or 'unknown'}"
    return wrap(words, width, "selftest    ")


def _cause_row(row: dict[str, Any]) -> list[str]:
    if not row["injected"]:
        return [row["cause"], "0", "-", "-", "-"]
    interval = f"{_percent(row['recall_low_frac'])}..{_percent(row['recall_high_frac'])}"
    return [row["cause"], f"{row['injected']:,}", f"{row['named']:,}", _percent(row["recall_frac"]), interval]


def _confusion_lines(confusion: dict[str, dict[str, int]], width: int) -> list[str]:
    names = list(next(iter(confusion.values())))
    heads = [_SHORT.get(name, name) for name in names]
    widths = (-11, *(max(5, cells(head) + 1) for head in heads))
    rows = [columns(["", *heads], widths)]
    for cause, found in confusion.items():
        rows.append(columns([cause, *(str(found[name]) if found[name] else "." for name in names)], widths))
    if max(map(cells, rows)) <= width:
        return rows
    # A narrow page: one line a cause, without the zeros.
    lines = []
    for cause, found in confusion.items():
        words = ", ".join(f"{name} {count:,}" for name, count in found.items() if count)
        lines += wrap(words or "none", width, f"{cause}: ", "  ")
    return lines


def _miss_lines(misses: list[dict[str, Any]], width: int) -> list[str]:
    lines = []
    for cause in dict.fromkeys(row["cause"] for row in misses):
        of_cause = [row for row in misses if row["cause"] == cause]
        for row in of_cause[:_MAX_MISSES]:
            lines += wrap(printable(f"{cause} (trial {row['number']}): {row['reason']}"), width, "  ", "    ")
        if len(of_cause) > _MAX_MISSES:
            lines.append(f"  {cause}: {len(of_cause) - _MAX_MISSES:,} more, see --json")
    return lines


def _not_carried_out_lines(rows: list[dict[str, Any]], width: int) -> list[str]:
    counts: dict[str, int] = {}
    for row in rows:
        words = f"{row['cause']}: {row['reason']}"
        counts[words] = counts.get(words, 0) + 1
    lines = ["Did not come about, and is no trial (tried again in a further run)"]
    for words, count in counts.items():
        lines += wrap(printable(f"{words}, {plural(count, 'time')}"), width, "  ", "    ")
    return lines


def _ordinary_lines(result: dict[str, Any], width: int) -> list[str]:
    tail = result["ordinary_run"]
    if tail is None:
        return wrap("not carried out", width, "ordinary run  ")
    if tail["threshold_ns"] is None or result["witnessed_frac"] is None:
        return wrap("it has no tail to explain: too few samples", width, "ordinary run  ")
    words = (
        f"tail from {format_ns(tail['threshold_ns'])} on ({tail['threshold_source']}), {tail['samples']:,} samples: "
    )
    words += f"witnessed {_percent(result['witnessed_frac'])}, inferred {_percent(result['inferred_frac'])}, "
    words += f"unexplained {_percent(result['unexplained_frac'])} of their time"
    return wrap(words, width, "ordinary run  ")


def _verdict_lines(result: dict[str, Any], width: int) -> list[str]:
    goal = result["goal"]
    lines = []
    for reason in result["reasons"]:
        lines += wrap(printable(reason), width, "  - ", "    ")
    words = f"Verdict: {result['verdict']}"
    if result["interrupted"]:
        words += ", interrupted: the trials so far"
    words += f" (recall at least {_percent(goal['recall_frac'])} of each cause, false causes at most "
    words += f"{_percent(goal['false_frac'])}, witnessed and inferred at least {_percent(goal['explained_frac'])}"
    words += ")" if goal["is_full"] else "; the quick form forgives one miss of a cause)"
    if not goal["is_full"] and result["verdict"] == "quick form passed":
        words += ": no proof of the goal, for which so few trials are not enough; --trials 300 are"
    return [*wrap(f"{words}.", width), *lines]


def _percent(frac: float | None) -> str:
    """A share in per cent, in which neither all nor nothing is ever the result of rounding."""
    if frac is None:
        return "n/a"
    if frac in (0, 1):
        return f"{100 * frac:.0f} %"
    return f"{min(99.99, max(0.01, 100 * frac)):.2f} %" if frac > 0.995 or frac < 0.005 else f"{100 * frac:.1f} %"
