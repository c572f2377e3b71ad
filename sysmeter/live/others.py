"""Other Python threads of the process: they sleep, then want the interpreter lock for a short burst of allocations."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING

from sysmeter.live.orders import OrderCache, build_message, parse_fields, split_message

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_NAME = 15
_PAUSE_SECONDS = 0.008
_BURST_MESSAGES = 40  # a millisecond or so of work
_ORDERS = 500
ORDERS_A_SECOND = _BURST_MESSAGES / _PAUSE_SECONDS  # at most, of one thread


class OtherThreads:
    """So many threads, made by :meth:`start` and ended with :meth:`join`; ``names`` are complete between the two."""

    def __init__(self, count: int, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop
        self._go = threading.Event()
        self._ready = threading.Barrier(count + 1)
        self.names: dict[int, str] = {}  # by tid
        self._threads = [
            threading.Thread(target=self._keep_busy, args=(number,), name=f"other-{number}", daemon=True)
            for number in range(1, count + 1)
        ]

    def start(self) -> None:
        """Make the threads; they wait for :meth:`go`."""
        for thread in self._threads:
            thread.start()
        self._ready.wait()

    def go(self) -> None:
        """Let them begin."""
        self._go.set()

    def join(self) -> None:
        """Wait for their end; ``should_stop`` must be true by now."""
        self._go.set()
        for thread in self._threads:
            thread.join()

    def _keep_busy(self, number: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"sysmeter-oth{number}".encode()[:15])
        self.names[threading.get_native_id()] = f"other-{number}"
        cache = OrderCache(_ORDERS)
        n = 0
        self._ready.wait()
        self._go.wait()
        while not self._should_stop():
            # Not the same for all, so that they do not fall into step.
            time.sleep(_PAUSE_SECONDS * (1 + number % 5 / 10))
            for _ in range(_BURST_MESSAGES):
                cache.store(parse_fields(split_message(build_message(n))))
                n += 1
