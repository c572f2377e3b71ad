"""The checklist of a Recording as plain text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import MIN_WIDTH, plural, printable, wrap

_LABEL_WIDTH = 16
_STATUS_WORDS = {"yes": "yes", "no": "no", "not_applicable": "not applicable"}


def render_checklist(result: dict[str, Any], width: int = 80) -> str:
    """The text of a ``sysmeter.checklist/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    place = "a Recording that was not saved" if result["recording"] is None else printable(result["recording"])
    lines = wrap(f"{place}: {_run_words(result)}", width, f"{'checklist':<{_LABEL_WIDTH}}")
    for row in result["habits"]:
        label = f"{_STATUS_WORDS[row['status']]:<{_LABEL_WIDTH}}"
        lines += ["", *wrap(row["habit"], width, label)]
        lines += wrap(row["reason"], width, " " * _LABEL_WIDTH)
    counts = ", ".join(f"{result['counts'][status]} {words}" for status, words in _STATUS_WORDS.items())
    return "\n".join([*lines, "", *wrap(f"{plural(len(result['habits']), 'habit')}: {counts}.", width)])


def _run_words(result: dict[str, Any]) -> str:
    pace = "flat" if result["rate_hz"] is None else f"paced at {result['rate_hz']:,} messages/s"
    words = f"a run of the workload {result['workload']}, {pace}, {plural(result['messages'] or 0, 'message')}"
    return f"{words} measured until it was interrupted" if result["interrupted"] else f"{words} measured"
