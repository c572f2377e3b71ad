"""Parameter types that several commands share."""

from __future__ import annotations

import click

from sysmeter.units import parse_duration_ns


class Duration(click.ParamType[int]):
    """A length of time with its unit, such as ``50us``; converts to nanoseconds above 0."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Integer nanoseconds."""
        if isinstance(value, int):
            return value
        try:
            value_ns = parse_duration_ns(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if value_ns <= 0:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return value_ns


DURATION = Duration()
