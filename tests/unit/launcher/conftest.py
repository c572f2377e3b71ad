"""One first start for all launcher tests: it takes seconds."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.checkouts import FirstStart, Place

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    # Not pytest's own folder: that one is closed to other users.
    base = Path(tempfile.mkdtemp(prefix="sysmeter-launcher-"))
    base.chmod(0o755)
    try:
        yield Place(base)
    finally:
        shutil.rmtree(base)


@pytest.fixture(scope="session")
def first(place: Place) -> FirstStart:
    """A checkout (with a space in its path) after its first start, from a careful user's umask."""
    root = place.checkout("check out")
    command = f"umask 077; exec {shlex.quote(str(root / 'scripts/sysmeter'))} report 'a b' --json"
    return FirstStart(root, place.start(["bash", "-c", command]))
