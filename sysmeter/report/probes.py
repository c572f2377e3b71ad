"""The catalogue of probes as text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import MIN_WIDTH, wrap

_LABEL = 13


def render_probes(result: dict[str, Any], width: int = 80) -> str:
    """The text of a ``sysmeter.probes/1`` result; no line is wider than ``width`` columns (40 at least)."""
    width = max(width, MIN_WIDTH)
    blocks = []
    for probe in result["probes"]:
        when = "default" if probe["default"] else "on request"
        lines = wrap(f"{probe['name']}  ({when})  {probe['summary']}", width, "", "  ")
        lines += _labelled("proves", probe["claim"], width)
        lines += _labelled("attached to", ", ".join(_short(probe["hooks"])), width)
        if probe["requires"]:
            lines += _labelled("needs", ", ".join(probe["requires"]), width)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _labelled(label: str, text: str, width: int) -> list[str]:
    return wrap(text, width, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))


def _short(hooks: list[dict[str, Any]]) -> list[str]:
    """Names of the hooks; an entry and its exit as one, an optional one in brackets."""
    shown: dict[str, None] = {}
    for hook in hooks:
        name = hook["name"]
        for side in ("_entry", "_exit"):
            name = name.removesuffix(side) + "_{entry,exit}" if name.endswith(side) else name
        shown[f"[{name}]" if hook["optional"] else name] = None
    return list(shown)
