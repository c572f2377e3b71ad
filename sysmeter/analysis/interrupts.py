"""Hard interrupts and softirqs that came while a measured thread had the CPU, as layers of its timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.layers import Layer, disjoint_layer
from sysmeter.analysis.reads import ThreadReads, column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt


def interrupt_layer(events: npt.NDArray[Any], tid: int, reads: ThreadReads, device_names: Mapping[str, str]) -> Layer:
    """The hard interrupts of thread ``tid``, from entry to exit; ``events`` by time.

    ``device_names`` maps the number of a device's interrupt, as text, to the name that /proc/interrupts gives.
    """

    def name(row: Any) -> Cause:
        kind = int(row["detail"])
        detail = records.INTERRUPT_NAMES.get(kind, f"kind {kind}")
        if kind == records.INTERRUPT_DEVICE:
            number = int(row["value2"])
            detail = f"{device_names.get(str(number), 'device')} (IRQ {number})"
        return Cause(causes.INTERRUPT, detail, causes.WITNESSED)

    found = events[(events["kind"] == records.EVENT_INTERRUPT) & (events["tid"] == tid)]
    # Vectors tell nothing that the kind does not; a device's number does.
    number = np.where(found["detail"] == records.INTERRUPT_DEVICE, column(found, "value2"), 0)
    return _layer(found, column(found, "detail") * (1 << 32) + number, reads, name)


def softirq_layer(events: npt.NDArray[Any], tid: int, reads: ThreadReads) -> Layer:
    """The softirqs run while thread ``tid`` had the CPU, from entry to exit; ``events`` by time."""

    def name(row: Any) -> Cause:
        number = int(row["detail"])
        known = number < len(records.SOFTIRQ_NAMES)
        return Cause(causes.SOFTIRQ, records.SOFTIRQ_NAMES[number] if known else f"number {number}", causes.WITNESSED)

    found = events[(events["kind"] == records.EVENT_SOFTIRQ) & (events["tid"] == tid)]
    return _layer(found, column(found, "detail"), reads, name)


def _layer(
    found: npt.NDArray[Any], code: npt.NDArray[np.int64], reads: ThreadReads, name: Callable[[Any], Cause]
) -> Layer:
    start = column(found, "t_ns")
    distinct, first, cause = np.unique(code, return_index=True, return_inverse=True)
    names = tuple(name(found[at]) for at in first.tolist())
    assert len(distinct) == len(names)
    # A thread that reads its clock is back from the interrupt. One that seems to last longer has the exit of another.
    length = np.clip(column(found, "value"), 0, reads.first_after(start) - start)
    return disjoint_layer(start, start + length, cause.astype(np.int64), names)
