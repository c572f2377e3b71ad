"""Checks of the words that choose the loop's components."""

from __future__ import annotations

from sysmeter.errors import UsageError
from sysmeter.units import format_ns


def describe_components(slot: str) -> str:
    """The components of a slot with their help texts; nothing where another project's ``capstone`` is in the way."""
    try:
        from capstone.predictions import describe
    except ImportError:
        return ""
    return describe(slot)


def require_swaps(book: str, queue: str) -> None:
    """Refuse a component that does not exist.

    Raises:
        UsageError: with the names that do.
    """
    from capstone import combination

    for slot, name in (("book", book), ("queue", queue)):
        known = combination.names(slot)
        if name not in known:
            raise UsageError(f"there is no {slot} {name!r}", f"there is: {', '.join(known)}")


def require_stall(every_ns: int, for_ns: int) -> None:
    """Refuse a stall that leaves no time between two of them.

    Raises:
        UsageError: the stall is as long as its period, or longer.
    """
    if for_ns >= every_ns:
        raise UsageError(
            f"a stall of {format_ns(for_ns)} does not end before the next one, {format_ns(every_ns)} later",
            "make --stall-for shorter than --stall-every",
        )
