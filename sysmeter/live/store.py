"""What the worker writes in its loop: begin and end of each message, and gaps. All of it is made beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sysmeter import records
from sysmeter.sharedmemory import SharedMemory

# 30,000 gaps a minute would fill it in some four minutes. What does not fit is counted, with the longest of it.
MAX_GAPS = 1 << 17
MAX_COLLECTIONS = 1 << 17

_GAP_WORDS = records.GAP.itemsize // 8
_WORD = np.dtype("<i8")


class Store:
    """The memory of one run. Raises OSError where there is too little."""

    def __init__(self, n_messages: int) -> None:
        self.memory = SharedMemory()
        for name, dtype, length in (
            ("stop", _WORD, 1),
            ("begins", _WORD, n_messages),
            ("ends", _WORD, n_messages),
            ("gaps", records.GAP, MAX_GAPS),
            ("collections", records.COLLECTION, MAX_COLLECTIONS),
            ("collections_header", _WORD, 2),
        ):
            self.memory.add(name, dtype, length)
        self.memory.create()
        for name in ("stop", "begins", "ends"):
            self.memory.array(name)[:] = 0  # every page is touched here
        for name in ("gaps", "collections"):
            self.memory.array(name).view(_WORD)[:] = 0
        # Memoryviews: they store an int without making an object of NumPy's.
        self.stop = self.memory.array("stop").data
        self.begins = self.memory.array("begins").data
        self.ends = self.memory.array("ends").data
        self._gaps = self.memory.array("gaps").view(_WORD).data
        self._n_gaps = 0
        self.n_gaps_lost = 0
        self.longest_lost_ns = 0

    def keep_gap(self, t_start_ns: int, t_end_ns: int, where: int) -> None:
        """Record one gap, or count it as lost."""
        n = self._n_gaps
        if n >= MAX_GAPS:
            self.n_gaps_lost += 1
            self.longest_lost_ns = max(self.longest_lost_ns, t_end_ns - t_start_ns)
            return
        at = n * _GAP_WORDS
        self._gaps[at] = t_start_ns
        self._gaps[at + 1] = t_end_ns
        self._gaps[at + 2] = where
        self._n_gaps = n + 1

    def gaps(self) -> npt.NDArray[Any]:
        """The gaps kept, by time."""
        return self.memory.array("gaps")[: self._n_gaps]

    def forget(self) -> None:
        """Back to the state before a run, after a rehearsal."""
        self._n_gaps = self.n_gaps_lost = self.longest_lost_ns = 0
