"""The part of the report about injected stalls, and what they look like in each mode."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import plural, wrap
from sysmeter.units import format_ns

_PACED = (
    "The feed kept its schedule, so every message whose intended time fell into a stall waited for its end and"
    " counts: one stall is many slow samples, spread evenly from 0 to its length. In flat mode the same stall would"
    " be charged once, to what was in the queue just then, and to none that were due meanwhile."
)
_FLAT = (
    "The feed has no schedule here: it found the queue full, waited and stamped nothing, so a stall is charged once,"
    " to what was in the queue just then. In paced mode every message that was due meanwhile would count,"
    " from the time it should have been sent."
)
_FLAT_UNBOUNDED = (
    "The feed has no schedule here, and this queue no bound: it went on pushing through the stall, so the messages"
    " pushed meanwhile waited for its end and count from their push."
)


def stall_lines(result: dict[str, Any], width: int) -> list[str]:
    """How many stalls, how long, how many messages waited, and what the mode makes of them; empty without stalls."""
    settings, stalls = result["settings"], result["stalls"]
    if settings.get("stall", "none") == "none":
        return []
    asked = f"{format_ns(settings['stall_for_ns'])} every {format_ns(settings['stall_every_ns'])}"
    if not stalls:
        words = f"Injected stalls, {asked}: none began in the window."
        return wrap(words, width, "", "  ")
    lengths = [stall["duration_ns"] for stall in stalls]
    waited = [stall["n_waited"] for stall in stalls]
    words = f"Injected stalls, {asked}: {plural(len(stalls), 'stall')} in the window, "
    words += f"{format_ns(min(lengths))} to {format_ns(max(lengths))} long; at the end of each "
    least, most = min(waited), max(waited)
    words += f"{least:,} to {most:,}" if least < most else f"{most:,}"
    words += " messages waited in the queue."
    if settings["mode"] == "paced" and settings["ring_slots"] == most:
        words += " The queue was full then; what was due beyond it waited at the feed."
    meaning = _PACED if settings["mode"] == "paced" else _FLAT if settings["ring_slots"] else _FLAT_UNBOUNDED
    return [*wrap(words, width, "", "  "), *wrap(meaning, width, "  ")]
