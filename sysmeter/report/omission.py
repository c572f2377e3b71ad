"""The experiment on coordinated omission as plain text."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import MIN_WIDTH, count, fraction, plural, wrap
from sysmeter.units import format_ns

_LABEL_WIDTH = 11


def render_omission(result: dict[str, Any], width: int = 80) -> str:
    """The text of a ``sysmeter.omission/1`` result: the two lines of figures, then what they mean.

    The two lines have a format of their own and 94 columns or more; no other is wider than ``width`` (40 at least).
    """
    width = max(width, MIN_WIDTH)
    rows = [
        ("naive", result["naive"]["interval"]),
        ("corrected", result["corrected"]["interval"]),
        ("plan", _plan_words(result)),
        ("stall", _stall_words(result)),
    ]
    meaning = [_delayed_words(result), *_ratio_words(result), *_load_words(result), *_few_words(result)]
    return "\n".join(
        [
            result["naive"]["summary"],
            result["corrected"]["summary"],
            "",
            *(line for label, words in rows for line in wrap(words, width, f"{label:<{_LABEL_WIDTH}}")),
            "",
            *(line for words in meaning for line in wrap(words, width, "", "  ")),
        ]
    )


def _plan_words(result: dict[str, Any]) -> str:
    parameters = result["parameters"]
    return (
        f"{plural(result['requests'], 'request')}, one due every {format_ns(parameters['interval_ns'])}; each takes"
        f" {format_ns(parameters['service_ns'])}, one at a time, all in virtual time"
    )


def _stall_words(result: dict[str, Any]) -> str:
    parameters, stall = result["parameters"], result["stall"]
    length = format_ns(parameters["stall_ns"])
    if not parameters["stall_ns"]:
        return "none: its length is 0"
    if stall is None:
        return (
            f"NONE HAPPENED: it was to hit the first request that begins at {format_ns(parameters['stall_at_ns'])} or"
            f" later, and the last one began at {format_ns(result['t_last_begin_ns'])}"
        )
    # As people count: the request numbered 0 is the first.
    at = format_ns(stall["t_start_ns"])
    return f"request {count(stall['request'] + 1)}, which began at {at}, took {length} longer"


def _delayed_words(result: dict[str, Any]) -> str:
    delayed, requests = result["delayed"], result["requests"]
    words = (
        f"{count(delayed)} of {plural(requests, 'response')} ({fraction(delayed, requests)}) took longer than the"
        " service, counted from when the request was due"
    )
    if result["stall"] is None:
        return f"{words}."
    return (
        f"{words}. The naive measurement shows one of them, the stalled one: what was due during the stall was sent"
        " after it, and its wait is in no figure."
    )


def _ratio_words(result: dict[str, Any]) -> list[str]:
    factors = {name: value for name, value in result["low_by"].items() if value is not None}
    low = {name: value for name, value in factors.items() if value > 1}
    if not factors:
        return []
    if not low:
        return ["The naive figures are not low: no request had to wait, so both measure the same."]
    parts = [f"the naive {name} is low by a factor of {_factor(low[name])}" for name in ("p99", "mean") if name in low]
    same = [name for name in factors if name not in low]
    words = ", ".join(parts)
    if same:
        words += f"; the {same[0]} is the same in both: too few requests were delayed to reach it"
    return [words[0].upper() + words[1:] + "."]


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _load_words(result: dict[str, Any]) -> list[str]:
    parameters, late = result["parameters"], format_ns(result["late_at_end_ns"])
    if result["overloaded"]:
        growth = format_ns(parameters["service_ns"] - parameters["interval_ns"])
        words = (
            f"OVERLOADED: the service takes longer than the interval, so even without a stall each request begins"
            f" {growth} later than the one before it did, compared to its plan; the last one began {late} late. The"
            " corrected figures grow with the number of requests and describe the overload, not the service."
        )
        return [words]
    if not result["late_at_end_ns"]:
        return []
    words = f"The backlog had not drained when the requests ended: the last one began {late} late."
    if parameters["service_ns"] == parameters["interval_ns"]:
        words += " It never would: the service takes the whole interval, so nothing is left to catch up in."
    return [words]


def _few_words(result: dict[str, Any]) -> list[str]:
    needed = [(100, "p99_ns", "p99"), (1_000, "p99_9_ns", "p99.9")]
    missing = [f"{label} needs {n:,}" for n, key, label in needed if result["naive"][key] is None]
    return [f"n/a (few samples): {', '.join(missing)}."] if missing else []
