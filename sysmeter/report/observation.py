"""What observing the run cost it, in words."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import wrap
from sysmeter.units import format_ns


def observation_lines(result: dict[str, Any], width: int) -> list[str]:
    """The estimate of each thread's share, and the observer's own CPU time; empty where nobody observed."""
    found = result.get("observation")
    if not found:
        return []
    words = _estimate(found)
    if found["observer_cpu_ns"] is not None:
        words += f"; sysmeter's own process {format_ns(found['observer_cpu_ns'])} of CPU time"
    return wrap(words, width, "Observation ", "  ")


def _estimate(found: dict[str, Any]) -> str:
    if found["threads"] is None:
        return f"not estimated: {found['reason'] or 'unknown'}"
    parts = [
        f"{name} {format_ns(row['time_ns'])} ({_percent(row['share_frac'])})"
        for name, row in found["threads"].items()
        if row is not None
    ]
    if not parts:
        return "not estimated: no thread's window was complete"
    words = f"about {', '.join(parts)} of the window in the probes' programs"
    if found["uncosted"]:
        words += f", those of {', '.join(found['uncosted'])} left out"
    return f"{words} (estimate; not in it: the tracepoints' own work, programs run for other tasks, caches)"


def _percent(share: float | None) -> str:
    if share is None:
        return "n/a"
    return f"{100 * share:.2g} %" if share >= 1e-5 or share == 0 else "<0.001 %"
