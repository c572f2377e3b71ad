"""Page faults and system calls of a measured thread, as layers of its timeline.

Their tracepoints have no end. The gap that contains one bounds it: it lasts at most until the thread's next clock
read, its next trap or call, and ``MAX_TRAP_NS``. A longer wait inside either is a switch away from the CPU, which has
an event of its own; what is left of a gap beyond the bound is somebody else's doing. What exceeds
``WITNESSED_TRAP_NS`` is only inferred to be the trap's: the CPU may have been taken away meanwhile. Outside gaps they
are shorter than the gap threshold and belong to the thread's own service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.layers import Layer, disjoint_layer
from sysmeter.analysis.reads import ThreadReads, column

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

# Clearing a huge page of 2 MiB takes some 100 to 300 µs; no trap that stays on the CPU is known to take longer.
MAX_TRAP_NS = 500_000
# Most take a few µs, also where the hypervisor must find the memory first.
WITNESSED_TRAP_NS = 10_000
# Faulting pages closer than this are one area, so that a fault has a name that others share.
_AREA_BYTES = 1 << 20
_PAGE_BYTES = 4096


def trap_layer(
    events: npt.NDArray[Any],
    tid: int,
    reads: ThreadReads,
    syscall_names: Mapping[str, str],
    max_trap_ns: int = MAX_TRAP_NS,
) -> Layer:
    """Faults and system calls of thread ``tid`` inside its gaps; ``events`` by time.

    ``max_trap_ns``: :data:`WITNESSED_TRAP_NS` for a thread whose gaps hold other work of its own as well.
    """
    kinds = (records.EVENT_PAGE_FAULT, records.EVENT_SYSCALL)
    found = events[(events["tid"] == tid) & np.isin(events["kind"], kinds)]
    start = column(found, "t_ns")
    gap = reads.gap_of(start)
    end = np.minimum(np.append(start[1:], np.iinfo(np.int64).max), start + max_trap_ns)
    inside = gap >= 0
    end[inside] = np.minimum(end[inside], reads.gap_end_ns[gap[inside]])
    end[~inside] = start[~inside]
    is_fault = found["kind"] == records.EVENT_PAGE_FAULT
    area, areas = fault_areas(found[is_fault])
    call, first = np.unique(found["value"][~is_fault], return_inverse=True)
    traps = [(causes.PAGE_FAULT, detail) for detail in areas]
    traps += [(causes.SYSTEM_CALL, syscall_names.get(str(number), f"number {number}")) for number in call.tolist()]
    cause = np.empty(len(found), np.int64)
    cause[is_fault] = area
    cause[~is_fault] = first + len(areas)
    # Each in two parts, the second of which may be empty.
    middle = np.minimum(end, start + WITNESSED_TRAP_NS)
    names = [Cause(*trap, evidence) for evidence in (causes.WITNESSED, causes.INFERRED) for trap in traps]
    return disjoint_layer(
        np.column_stack((start, middle)).reshape(-1),
        np.column_stack((middle, end)).reshape(-1),
        np.column_stack((cause, cause + len(traps))).reshape(-1),
        tuple(names),
    )


def fault_areas(faults: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Group faults by where they touched: for each fault the index of its area, and each area in words."""
    pages = column(faults, "value").view(np.uint64) // _PAGE_BYTES
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    begins = np.append(True, np.diff(ordered) > _AREA_BYTES // _PAGE_BYTES)[: len(ordered)]
    area = np.empty(len(faults), np.int64)
    area[order] = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(ordered))[: len(first)] - 1
    words = []
    for low, high in zip(ordered[first].tolist(), ordered[last].tolist(), strict=True):
        text = f"at {low * _PAGE_BYTES:#x}"
        words.append(text if high == low else f"{text} to {(high + 1) * _PAGE_BYTES - 1:#x}")
    return area, tuple(words)
