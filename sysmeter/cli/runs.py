"""What commands share that save one Recording."""

from __future__ import annotations

import itertools
import os
from pathlib import Path


def free_name(base: str) -> Path:
    """``base``, or with a number behind it where another run of the same second has it."""
    for number in itertools.count(2):
        path = Path(base if number == 2 else f"{base}-{number - 1}")
        if not os.path.lexists(path) and not any(Path().glob(f".sysmeter-unfinished-*-{path.name}")):
            return path
    raise AssertionError
