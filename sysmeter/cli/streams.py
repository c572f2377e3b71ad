"""Standard streams that are closed, full or gone must never cost a measurement, nor its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from sysmeter.errors import SysmeterError, UsageError


def ensure_standard_streams() -> None:
    """Give a closed stderr a place to write to, and refuse a closed stdout before anything is measured.

    Raises:
        UsageError: standard output is closed, and there would be nowhere to print the result.
    """
    if sys.stderr is None:
        sys.stderr = _devnull()
    if sys.stdout is None:
        sys.stdout = _devnull()
        raise UsageError("standard output is closed", "give it a place to go, such as >/dev/null")


def say(text: str) -> None:
    """One line on stderr; where it cannot be written nothing is said, and nothing else happens."""
    try:
        print(f"sysmeter: {text}", file=sys.stderr, flush=True)  # noqa: T201 (the CLI's own voice)
    except OSError:
        mute(sys.stderr)


def write_result(text: str, saved_as: str | None = None, lost: str = "nothing was saved") -> None:
    """The result, on stdout. ``lost`` says what that means where it cannot be written and is not saved.

    Raises:
        BrokenPipeError: the reader has gone; that is its right.
        SysmeterError: it cannot be written, with the place where it is saved all the same.
    """
    try:
        print(text, flush=True)  # noqa: T201 (the CLI's own voice)
    except BrokenPipeError:
        raise
    except OSError as error:
        mute(sys.stdout)
        hint = f"the Recording is saved: sysmeter report {saved_as}" if saved_as else lost
        raise SysmeterError(f"the result cannot be written to standard output: {error.strerror}", hint) from error


def mute(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere, so that Python's own last flush does not fail."""
    with contextlib.suppress(OSError, ValueError):
        null_fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_fd, stream.fileno())
        os.close(null_fd)


def _devnull() -> TextIO:
    return open(os.devnull, "w")
