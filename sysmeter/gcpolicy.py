"""What a workload in Python does about its garbage collector: the words for it, and how it is done.

``default``
    As Python starts.
``off``
    No automatic collection: cycles are never freed, and memory grows by them.
``freeze``
    What lives before the loop is put aside for good (``gc.freeze``): full collections no longer look at it.
``threshold:N``
    A collection of the youngest generation after N more container objects, in place of Python's own number.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

DEFAULT, OFF, FREEZE, THRESHOLD = "default", "off", "freeze", "threshold"
_MAX_THRESHOLD = 2**31 - 1  # a C int in CPython


@dataclass(frozen=True)
class GcPolicy:
    """One policy; ``threshold`` is None but for ``threshold:N``."""

    kind: str
    threshold: int | None = None

    def __str__(self) -> str:
        return self.kind if self.threshold is None else f"{self.kind}:{self.threshold}"

    def apply(self) -> None:
        """Bring this process's collector into this state. What is to be frozen must be alive already."""
        if self.kind == OFF:
            gc.disable()
        elif self.kind == FREEZE:
            gc.collect()  # garbage would be frozen, too
            gc.freeze()
        elif self.threshold is not None:
            gc.set_threshold(self.threshold, *gc.get_threshold()[1:])


def parse_policy(text: str) -> GcPolicy:
    """The policy that ``text`` names.

    Raises:
        ValueError: it names none.
    """
    if text in (DEFAULT, OFF, FREEZE):
        return GcPolicy(text)
    kind, _, number = text.partition(":")
    if kind == THRESHOLD and number.isascii() and number.isdecimal() and 0 < int(number) <= _MAX_THRESHOLD:
        return GcPolicy(THRESHOLD, int(number))
    raise ValueError(
        f"{text!r} is no policy for the collector; it is one of {DEFAULT}, {OFF}, {FREEZE} and {THRESHOLD}:N,"
        f" N from 1 to {_MAX_THRESHOLD:,}"
    )
