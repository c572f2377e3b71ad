"""The comparison of two runs' decisions as plain text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import MIN_WIDTH, count, fraction, plural, wrap

_LABEL_WIDTH = 11


def render_decisions(result: dict[str, Any], width: int = 80) -> str:
    """The text of a ``sysmeter.decisions/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    rows = [(name, _side_words(result[name.lower()])) for name in ("A", "B")]
    rows.append(("common", plural(result["common"], "sequence number")))
    if result["common"]:
        rows.append(("equal", f"{count(result['equal'])} ({fraction(result['equal'], result['common'])})"))
        rows.append(("different", count(result["different"])))
    rows += [("only in A", count(result["only_in_a"])), ("only in B", count(result["only_in_b"]))]
    lines = [line for label, words in rows for line in wrap(words, width, f"{label:<{_LABEL_WIDTH}}")]
    lines += ["", *_difference_lines(result["first_difference"], width), *wrap(_verdict_words(result), width)]
    return "\n".join(lines)


def _side_words(side: dict[str, Any]) -> str:
    words = f"{side['path']}: {plural(side['n_decisions'], 'decision')}"
    if side["n_decisions"]:
        words += f", sequence numbers {count(side['first_seq'])} to {count(side['last_seq'])}"
    return words


def _difference_lines(first: dict[str, Any] | None, width: int) -> list[str]:
    if first is None:
        return []
    lines = wrap(f"First difference, at sequence number {first['seq']}, in {', '.join(first['fields'])}:", width)
    for name in ("A", "B"):
        side = first[name.lower()]
        lines += wrap(side["text"], width, f"  {name}, line {side['line']}: ", "    ")
    return [*lines, ""]


def _verdict_words(result: dict[str, Any]) -> str:
    if not result["common"]:
        without = [f"{name} holds no decision" for name in ("A", "B") if not result[name.lower()]["n_decisions"]]
        why = " and ".join(without) or "the runs decided at no common sequence number"
        return f"NOTHING IN COMMON: {why}, so nothing is shown."
    if result["different"]:
        return (
            f"DIFFERENT: {plural(result['different'], 'common decision')} of {count(result['common'])} "
            f"{'differs' if result['different'] == 1 else 'differ'}. Either the two runs are of different feeds, or "
            "one of them decided wrongly."
        )
    return "EQUAL: wherever both runs have a decision for a sequence number, it is the same one."
