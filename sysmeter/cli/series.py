"""What commands share that carry out several runs: where their Recordings go, signals between runs, notes said once."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sysmeter.cli.streams import say
from sysmeter.errors import RecordingError
from sysmeter.session import RunListener


@contextlib.contextmanager
def place_for_runs(out: Path | None) -> Iterator[Path]:
    """A directory for the Recordings: ``out``, made here, or for None one that is gone afterwards.

    Raises:
        RecordingError: it exists, or cannot be made.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="sysmeter-runs-") as name:
            yield Path(name)
        return
    try:
        out.mkdir()
    except FileExistsError as error:
        raise RecordingError(
            f"{out} exists already", "name another directory with --out, or remove this one"
        ) from error
    except OSError as error:
        raise RecordingError(
            f"cannot make the directory {out}: {error.strerror}", "name a place that can be written with --out"
        ) from error
    try:
        yield out
    finally:
        with contextlib.suppress(OSError):
            out.rmdir()  # only where no run got as far as a Recording


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Between the runs too SIGTERM and SIGHUP end the command as Ctrl-C does, so that nothing is left behind."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class OnceListener(RunListener):
    """Each note once, however many runs it is told in."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """One line on stderr."""
        say(text)

    def note(self, text: str) -> None:
        """One line on stderr, the first time."""
        if text not in self._said:
            self._said.add(text)
            self.say(f"note: {text}")
