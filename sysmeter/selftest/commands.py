"""The asking side of :mod:`sysmeter.injection`: commands to the target thread of a workload."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sysmeter import injection

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LOOK_SECONDS = 0.0003
# Longer than any command and whatever the host adds; a thread that has ended its loop never answers.
_PATIENCE_SECONDS = 1.0


class NotCarriedOut(Exception):
    """An injection did not come about; the text says why. It is no trial of anything."""


@dataclass(frozen=True)
class Answer:
    """When the thread did it, by its own clock; CPU and CPU time as the kind of command has them."""

    t_begin_ns: int
    t_end_ns: int
    cpu: int
    cpu_time_ns: int


class Commands:
    """One command at a time to the thread that looks at ``words``, or wakes at a byte to ``wake_fd``.

    Used by one thread.
    """

    def __init__(self, words: npt.NDArray[np.int64], wake_fd: int | None = None) -> None:
        self._words = words
        self._wake_fd = wake_fd
        self._order = threading.Lock()

    @property
    def words(self) -> npt.NDArray[np.int64]:
        """The shared words, see :mod:`sysmeter.injection`."""
        return self._words

    def ask(self, kind: int, argument: int = 0) -> int:
        """Ask for something; returns the number to wait for."""
        number = int(self._words[injection.ASKED]) + 1
        self._words[injection.KIND] = kind
        self._words[injection.ARGUMENT] = argument
        # Taking and giving back a lock is a barrier: the number must not be seen before what it stands for.
        with self._order:
            pass
        self._words[injection.ASKED] = number
        if self._wake_fd is not None:
            os.write(self._wake_fd, b"!")
        return number

    def close(self) -> None:
        """Give the pipe back."""
        if self._wake_fd is not None:
            os.close(self._wake_fd)
            self._wake_fd = None

    def wait(self, number: int) -> Answer:
        """Wait, asleep most of the time, until the command is done.

        Raises:
            NotCarriedOut: the thread did not answer.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        while int(self._words[injection.DONE]) != number:
            if time.monotonic() > until:
                raise NotCarriedOut("the thread did not answer")
            time.sleep(_LOOK_SECONDS)
        with self._order:
            pass
        words = self._words
        places = (injection.T_BEGIN, injection.T_END, injection.CPU, injection.CPU_TIME)
        return Answer(*(int(words[place]) for place in places))

    def do(self, kind: int, argument: int = 0) -> Answer:
        """Ask and wait."""
        return self.wait(self.ask(kind, argument))
