"""Records each collection of this process's Python garbage collector, without giving it more to collect.

CPython runs at most one collection of an interpreter at a time: it marks itself as collecting before the
``"start"`` callbacks and clears the mark after the ``"stop"`` ones, and ``gc.collect()`` in another thread
returns at once meanwhile (Modules/gcmodule.c, later Python/gc.c). So one pending start is enough, whichever
threads collect, even though the callback itself may lose the interpreter lock.

It may lose the lock at its very first instruction, before it reads the clock: where other Python threads
compete for the lock, a start is then late and an end is late, by what those threads took (source: the
``RESUME`` instruction of CPython 3.11 and later checks for requests to release the lock).
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.clock import now_ns

if TYPE_CHECKING:
    import numpy.typing as npt

_WORDS = records.COLLECTION.itemsize // 8
_STOP_PATIENCE_NS = 5_000_000_000


class GcWatch:
    """Writes collections into storage that its maker provides, and that may be shared memory.

    ``storage`` has shape ``(capacity,)`` and dtype :data:`records.COLLECTION`. ``header`` has shape ``(2,)``
    and dtype int64: how many records are written, and how many collections are lost (they found the storage
    full, or only one of their ends was seen). Both are set to 0 here. A record is complete before it is
    counted. ``tid`` is the thread that collected, as this process's pid namespace numbers it.

    Raises:
        ValueError: arrays of another shape or type, not contiguous, or read-only.
    """

    # Slots, and everything the callback needs made beforehand: it may create integers and the like, but
    # no tuple, list, dict or other container that the collector would have to count.
    __slots__ = ("_callback", "_capacity", "_header", "_n", "_n_lost", "_t_start_ns", "_tid", "_words")

    def __init__(self, storage: npt.NDArray[Any], header: npt.NDArray[np.int64]) -> None:
        for name, array, dtype in (
            ("storage", storage, records.COLLECTION),
            ("header", header, np.dtype("<i8")),
        ):
            if array.dtype != dtype or array.ndim != 1:
                raise ValueError(f"{name} has dtype {array.dtype} and {array.ndim} dimensions, not one of {dtype}")
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"{name} is not contiguous, or is read-only")
        if len(header) != 2:
            raise ValueError(f"header has {len(header)} words, not 2")
        self._words = storage.view("<i8")  # flat: an index of two numbers would be a tuple
        self._header = header
        self._capacity = len(storage)
        self._n = 0
        self._n_lost = 0
        self._t_start_ns = -1  # -1: no collection is going on
        self._tid = -1
        self._callback = self._on_collection
        header[:] = 0

    def start(self) -> None:
        """Record from now on. Harmless when recording already."""
        if self._callback not in gc.callbacks:
            self._t_start_ns = -1
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Record no more. Waits, some seconds at most, for a collection that another thread is amid."""
        if self._callback not in gc.callbacks:
            return
        t_give_up_ns = now_ns() + _STOP_PATIENCE_NS
        while self._t_start_ns >= 0 and self._tid != threading.get_native_id() and now_ns() < t_give_up_ns:
            time.sleep(0.0001)
        gc.callbacks.remove(self._callback)
        if self._t_start_ns >= 0:
            self._t_start_ns = -1
            self._lose()

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        t_ns = now_ns()
        if phase == "start":
            self._tid = threading.get_native_id()
            self._t_start_ns = t_ns
            return
        n = self._n
        if self._t_start_ns < 0 or n >= self._capacity:
            self._t_start_ns = -1
            self._lose()
            return
        at = n * _WORDS
        self._words[at] = self._t_start_ns
        self._words[at + 1] = t_ns
        self._words[at + 2] = info["generation"]
        self._words[at + 3] = self._tid
        self._n = n + 1
        self._header[0] = n + 1
        self._t_start_ns = -1

    def _lose(self) -> None:
        self._n_lost += 1
        self._header[1] = self._n_lost


def collections_by_generation() -> list[int]:
    """CPython's own count of the collections this process has finished, by generation, youngest first."""
    return [stats["collections"] for stats in gc.get_stats()]
