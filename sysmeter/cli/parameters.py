"""Parameter types that several commands share."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from sysmeter.units import NS_PER_S, parse_duration_ns

_MAX_DURATION_NS = 24 * 3_600 * NS_PER_S


class Duration(click.ParamType[int]):
    """A length of time with its unit, such as ``50us``; converts to nanoseconds, above 0 unless ``or_zero``."""

    name = "duration"

    def __init__(self, or_zero: bool = False) -> None:
        self._least_ns = 0 if or_zero else 1

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Integer nanoseconds."""
        if isinstance(value, int):
            return value
        try:
            value_ns = parse_duration_ns(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if value_ns < self._least_ns:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return value_ns


class DurationOrPercentile(click.ParamType["int | str"]):
    """A length of time as :class:`Duration`, or a percentile, such as ``p99``, which converts to its number's text."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Integer nanoseconds, or the text behind the p."""
        text = str(value)
        if not re.fullmatch(r"p\d.*", text):
            return DURATION.convert(value, param, ctx)
        if not re.fullmatch(r"p\d{1,2}(\.\d{1,9})?", text):
            self.fail(f"{text!r} is no percentile below 100, such as p99 or p99.9", param, ctx)
        return text[1:]


class Milliseconds(click.ParamType[int]):
    """A length of time above 0 in milliseconds, a fraction allowed; converts to nanoseconds."""

    name = "milliseconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Integer nanoseconds."""
        if isinstance(value, int):
            return value
        try:
            value_ns = parse_duration_ns(f"{value}ms")
        except ValueError:
            self.fail(f"{value!r} is not a number of milliseconds above 0", param, ctx)
        if not 0 < value_ns <= _MAX_DURATION_NS:
            self.fail(f"{value!r} is not above 0 and at most a day", param, ctx)
        return value_ns


class Seconds(click.FloatRange):
    """A finite number of seconds: click itself lets "inf" and "nan" pass."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, in the range."""
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return seconds


DURATION = Duration()
DURATION_OR_PERCENTILE = DurationOrPercentile()
DURATION_OR_ZERO = Duration(or_zero=True)
SECONDS = Seconds(0, min_open=True)
SECONDS_OR_NONE = Seconds(0)
MILLISECONDS = Milliseconds()
