"""Reading a BPF ring buffer of fixed-size records as an array, without one Python call a record.

Layout (kernel ``kernel/bpf/ringbuf.c``, part of the ABI): a page that holds the consumer's position, a page
that holds the producer's, then the data, mapped twice in a row so that a record never wraps. A record is an
8-byte header (length, with two flag bits, and a page offset) and its data, rounded up to 8 bytes. Positions
only grow.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from sysmeter.errors import KernelError
from sysmeter.records import KERNEL_EVENT

_BUSY = 1 << 31  # reserved, not yet submitted
_SLOT = np.dtype([("length", "<u4"), ("page_offset", "<u4"), ("event", KERNEL_EVENT)])


class RingReader:
    """The consumer's side of one ring whose records are all ``KERNEL_EVENT``.

    Only one reader may exist for a ring. ``drain`` must not run in two threads at once.
    """

    def __init__(self, map_fd: int, data_bytes: int) -> None:
        """Map the ring. Raises OSError."""
        page = mmap.PAGESIZE
        self._data_bytes = data_bytes
        self._consumer = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        try:
            self._producer = mmap.mmap(map_fd, page + 2 * data_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        except BaseException:
            self._consumer.close()
            raise

    def drain(self) -> npt.NDArray[np.void]:
        """Take all finished records out, oldest first: a copy, shape (n,), dtype ``KERNEL_EVENT``.

        Raises:
            KernelError: a record of another length: the ring is not ours, or its layout has changed.
        """
        consumer = np.frombuffer(self._consumer, dtype="<u8", count=1)
        position = int(consumer[0])
        produced = int(np.frombuffer(self._producer, dtype="<u8", count=1)[0])
        n_slots = (produced - position) // _SLOT.itemsize
        if n_slots == 0:
            return np.zeros(0, dtype=KERNEL_EVENT)
        offset = mmap.PAGESIZE + position % self._data_bytes
        slots = np.frombuffer(self._producer, dtype=_SLOT, count=n_slots, offset=offset)
        lengths = slots["length"]
        unfinished = np.flatnonzero(lengths & _BUSY)
        if unfinished.size:
            slots, lengths = slots[: unfinished[0]], lengths[: unfinished[0]]
        if np.any(lengths != KERNEL_EVENT.itemsize):
            raise KernelError(
                "the kernel's ring buffer holds a record of a foreign size",
                "this is a fault of sysmeter on this kernel; please report it with the output of uname -r",
            )
        events = slots["event"].copy()
        # The slots are given back only after the copy: from here on the kernel may write over them.
        consumer[0] = position + len(slots) * _SLOT.itemsize
        return events

    def close(self) -> None:
        """Unmap. May be called again."""
        for memory in (self._producer, self._consumer):
            # An error on its way up may hold an array of this memory; then it is unmapped with that.
            with contextlib.suppress(BufferError):
                memory.close()
