"""What the kernel tier's tests share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def public_directory():
    """A directory that any user reaches and may write; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(prefix="sysmeter-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)
