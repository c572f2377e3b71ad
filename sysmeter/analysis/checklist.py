"""The habits of an honest latency measurement, each answered from what a Recording holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sysmeter.analysis import habits
from sysmeter.analysis.habits import NO, NOT_APPLICABLE, YES, Answer, Evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from sysmeter.recording import Recording

SCHEMA = "sysmeter.checklist/1"

_HABITS: dict[str, tuple[str, Callable[[Evidence], Answer]]] = {
    "monotonic_clock": ("A monotonic clock for intervals, never the wall clock", habits.monotonic_clock),
    "fast_clock": ("A clock that is fine and cheap to read, checked", habits.fast_clock),
    "one_host": ("Only instants of one machine and one clock are compared", habits.one_host),
    "warm_up": ("Warm-up before measuring, and in no figure", habits.warm_up),
    "optimised_build": ("An optimised build, compiled before the window", habits.optimised_build),
    "no_debugger": ("No debugger or tracer attached", habits.no_debugger),
    "histogram": ("A histogram, not a list", habits.histogram),
    "percentiles": ("Percentiles, not the mean", habits.percentiles),
    "tail_with_collections": ("p99, p99.9, max and the collections together", habits.tail_with_collections),
    "fixed_rate": ("Load at a fixed rate that no response slows down", habits.fixed_rate),
    "intended_time": ("Measured from the intended send time", habits.intended_time),
    "interval": ("It is said which interval each number covers", habits.interval),
    "live_path": ("Recorded where the work is done", habits.live_path),
    "complete": ("Nothing is missing from the figures", habits.complete),
}


def check(recording: Recording) -> dict[str, Any]:
    """Every habit and whether this Recording shows it: schema ``sysmeter.checklist/1``, JSON-ready.

    ``habits`` is a list of ``name`` (for programs), ``habit`` (in words), ``status`` and ``reason``; ``counts`` says
    how many have each status.

    Raises:
        RecordingError: the Recording contradicts itself in a way that leaves no honest answer.
    """
    evidence = Evidence(recording)
    rows = []
    for name, (habit, answer) in _HABITS.items():
        status, reason = answer(evidence)
        rows.append({"name": name, "habit": habit, "status": status, "reason": reason})
    return {
        "schema": SCHEMA,
        "recording": None if recording.path is None else str(recording.path),
        "workload": evidence.workload,
        "created": recording.meta["created"],
        "mode": evidence.settings["mode"],
        "rate_hz": evidence.settings["rate_hz"] if evidence.is_paced else None,
        "messages": evidence.result["messages"],
        "interrupted": recording.meta["interrupted"],
        "habits": rows,
        "counts": {status: sum(row["status"] == status for row in rows) for status in (YES, NO, NOT_APPLICABLE)},
    }
