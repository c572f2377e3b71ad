"""Reading a Recording for a command: what is wrong with it becomes an error that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sysmeter.errors import RecordingError

if TYPE_CHECKING:
    from sysmeter.recording import Recording

Result = TypeVar("Result")


def load_and(path: Path, analyse: Callable[[Recording], Result]) -> Result:
    """Load a Recording and work on it.

    Raises:
        RecordingError: it is not one, or it is damaged so that the work cannot be done.
    """
    from sysmeter import recording

    try:
        return analyse(recording.load(path))
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise RecordingError(f"{path} is damaged: it does not hold what it must ({error!r})") from error
