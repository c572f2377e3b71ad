"""One counter out of several: of both threads, or of several runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sysmeter.analysis.counters import MEASURED, NOT_MEASURED, NOT_PROVEN, counter, not_measured

if TYPE_CHECKING:
    from collections.abc import Sequence

_FROM_GOOD_TO_BAD = (MEASURED, NOT_PROVEN, NOT_MEASURED)


def combined(counters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum, which is only as good as the worst of its parts.

    ``agrees`` is False where one part disagrees, and null where one has a single source; ``reason`` is that of
    the first of the worst parts.
    """
    if not counters:
        return not_measured("there was no run to count in")
    worst = max(counters, key=lambda part: _FROM_GOOD_TO_BAD.index(part["status"]))
    if worst["status"] == NOT_MEASURED:
        return not_measured(worst["reason"])
    verdicts = [part["agrees"] for part in counters]
    witnesses = [part["witness"] for part in counters]
    witness = None
    if all(one is not None and one["value"] is not None for one in witnesses):
        witness = (_together([one["source"] for one in witnesses]), sum(one["value"] for one in witnesses))
    agrees = False if False in verdicts else None if None in verdicts else True
    sources = _together([part["source"] for part in counters])
    return counter(sum(part["value"] for part in counters), worst["status"], sources, witness, agrees, worst["reason"])


def _together(sources: Sequence[str | None]) -> str:
    return ", ".join(dict.fromkeys(source for source in sources if source))


def counter_of(result: dict[str, Any], name: str) -> dict[str, Any] | None:
    """A counter of a run's result by name: ``feed.syscalls``, ``process.allocations``, or ``syscalls`` of both threads.

    None where the result has none of that name.
    """
    counters = result["counters"]
    group, _, member = name.rpartition(".")
    if group:
        found: dict[str, Any] | None = counters.get(group, {}).get(member)
        return found
    if member in counters["process"]:
        whole: dict[str, Any] = counters["process"][member]
        return whole
    parts = [counters[thread][member] for thread in ("feed", "strategy") if member in counters[thread]]
    return combined(parts) if parts else None
