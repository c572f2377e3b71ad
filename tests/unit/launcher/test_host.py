"""The set-up and its host: the distribution, its bcc package, and the interpreters there are."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.checkouts import (
    IS_ROOT,
    NOBODY,
    FirstStart,
    Place,
    os_release,
    site_packages,
    write_executable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.slow


DISTRIBUTIONS = [
    ('ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', "debian", "apt-get install python3-bpfcc"),
    ("NAME=Mint\nID=linuxmint\nID_LIKE='ubuntu debian'", "debian", "apt-get install python3-bpfcc"),
    ("ID=fedora\n", "fedora", "dnf install python3-bcc"),
    ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "fedora", "dnf install python3-bcc"),
    ("ID=arch\n", "arch", "pacman -S python-bcc"),
    ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', "suse", "zypper install python3-bcc"),
    ("ID=alpine\n", "alpine", "apk add py3-bcc"),
    ("ID=beos\n", "other", "python3-bcc"),
]


@pytest.mark.parametrize(("os_release", "family", "hint"), DISTRIBUTIONS)
def test_each_distribution_has_its_package(
    place: Place, tmp_path: Path, os_release: str, family: str, hint: str
) -> None:
    path = tmp_path / "os-release"
    path.write_text(os_release)
    script = 'setup_distribution; echo "$family"; echo "$bcc_hint"'
    outcome = place.shell(script, SYSMETER_OS_RELEASE=str(path))
    assert outcome.stdout.splitlines()[0] == family
    assert hint in outcome.stdout.splitlines()[1]


def test_no_os_release_at_all(place: Place) -> None:
    outcome = place.shell('setup_distribution; echo "$family"', SYSMETER_OS_RELEASE="/nonexistent")
    assert outcome.stdout == "other\n"


@pytest.fixture
def without_bcc(place: Place, first: FirstStart) -> Iterator[dict[str, str]]:
    """The checkout without its link to bcc. Yields the variables that hide bcc."""
    link = site_packages(first.root) / "bcc"
    link.unlink()
    place.apt_log.unlink(missing_ok=True)
    yield {"SYSMETER_BCC_DIRS": str(place.no_bcc)}
    link.unlink(missing_ok=True)
    link.symlink_to(place.bcc_dirs / "bcc")


def test_missing_bcc_elsewhere_names_the_package(
    place: Place, first: FirstStart, without_bcc: dict[str, str], tmp_path: Path
) -> None:
    fedora = os_release(tmp_path, 'ID=fedora\nPRETTY_NAME="Fedora Linux 43"\n')
    outcome = place.start([first.root / "scripts/sysmeter", "run"], SYSMETER_OS_RELEASE=fedora, **without_bcc)
    assert outcome.cli["bcc"] is False
    assert len(outcome.stderr.splitlines()) == 1
    assert "Fedora Linux 43" in outcome.stderr
    assert "dnf install python3-bcc" in outcome.stderr
    assert not place.apt_log.exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["report", "x"], ["run", "--no-probes"]])
def test_missing_bcc_is_no_matter_where_it_is_not_needed(
    place: Place, first: FirstStart, without_bcc: dict[str, str], tmp_path: Path, arguments: list[str]
) -> None:
    debian = os_release(tmp_path, "ID=debian\n")
    command: list[str | Path] = [first.root / "scripts/sysmeter", *arguments]
    outcome = place.start(command, SYSMETER_OS_RELEASE=debian, **without_bcc)
    assert outcome.cli["bcc"] is False
    assert outcome.stderr == ""
    assert not place.apt_log.exists()


@pytest.mark.skipif(not IS_ROOT, reason="only root installs packages")
def test_apt_get_without_a_network_is_a_warning(
    place: Place, first: FirstStart, without_bcc: dict[str, str], tmp_path: Path
) -> None:
    debian = os_release(tmp_path, "ID=debian\n")
    outcome = place.start([first.root / "scripts/sysmeter", "run"], SYSMETER_OS_RELEASE=debian, **without_bcc)
    assert outcome.cli["bcc"] is False
    assert "could not install python3-bpfcc" in outcome.stderr
    assert "apt-get install python3-bpfcc" in outcome.stderr
    update, install = place.apt_log.read_text().splitlines()
    assert "update" in update
    assert install.endswith("python3-bpfcc")


@pytest.mark.skipif(not IS_ROOT, reason="only root installs packages")
def test_apt_get_installs_a_missing_bcc(
    place: Place, first: FirstStart, without_bcc: dict[str, str], tmp_path: Path
) -> None:
    commands, packages = tmp_path / "bin", tmp_path / "packages"
    commands.mkdir()
    packages.mkdir()
    copy = f"case $* in *python3-bpfcc) cp -r {place.bcc_dirs}/bcc {packages} ;; esac"
    write_executable(commands / "apt-get", f"#!/bin/sh\n{copy}\n")
    outcome = place.start(
        [first.root / "scripts/sysmeter", "run"],
        SYSMETER_OS_RELEASE=os_release(tmp_path, "ID=ubuntu\n"),
        SYSMETER_BCC_DIRS=str(packages),
        PATH=f"{commands}:{os.environ['PATH']}",
    )
    assert outcome.cli["bcc"] is True
    assert "installing python3-bpfcc" in outcome.stderr


def test_without_root_a_missing_bcc_names_the_command(
    place: Place, first: FirstStart, without_bcc: dict[str, str]
) -> None:
    debian = os_release(place.base, "ID=debian\n")
    user = NOBODY if IS_ROOT else None
    script = "setup_provide_bcc; echo went on"
    outcome = place.shell(script, user=user, SYSMETER_OS_RELEASE=debian, **without_bcc)
    assert outcome.stdout == "went on\n"
    assert len(outcome.stderr.splitlines()) == 1
    assert "sudo apt-get install python3-bpfcc" in outcome.stderr
    assert not place.apt_log.exists()


def test_bcc_found_later_is_linked(place: Place, first: FirstStart, without_bcc: dict[str, str]) -> None:
    outcome = place.start([first.root / "scripts/sysmeter", "run"])
    assert outcome.cli["bcc"] is True
    assert outcome.stderr == ""


def fake_python(folder: Path, answer: str) -> str:
    text = f'#!/bin/sh\ncase $1 in --version) echo "Python 3.9.18" ;; *) echo "{answer}" ;; esac\n'
    return str(write_executable(folder / "python3", text))


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("cpython 3.9.18 |/usr/bin/python3.9", "cpython 3.9.18"),
        ("cpython 3.99.0 |/usr/bin/python3.99", "cpython 3.99.0"),
        ("pypy 3.11.1 |/usr/bin/pypy3", "pypy 3.11.1"),
        ("cpython 3.13.0 t|/usr/bin/python3.13t", "cpython 3.13.0, t"),
    ],
)
def test_an_unsuitable_interpreter_is_a_clear_error(place: Place, tmp_path: Path, answer: str, named: str) -> None:
    outcome = place.shell("setup_choose_python", SYSMETER_PYTHON=fake_python(tmp_path, answer))
    assert outcome.code == 1
    assert named in outcome.stderr
    assert "Python 3.11 to 3.14 (CPython) is needed" in outcome.stderr


def test_no_interpreter_at_all(place: Place) -> None:
    outcome = place.shell("setup_choose_python", SYSMETER_PYTHON="/nonexistent/python3")
    assert outcome.code == 1
    assert "/nonexistent/python3" in outcome.stderr
    outcome = place.shell("setup_min_minor=90 setup_max_minor=91\nsetup_choose_python")
    assert outcome.code == 1
    assert "Python 3.90 to 3.91 (CPython) is needed; found " in outcome.stderr
    assert "SYSMETER_PYTHON" in outcome.stderr


def test_an_old_python3_on_the_path_is_passed_over(place: Place, tmp_path: Path) -> None:
    fake_python(tmp_path, "cpython 3.9.18 |/usr/bin/python3.9")
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    minor = f"python3.{sys.version_info.minor}"
    (tmp_path / minor).symlink_to(base)
    path = f"{tmp_path}:{os.environ['PATH']}"
    outcome = place.shell('setup_choose_python; echo "$python_version"', PATH=path)
    assert outcome.code == 0
    assert outcome.stdout.startswith("3.1")


def test_private_folders_are_recognised(place: Place, tmp_path: Path) -> None:
    folder = place.base / "private"
    folder.mkdir(mode=0o700)
    (folder / "python3").touch(mode=0o755)
    script = 'for path; do if setup_is_public "$path"; then echo public; else echo private; fi; done'
    outcome = place.shell(f"set -- {shlex.quote(str(folder / 'python3'))} /bin/sh\n{script}")
    assert outcome.stdout.split() == ["private", "public"]
