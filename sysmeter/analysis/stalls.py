"""The stalls that the loop was asked to inject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysmeter.analysis.reads import column

if TYPE_CHECKING:
    from sysmeter.recording import Recording


def describe_stalls(recording: Recording, window_ns: tuple[int, int] | None) -> list[dict[str, int]]:
    """The stalls that began in the window: ``t_start_ns``, ``duration_ns`` and ``n_waited``.

    ``n_waited`` is how many messages the queue held when the stall ended.
    """
    stalls = recording["stalls"]
    if window_ns is None:
        return []
    start = column(stalls, "t_start_ns")
    inside = stalls[(start >= window_ns[0]) & (start <= window_ns[1])]
    return [{name: int(stall[name]) for name in ("t_start_ns", "duration_ns", "n_waited")} for stall in inside]
