"""A Python thread of the process that collects garbage when `sysmeter selftest` asks for it.

The words that ask are those of :mod:`sysmeter.injection`. The thread sleeps in read(2) of a pipe in between: looking
once in a while would want the interpreter lock each time, and hold up the worker.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from typing import Any

import numpy as np

from sysmeter import injection
from sysmeter.gcwatch import collections_by_generation
from sysmeter.sharedmemory import SharedMemory

NAME = "collector"
_PR_SET_NAME = 15
_COLLECT, _END = b"!", b"."


class Collector:
    """Started by :meth:`start`, ended by :meth:`join`. ``tid`` is known after the start."""

    def __init__(self) -> None:
        self._memory = SharedMemory()
        self._memory.add("commands", np.dtype("<i8"), injection.N_HEADER_WORDS)
        self._memory.create()
        self._memory.array("commands")[:] = 0
        # A memoryview stores an int without making an object of NumPy's.
        self._words = self._memory.array("commands").data
        self._read_fd, self._write_fd = os.pipe()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=NAME, daemon=True)
        self.tid = 0

    def start(self) -> None:
        """Let the thread wait for a command."""
        self._thread.start()
        self._ready.wait()

    def describe(self) -> dict[str, Any]:
        """The ready event's ``commands``: where the words lie, and the pipe that a byte wakes the thread by."""
        return {"fd": self._memory.fd, **self._memory.describe()["commands"], "wake_fd": self._write_fd}

    def begin(self, t_start_ns: int) -> None:
        """Tell who asks that the loop starts about now."""
        self._words[injection.T_START] = t_start_ns

    def join(self) -> None:
        """End the thread."""
        os.write(self._write_fd, _END)
        self._thread.join()

    def _serve(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"sysmeter-coll")
        self.tid = self._words[injection.TID] = threading.get_native_id()
        words, now, cpu_time, collect = self._words, time.monotonic_ns, time.thread_time_ns, gc.collect
        self._ready.set()
        while os.read(self._read_fd, 1) == _COLLECT:
            number = words[injection.ASKED]
            if words[injection.KIND] == injection.DO_COLLECT:
                generation = words[injection.ARGUMENT]
                n_before = collections_by_generation()[generation]
                begin_ns, begin_cpu_ns = now(), cpu_time()
                collect(generation)
                end_cpu_ns, end_ns = cpu_time(), now()
                words[injection.T_BEGIN] = begin_ns
                words[injection.T_END] = end_ns
                words[injection.CPU_TIME] = end_cpu_ns - begin_cpu_ns
                # Where another thread is amid a collection the call returns at once.
                words[injection.COUNT] = collections_by_generation()[generation] - n_before
            words[injection.DONE] = number
