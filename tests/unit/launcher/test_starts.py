"""The first start of ``scripts/sysmeter``, and the later ones."""

from __future__ import annotations

import resource
import shlex
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.checkouts import IS_ROOT, NOBODY, FirstStart, Place, site_packages, write_executable

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.slow


def test_the_first_start_sets_up_and_hands_over(place: Place, first: FirstStart) -> None:
    printed = first.outcome.cli
    assert printed["arguments"] == ["report", "a b", "--json"]
    assert printed["cwd"] == "/"
    assert printed["umask"] == 0o077
    assert printed["descriptors"] == [0, 1, 2], "the lock must not be handed on"
    assert "installing the locked dependencies" in first.outcome.stderr
    assert all(line.startswith("sysmeter: ") for line in first.outcome.stderr.splitlines())
    assert (first.root / ".venv/setup.log").stat().st_size > 0


def test_only_the_bcc_package_of_the_system_is_linked(place: Place, first: FirstStart) -> None:
    link = site_packages(first.root) / "bcc"
    assert link.is_symlink()
    assert link.readlink() == place.bcc_dirs / "bcc"
    assert "include-system-site-packages = false" in (first.root / ".venv/pyvenv.cfg").read_text()


def test_others_can_read_what_was_set_up(first: FirstStart) -> None:
    for path in [first.root / ".venv", *(first.root / ".venv").rglob("*")]:
        if not path.is_symlink():
            needed = stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH
            assert path.stat().st_mode & needed == needed, path


@pytest.mark.skipif(not IS_ROOT, reason="becomes another user, which only root can")
def test_another_user_can_start_it(place: Place, first: FirstStart) -> None:
    if place.start(["test", "-x", first.root / ".venv/bin/python"], user=NOBODY).code != 0:
        pytest.skip("this host has no interpreter that other users can run")
    outcome = place.start([first.root / "scripts/sysmeter", "report"], user=NOBODY)
    assert outcome.cli["arguments"] == ["report"]
    assert outcome.stderr == ""


@pytest.mark.skipif(not IS_ROOT, reason="becomes another user, which only root can")
def test_another_user_is_told_who_must_set_up(place: Place) -> None:
    root = place.checkout("not-yet")
    outcome = place.start([root / "scripts/sysmeter", "report"], user=NOBODY)
    assert outcome.code == 1
    assert f"sudo {root}/scripts/sysmeter" in outcome.stderr


def test_later_starts_say_nothing_and_know_any_directory(place: Place, first: FirstStart, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(first.root / "scripts/sysmeter")
    second_link = tmp_path / "second-link"
    second_link.symlink_to("link")
    folder = tmp_path / "folder"
    folder.symlink_to(first.root)
    (tmp_path / "demo.py").write_text("raise SystemExit('the current directory must not be searched')")
    (tmp_path / "sysmeter").mkdir()
    for command in ([link], [second_link], [folder / "scripts/sysmeter"], ["./link"], ["bash", "link"]):
        outcome = place.start([*command, "x"], cwd=tmp_path, PYTHONPATH=str(tmp_path), CDPATH="/:/tmp")
        assert outcome.cli["cwd"] == str(tmp_path)
        assert outcome.cli["file"] == str(first.root / "sysmeter/cli/main.py")
        assert outcome.stderr == ""
    outcome = place.start(["bash", "sysmeter"], cwd=first.root / "scripts")
    assert outcome.cli["arguments"] == []


@pytest.fixture
def without_python(first: FirstStart, tmp_path: Path) -> Iterator[Path]:
    """The checkout with its interpreter replaced by a script that logs each start. Yields the log."""
    python = first.root / ".venv/bin/python"
    target = python.readlink()
    log = tmp_path / "python-log"
    python.unlink()
    write_executable(python, f'#!/bin/sh\necho "$*" >>{shlex.quote(str(log))}\n')
    try:
        yield log
    finally:
        python.unlink()
        python.symlink_to(target)


def test_later_starts_fork_one_command_and_no_python(
    place: Place, first: FirstStart, without_python: Path, tmp_path: Path
) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    log = tmp_path / "command-log"
    sha256sum = shutil.which("sha256sum")
    write_executable(commands / "sha256sum", f'#!/bin/sh\necho sha256sum >>{log}\nexec {sha256sum} "$@"\n')
    bash = shutil.which("bash")
    assert bash
    # No other command can be found on this PATH.
    outcome = place.start([bash, first.root / "scripts/sysmeter", "run"], PATH=str(commands))
    assert (outcome.code, outcome.stderr) == (0, "")
    assert log.read_text().split() == ["sha256sum"]
    assert without_python.read_text().splitlines() == [f"-I {first.root}/.venv/bin/sysmeter run"]


def test_later_starts_add_less_than_50_ms(place: Place, first: FirstStart, without_python: Path) -> None:
    def cpu_s(command: list[str | Path]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert place.start(command).code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # CPU time, and the least of many: what other processes do to the host is not the launcher's.
    assert min(cpu_s([first.root / "scripts/sysmeter", "run"]) for _ in range(15)) < 0.050
