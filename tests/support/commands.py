"""The CLI as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from sysmeter.workload import own_python

NOBODY = 65534


def start(*arguments: str | Path, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start ``sysmeter ARGUMENTS`` in ``cwd``, its output captured."""
    return subprocess.Popen(
        [*own_python("sysmeter"), *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def sysmeter(*arguments: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``sysmeter ARGUMENTS`` in ``cwd`` to its end."""
    process = start(*arguments, cwd=cwd, **options)
    stdout, stderr = process.communicate()
    assert "Traceback" not in stderr, stderr
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_json(*arguments: str | Path, cwd: Path, exit_code: int = 0) -> dict[str, Any]:
    """The JSON object that ``sysmeter run --json ARGUMENTS`` prints."""
    done = sysmeter("run", "--json", *arguments, cwd=cwd)
    assert done.returncode == exit_code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def as_nobody(home: Path) -> dict[str, Any]:
    """Popen options that make a process an ordinary user's, with ``home`` as its home."""
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": environment}
