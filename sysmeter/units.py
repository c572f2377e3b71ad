"""Units: integer nanoseconds inside, human units only where text meets a person."""

from __future__ import annotations

import re

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

UNIT_NS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_DURATION = re.compile(r"\s*(\d+)(?:\.(\d+))?\s*(ns|us|µs|ms|s)\s*")


def parse_duration_ns(text: str) -> int:
    """``"50us"``, ``"1.5ms"`` or ``"2s"`` as integer nanoseconds, exactly.

    Raises:
        ValueError: no number with a unit, or a fraction finer than a nanosecond.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, such as 50us, 1.5ms or 2s")
    whole, fraction, unit = match.group(1), match.group(2) or "", match.group(3)
    scaled = int(whole + fraction) * UNIT_NS[unit]
    divisor: int = 10 ** len(fraction)
    if scaled % divisor:
        raise ValueError(f"{text!r} is finer than a nanosecond")
    return scaled // divisor


def format_ns(value_ns: int | float | None) -> str:
    """A length of time with three significant digits and its unit; ``n/a`` for None."""
    if value_ns is None:
        return "n/a"
    magnitude = abs(value_ns)
    for limit, divisor, unit in ((NS_PER_US, 1, "ns"), (NS_PER_MS, NS_PER_US, "µs"), (NS_PER_S, NS_PER_MS, "ms")):
        # 999.95 would be printed as 1000.0 of the smaller unit, so such values go to the next one.
        if magnitude < limit * 0.9995:
            return _significant(value_ns / divisor, divisor == 1) + f" {unit}"
    return _significant(value_ns / NS_PER_S, False) + " s"


def _significant(value: float, whole: bool) -> str:
    if whole and value == int(value):
        return str(int(value))
    magnitude = abs(value)
    digits = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:.{digits}f}"
