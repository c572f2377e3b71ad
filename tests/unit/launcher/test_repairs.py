"""What ``scripts/sysmeter`` does with a set-up that is out of date, broken, unfinished or being made."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.checkouts import FirstStart, Place, site_packages, wait_for

pytestmark = pytest.mark.slow


def copy_of(first: FirstStart, name: str) -> Path:
    return Path(shutil.copytree(first.root, first.root.parent / name, symlinks=True))


def test_a_moved_checkout_is_mended_in_place(place: Place, first: FirstStart) -> None:
    copy = copy_of(first, "copied")
    root = copy.rename(place.base / "moved")
    outcome = place.start([root / "scripts/sysmeter", "x"])
    assert "moving the environment here" in outcome.stderr
    assert outcome.cli["file"] == str(root / "sysmeter/cli/main.py")
    for script in (root / ".venv/bin").iterdir():
        if script.is_file() and not script.is_symlink():
            assert str(first.root).encode() not in script.read_bytes(), script
    assert place.start([root / ".venv/bin/sysmeter"]).cli["file"] == str(root / "sysmeter/cli/main.py")
    assert place.start([root / "scripts/sysmeter"]).stderr == ""


def test_a_changed_lock_file_is_followed(place: Place, first: FirstStart) -> None:
    root = copy_of(first, "relocked")
    start: list[str | Path] = [root / "scripts/sysmeter"]
    assert place.start(start).cli["demo"] == "1.0"

    # A download that fails, or the wrong file, changes nothing and names the log.
    (root / "requirements.lock").write_text(f"demo==1.1 --hash=sha256:{'0' * 64}\n")
    outcome = place.start(start)
    assert outcome.code == 1
    assert outcome.stdout == ""
    assert f"{root}/.venv/setup.log" in outcome.stderr
    (root / "requirements.lock").write_text(place.locks["1.0"])
    assert place.start(start).stderr == ""

    (root / "requirements.lock").write_text(place.locks["1.1"])
    outcome = place.start(start)
    assert outcome.cli["demo"] == "1.1"
    assert "making a virtual environment" not in outcome.stderr


def test_a_vanished_interpreter_is_noticed(place: Place, first: FirstStart) -> None:
    root = copy_of(first, "dangling")
    python = root / ".venv/bin/python"
    python.unlink()
    python.symlink_to(place.base / "gone/python3.11")
    outcome = place.start([root / "scripts/sysmeter"])
    assert "making a virtual environment" in outcome.stderr
    assert outcome.cli["demo"] == "1.0"


def test_an_unrelated_capstone_is_a_clear_error(place: Place, first: FirstStart) -> None:
    wrong = site_packages(first.root) / "capstone"
    wrong.mkdir()
    try:
        outcome = place.start([first.root / "scripts/sysmeter", "run"])
    finally:
        wrong.rmdir()
    assert outcome.code == 1
    assert "pip uninstall capstone" in outcome.stderr


def test_interrupted_killed_and_started_twice_at_once(place: Place) -> None:
    root = place.checkout("interrupted")
    start: list[str | Path] = [root / "scripts/sysmeter", "report"]
    (root / "PAUSE").touch()

    # Ctrl-C reaches the whole foreground group; SIGKILL is the worst that can happen.
    for signal_number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = place.popen(start)
        wait_for((root / "PAUSED").exists)
        os.killpg(process.pid, signal_number)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == code, stderr
        assert stdout == ""
        assert not list((root / ".venv").glob(".stamp*"))
        (root / "PAUSED").unlink()

    (root / "builds").unlink()
    one = place.popen(start)
    wait_for((root / "PAUSED").exists)
    two = place.popen(start)
    assert two.stderr is not None
    assert "waiting" in two.stderr.readline()
    (root / "GO").touch()
    for process in (one, two):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        assert json.loads(stdout)["demo"] == "1.0"
    assert (root / "builds").read_text().split() == ["build"], "the second start must use the first one's work"
