"""Claims about the whole workload process: allocations after warm-up, and Python's collections.

Allocations are counted by numba, and in an audit by libc's calls too: see :mod:`sysmeter.analysis.allocations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.allocations import audited_allocations, describe_sources
from sysmeter.analysis.counters import MEASURED, NOT_PROVEN, counter, not_measured
from sysmeter.analysis.reads import column

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.recording import Recording

N_GENERATIONS = 3

# Each collection is listed by instant up to here; the counts have no such bound.
MAX_LISTED = 100


def process_counters(recording: Recording, window_ns: tuple[int, int] | None) -> dict[str, dict[str, Any]]:
    """``allocations`` and ``gc_collections``; ``window_ns`` is None where the window has no decision."""
    if window_ns is None:
        reason = "the run ended before its window"
        return {"allocations": not_measured(reason), "gc_collections": not_measured(reason)}
    process = recording.meta["process"]
    allocations = _allocations(process)
    audited = audited_allocations(recording)
    return {
        "allocations": {**(allocations if audited is None else audited), **describe_sources(recording.meta)},
        "gc_collections": collections_counter(process, recording["collections"], window_ns),
    }


def _allocations(process: dict[str, Any]) -> dict[str, Any]:
    """numba's own counter; the witness is the C heap, which speaks in bytes and sees other threads too.

    So it can confirm a zero, and nothing else: a heap that is back where it was says nothing of how often.
    """
    value, heap = process.get("allocations"), process.get("heap_delta_bytes")
    if value is None:
        return not_measured(process.get("allocations_reason") or "the workload has no allocation counter")
    witness = None if heap is None else ("heap, net bytes", heap)
    if value != 0 or heap is None:
        return counter(value, MEASURED, "numba", witness, None, None)
    if heap == 0:
        return counter(0, MEASURED, "numba", witness, True, None)
    reason = (
        f"numba counts none, yet the C heap in use changed by {heap:+,} bytes: an allocation outside numba, "
        "by these threads or another of the process"
    )
    return counter(0, NOT_PROVEN, "numba", witness, False, reason)


def collections_counter(
    process: dict[str, Any],
    collections: npt.NDArray[Any],
    window_ns: tuple[int, int],
    outer_ns: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Collections that the callbacks recorded in the window; the interpreter's own count spans a bit more.

    ``outer_ns`` is the interval in which both readings of the interpreter's count lie; None: the whole run.
    """
    in_window = count_by_generation(collections[overlapping(collections, *window_ns)])
    within = collections[_inside(collections, *window_ns)]
    # gc.get_stats() counts a collection at its end, so it has all that lie inside the window, perhaps some that
    # reach beyond it, and none that the callbacks did not see.
    least = in_window if outer_ns is None else count_by_generation(within)
    most = count_by_generation(collections if outer_ns is None else collections[overlapping(collections, *outer_ns)])
    before, after = process.get("gc_collections_before"), process.get("gc_collections_after")
    value = sum(in_window)
    n_lost = process.get("gc_collections_lost") or 0
    if n_lost:
        reason = f"{n_lost:,} collections found no room in the workload's record of them"
        return counter(value, NOT_PROVEN, "gc.callbacks", None, None, reason)
    if before is None or after is None:
        return counter(value, MEASURED, "gc.callbacks", None, None, None)
    grown = [int(b) - int(a) for a, b in zip(before, after, strict=True)]
    agrees = all(low <= n <= high for low, n, high in zip(least, grown, most, strict=True))
    witness = ("gc.get_stats", sum(grown))
    if agrees:
        return counter(value, MEASURED, "gc.callbacks", witness, True, None)
    where = "in the run" if outer_ns is None else "in the window and its edges"
    reason = (
        f"by generation the callbacks recorded {_slashed(most)} {where} and {_slashed(in_window)} in "
        f"the window, and gc.get_stats counts {_slashed(grown)} around the window"
    )
    return counter(value, NOT_PROVEN, "gc.callbacks", witness, False, reason)


def _inside(collections: npt.NDArray[Any], t_start_ns: int, t_end_ns: int) -> npt.NDArray[np.bool_]:
    return (column(collections, "t_start_ns") >= t_start_ns) & (column(collections, "t_end_ns") <= t_end_ns)


def overlapping(collections: npt.NDArray[Any], t_start_ns: int, t_end_ns: int) -> npt.NDArray[np.bool_]:
    """Which collections overlap ``[t_start_ns, t_end_ns]``."""
    return (column(collections, "t_start_ns") <= t_end_ns) & (column(collections, "t_end_ns") >= t_start_ns)


def count_by_generation(collections: npt.NDArray[Any]) -> list[int]:
    """How many collections of each generation."""
    generation = np.clip(column(collections, "generation"), 0, N_GENERATIONS - 1)
    return [int(n) for n in np.bincount(generation, minlength=N_GENERATIONS)]


def describe_collections(recording: Recording, window_ns: tuple[int, int] | None) -> dict[str, Any]:
    """The result's ``gc``: collections in the window by generation, and when each was.

    The measured threads hold no interpreter lock, so a collection runs beside them: never a cause.
    """
    if window_ns is None:
        return {"collections": None, "relation": "concurrent", "listed": [], "n_not_listed": 0}
    inside = recording["collections"][overlapping(recording["collections"], *window_ns)]
    listed = [
        {"t_start_ns": start, "duration_ns": end - start, "generation": generation, "tid": tid}
        for start, end, generation, tid in inside[:MAX_LISTED].tolist()
    ]
    return {
        "collections": count_by_generation(inside),
        "relation": "concurrent",
        "listed": listed,
        "n_not_listed": len(inside) - len(listed),
    }


def _slashed(numbers: list[int]) -> str:
    return "/".join(str(n) for n in numbers)
