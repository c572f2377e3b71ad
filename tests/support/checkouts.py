"""Small checkouts on which ``scripts/sysmeter`` runs for real.

Such a checkout has the real scripts, but its project is a stub with a build backend in the tree, and its lock
file names one package made here: so nothing needs the network, and no real ``apt-get`` is ever run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parents[2]
IS_ROOT = os.geteuid() == 0
NOBODY = 65534

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "sysmeter"
version = "0.1.0"
"""

# Stops at PAUSE until GO appears, so that a test can meet a set-up in its middle.
BACKEND = """\
import os, pathlib, time, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    root = pathlib.Path(__file__).parent
    with open(root / "builds", "a") as log:
        log.write("build\\n")
    if (root / "PAUSE").exists():
        (root / "PAUSED").touch()
        while not (root / "GO").exists():
            time.sleep(0.02)
    name = "sysmeter-0.1.0-py3-none-any.whl"
    info = "sysmeter-0.1.0.dist-info/"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as wheel:
        wheel.writestr("_sysmeter.pth", str(root))
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: sysmeter\\nVersion: 0.1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\nsysmeter = sysmeter.cli.main:entry\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""

CLI = """\
import importlib.util, json, os, sys
def entry():
    import demo
    print(json.dumps({
        "arguments": sys.argv[1:], "cwd": os.getcwd(), "umask": os.umask(0o22), "file": __file__,
        "bcc": importlib.util.find_spec("bcc") is not None, "demo": demo.VERSION,
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    }))
"""


class Outcome(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def cli(self) -> dict[str, object]:
        """What the stub CLI printed; fails unless that is all of stdout."""
        assert self.code == 0, self.stderr
        printed: dict[str, object] = json.loads(self.stdout)
        return printed


def make_wheel(folder: Path, version: str) -> str:
    """A wheel ``demo`` in ``folder``; returns its line in a lock file."""
    path = folder / f"demo-{version}-py3-none-any.whl"
    info = f"demo-{version}.dist-info/"
    files = {
        "demo.py": f"VERSION = '{version}'\n",
        info + "METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n",
        info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text)}\n"
        wheel.writestr(info + "RECORD", record + info + "RECORD,,\n")
    return f"demo=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def write_executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


class Place:
    """A folder that every user can read, with wheels, a stand-in for bcc and any number of checkouts."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.wheels = base / "wheels"
        self.wheels.mkdir()
        self.locks = {version: make_wheel(self.wheels, version) for version in ("1.0", "1.1")}
        self.bcc_dirs = base / "dist-packages"
        (self.bcc_dirs / "bcc").mkdir(parents=True)
        (self.bcc_dirs / "bcc/__init__.py").touch()
        (self.bcc_dirs / "bcc/libbcc.py").touch()
        self.no_bcc = base / "empty"
        self.no_bcc.mkdir()
        # A copy that every user can read, wherever the repository lies.
        self.library = Path(shutil.copytree(REPOSITORY / "scripts/lib", base / "library/scripts/lib"))
        self.bin = base / "bin"
        self.bin.mkdir()
        self.apt_log = base / "apt-log"
        write_executable(
            self.bin / "apt-get", f'#!/bin/sh\necho "$*" >>{self.apt_log}\necho "E: no network"\nexit 100\n'
        )

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
        kept["PATH"] = f"{self.bin}:{kept['PATH']}"
        ours = {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "SYSMETER_BCC_DIRS": str(self.bcc_dirs),
        }
        return {**kept, **ours, **changes}

    def checkout(self, name: str) -> Path:
        root = self.base / name
        shutil.copytree(REPOSITORY / "scripts", root / "scripts", ignore=shutil.ignore_patterns("*.py", "__py*"))
        (root / "sysmeter/cli").mkdir(parents=True)
        (root / "sysmeter/__init__.py").touch()
        (root / "sysmeter/cli/__init__.py").touch()
        (root / "sysmeter/cli/main.py").write_text(CLI)
        (root / "backend.py").write_text(BACKEND)
        (root / "pyproject.toml").write_text(PYPROJECT)
        (root / "requirements.lock").write_text(self.locks["1.0"])
        return root

    def popen(self, command: list[str | Path], **changes: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(**changes),
            start_new_session=True,
        )

    def start(
        self, command: list[str | Path], *, cwd: Path | None = None, user: int | None = None, **changes: str
    ) -> Outcome:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=self.environment(**changes),
            cwd=cwd or "/",
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def shell(self, script: str, *, user: int | None = None, **changes: str) -> Outcome:
        """Runs lines of shell with the set-up library loaded."""
        root = self.base / "library"
        head = f"set -euo pipefail; root={root}; source {self.library}/setup.sh; setup_load; log=/dev/null\n"
        return self.start(["bash", "-c", head + script], user=user, **changes)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def site_packages(root: Path) -> Path:
    return next((root / ".venv/lib").glob("python3*/site-packages"))


def os_release(folder: Path, text: str) -> str:
    path = folder / "os-release"
    path.write_text(text)
    return str(path)


class FirstStart(NamedTuple):
    root: Path
    outcome: Outcome
