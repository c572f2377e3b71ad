"""Closed, full and broken standard streams: no measurement is lost for them, and no traceback is shown."""

from __future__ import annotations

import subprocess

import pytest

from sysmeter.workload import own_python


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = " ".join(own_python("sysmeter"))
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line.replace('SYSMETER', command)}"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("SYSMETER report nowhere >&-", 2, "standard output is closed"),
        ("SYSMETER --help >/dev/full", 1, "No space left"),
        ("SYSMETER bogus 2>&-", 2, ""),
        ("SYSMETER bogus 2>/dev/full", 2, ""),
        ("SYSMETER run --help | head -1", 0, ""),
    ],
)
def test_exit_code_and_words(line, code, said):
    done = shell(line)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
