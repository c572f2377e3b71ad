"""The rules of ``tests/conftest.py``, tried on a small test folder in a pytest of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be both root and another user")

KERNEL_TESTS = """\
import pytest

def test_seen():
    pass

@pytest.mark.skip(reason="no such tracepoint")
def test_skipped():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_known():
    raise ValueError
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="sysmeter-tiers-"))
    base.chmod(0o755)
    (base / "tests/kernel").mkdir(parents=True)
    (base / "tests/unit").mkdir()
    shutil.copy(CONFTEST, base / "tests/conftest.py")
    (base / "tests/kernel/test_probe.py").write_text(KERNEL_TESTS)
    (base / "tests/unit/test_unit.py").write_text("def test_unit():\n    pass\n")
    (base / "pytest.ini").write_text("[pytest]\nmarkers =\n    kernel\naddopts = -p no:cacheprovider\n")
    try:
        yield base
    finally:
        shutil.rmtree(base)


def run(folder: Path, *arguments: str, user: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "SYSMETER_TEST_STRICT")}
    return subprocess.run(
        ["/usr/bin/env", sys.executable, "-B", "-m", "pytest", "-q", *arguments],
        cwd=folder,
        env={**kept, "HOME": "/nonexistent", **variables},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_root
@pytest.mark.parametrize("variable", ["SYSMETER_TEST_STRICT", "CI"])
def test_a_skipped_kernel_test_fails_for_root(folder: Path, variable: str) -> None:
    done = run(folder, **{variable: "1"})
    assert done.returncode == 1
    assert "2 passed, 1 xfailed, 1 error" in done.stdout
    assert "must run here, but it was skipped: Skipped: no such tracepoint" in done.stdout


@needs_root
def test_a_skipped_kernel_module_fails_for_root(folder: Path) -> None:
    module = "import pytest\npytest.skip('no bcc', allow_module_level=True)\n"
    (folder / "tests/kernel/test_other.py").write_text(module)
    done = run(folder, SYSMETER_TEST_STRICT="1")
    assert done.returncode != 0
    assert "must run here, but were skipped: Skipped: no bcc" in done.stdout


@needs_root
def test_a_plain_pytest_may_skip(folder: Path) -> None:
    done = run(folder)
    assert done.returncode == 0
    assert "2 passed, 1 skipped, 1 xfailed" in done.stdout


@needs_root
def test_without_root_the_kernel_tier_is_left_out_aloud(folder: Path) -> None:
    if run(folder, "--version", user=NOBODY).returncode != 0:
        pytest.skip("this checkout lies in a folder closed to other users")
    done = run(folder, user=NOBODY, SYSMETER_TEST_STRICT="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kernel tier not run: it needs root (3 tests deselected)" in done.stdout
    assert "1 passed, 3 deselected" in done.stdout.splitlines()[-1]
