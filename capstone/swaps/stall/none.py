"""The default: no stall is injected."""

from __future__ import annotations

from typing import Any

from capstone.compiled import compiled


def n_words(_settings: dict[str, Any]) -> int:
    """Words of shared memory needed: none."""
    return 0


def initialize(stall, settings: dict[str, Any]) -> None:
    """Nothing to prepare."""


def kept(_stall) -> list[tuple[int, int, int]]:
    """No stall happened."""
    return []


@compiled
def arm(_stall, _t_start_ns):
    """Nothing to plan."""


@compiled
def is_due(_stall, _now_ns):
    """Never; the compiler leaves the rest out."""
    return False


@compiled
def spin(_stall, _gaps, last_ns, _gap_threshold_ns):
    """Not called."""
    return last_ns


@compiled
def note_waiting(_stall, _n_waiting):
    """Not called."""
