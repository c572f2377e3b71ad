"""The verdicts on the claims of a user's file, as text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import columns, wrap

_WIDTHS = (-30, -22, -18, -10)


def user_claim_lines(claims: list[dict[str, Any]] | None, width: int, by_combination: bool = False) -> list[str]:
    """One line a claim with what was measured and the verdict; reasons below it. Nothing without claims."""
    if claims is None:
        return []
    lines = wrap("Claims of your file", width)
    if not claims:
        return [*lines, *wrap("none is for this combination", width, "  ")]
    combination = None
    for row in claims:
        if by_combination and row["combination"] != combination:
            combination = row["combination"]
            lines += wrap(str(combination), width, "  ")
        indent = "    " if by_combination else "  "
        claimed = f"{row['operator']} {_value(row['key'], row['limit'])}"
        verdict = row["verdict"] if row["verdict"] == "holds" else row["verdict"].upper()
        measured = f"is {_value(row['key'], row['value'])}" if row["value"] is not None else ""
        lines.append(columns([indent + row["key"], claimed, measured, verdict], _WIDTHS))
        lines += [part for words in _details(row) for part in wrap(words, width, indent + "    ")]
    return lines


def _details(row: dict[str, Any]) -> list[str]:
    words = [row["reason"]] if row["reason"] else []
    if row.get("n_runs", 1) > 1 and row["verdict"] != "holds":
        words.append(f"in {row['n_runs_with_verdict']} of {row['n_runs']} runs")
    if row["n_sources"] == 1:
        words.append("counted by one source only")
    return words


def _value(key: str, value: float | int | None) -> str:
    if value is None:
        return "unknown"
    # To the last digit: beside its limit a rounded figure may look as if it held.
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    return f"{text} ns" if key.endswith("_ns") else text
