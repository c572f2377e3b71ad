"""A workload's arrays in memory that the observer can map, too."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass
class SharedMemory:
    """A run's arrays in one memfd: no name in any file system, so nothing to clean up after a SIGKILL.

    Call :meth:`add` for each array, then :meth:`create`; after that :meth:`array` and :meth:`address` hold.
    """

    _offsets: dict[str, tuple[int, np.dtype[Any], int]] = field(default_factory=dict)
    n_bytes: int = 0
    fd: int = -1
    _map: mmap.mmap | None = None

    def add(self, name: str, dtype: Any, length: int) -> None:
        """Reserve ``length`` elements under ``name``, on a page of their own."""
        kind = np.dtype(dtype)
        self._offsets[name] = (self.n_bytes, kind, length)
        n_bytes = max(kind.itemsize * length, 1)
        self.n_bytes += -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def create(self) -> None:
        """Make and map the memory. Raises OSError (ENOMEM, ENOSPC) where it does not fit."""
        self.fd = os.memfd_create("sysmeter-workload", os.MFD_CLOEXEC)
        # posix_fallocate, so that a lack of memory is an error here and not a SIGBUS in the loop.
        os.posix_fallocate(self.fd, 0, self.n_bytes)
        self._map = mmap.mmap(self.fd, self.n_bytes)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The elements reserved under ``name``, in place."""
        offset, dtype, length = self._offsets[name]
        assert self._map is not None
        return np.frombuffer(self._map, dtype=dtype, count=length, offset=offset)

    def address(self, name: str) -> int:
        """Where they begin in this process; 0 where there are none."""
        if self._offsets[name][2] == 0:
            return 0
        return int(self.array(name).ctypes.data)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Offsets, dtypes and lengths, for the observer."""
        return {
            name: {"offset": offset, "dtype": np.lib.format.dtype_to_descr(dtype), "length": length}
            for name, (offset, dtype, length) in self._offsets.items()
        }
