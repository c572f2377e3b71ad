"""The compile cache: a directory keyed by everything that can change the machine code.

numba's own check looks at the file of a function, not at the files of what was inlined into it, so after an
edit it may run old code. Here another source, another numba, another CPU or another combination is another
directory, and stale code cannot be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

# Directories of other keys are kept for this many most recent uses; a day's editing would fill the disk.
_KEPT_DIRECTORIES = 16
_PREFIX = "compiled-"

# False where compiled code cannot be kept; capstone.compiled asks when it is imported.
is_usable = True


def cache_key(combination: dict[str, str]) -> str:
    """Hash of all capstone sources, what they compile of the toolkit, versions, CPU and combination."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    toolkit = package.parent / "sysmeter"
    # Of the toolkit, what compiled code takes functions or constants from.
    compiled_in = [toolkit / f"{name}.py" for name in ("buckets", "injection", "records")]
    sources = [*sorted(package.rglob("*.py")), *compiled_in]
    for source in sources:
        digest.update(f"{source.name}\0".encode())
        digest.update(source.read_bytes())
    # numba's own index also knows the file's path: a moved checkout compiles anew.
    facts = [
        str(package),
        version("numba"),
        version("llvmlite"),
        sys.version,
        str(platform.libc_ver()),
        _cpu_identity(),
    ]
    facts += [f"{slot}={name}" for slot, name in sorted(combination.items())]
    digest.update("\0".join(facts).encode())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class CacheState:
    """What :func:`use_cache` found: is there nothing compiled yet, and why can nothing be kept (None: it can)."""

    is_cold: bool
    problem: str | None = None


def use_cache(base: Path, combination: dict[str, str]) -> CacheState:
    """Point numba at the cache directory below ``base``; must run before numba is imported."""
    directory = base / (_PREFIX + cache_key(combination))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)
        probe = directory / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        # numba would fall back to a directory beside the sources, keyed less strictly: use none at all.
        global is_usable
        is_usable = False
        problem = f"the compile cache {directory} cannot be written ({error.strerror}): every start compiles anew"
        return CacheState(True, problem)
    os.environ["NUMBA_CACHE_DIR"] = str(directory)
    _forget_old(base)
    return CacheState(is_cold=next(directory.rglob("*.nbc"), None) is None)


def _forget_old(base: Path) -> None:
    ages = []
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another start may be removing it as well
            ages.append((path.stat().st_mtime, path))
    for _age, path in sorted(ages, reverse=True)[_KEPT_DIRECTORIES:]:
        shutil.rmtree(path, ignore_errors=True)


def _cpu_identity() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
