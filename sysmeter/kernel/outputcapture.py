"""What C code prints, kept from the user's terminal (and out of ``--json``) and kept for the error report."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_libc = ctypes.CDLL(None)


class Captured:
    """The text caught, complete once the block of :func:`captured_output` is left."""

    text: str = ""


@contextmanager
def captured_output() -> Iterator[Captured]:
    """File descriptors 1 and 2 of the whole process go to memory inside the block.

    bcc prints its complaints to either. The redirection is for all threads, and processes started inside the
    block inherit it: keep the block short, and neither print nor start anything meanwhile. Where the
    descriptors cannot be redirected, nothing is caught and the block runs all the same.
    """
    captured = Captured()
    _flush()
    saved: dict[int, int] = {}
    try:
        memory = os.memfd_create("sysmeter-output")
    except OSError:
        yield captured
        return
    try:
        for descriptor in (1, 2):
            with suppress(OSError):  # a closed one has nothing to protect
                saved[descriptor] = os.dup(descriptor)
                os.dup2(memory, descriptor)
        yield captured
    finally:
        _flush()
        for descriptor, original in saved.items():
            os.dup2(original, descriptor)
            os.close(original)
        os.lseek(memory, 0, os.SEEK_SET)
        with os.fdopen(memory, "rb") as file:
            captured.text = file.read().decode(errors="replace")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    _libc.fflush(None)
