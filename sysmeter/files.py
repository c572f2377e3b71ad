"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, content: bytes, replace: bool = True) -> None:
    """Write a file under a temporary name beside its place, flush it to the disk and give it its name.

    A file that is there is replaced, or not touched without ``replace``. A link is followed: what it points to is
    replaced. Nothing half-written is left.

    Raises:
        OSError: it cannot be written; FileExistsError, also while it was being written, without ``replace``.
    """
    place = Path(os.path.realpath(path))
    if os.path.isdir(place):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.path.lexists(place) and not (replace and os.path.isfile(place)):
        # A device or a pipe is neither replaced nor written to: it could not be whole or not there.
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    fd, temporary = tempfile.mkstemp(".unfinished", ".sysmeter-", place.parent)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o644)  # others may read what root made
            file.write(content)
            file.flush()
            os.fsync(fd)
        if not replace and os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.replace(temporary, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
