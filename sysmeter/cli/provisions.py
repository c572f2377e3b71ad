"""What `sysmeter run` finds or makes for itself: the right packages, the cache directory, the default message file."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from sysmeter.errors import SysmeterError
from sysmeter.workload import die_with_parent, own_python

if TYPE_CHECKING:
    from sysmeter.session import RunListener


def cache_directory() -> Path:
    """Where compiled code and the default message file are kept, for this user."""
    from platformdirs import user_cache_path

    return user_cache_path("sysmeter")


def require_own_capstone() -> None:
    """Refuse to go on with another package of that name: PyPI's ``capstone`` is a disassembler.

    Raises:
        SysmeterError: the package that Python finds is not this project's.
    """
    import capstone

    if not getattr(capstone, "IS_SYSMETER_CAPSTONE", False):
        raise SysmeterError(
            f"the package capstone that Python finds, {capstone.__file__}, is not sysmeter's but an unrelated one",
            "start sysmeter by scripts/sysmeter, which keeps it in an environment of its own, or uninstall the other",
        )


def default_feed(listener: RunListener) -> Path:
    """The default message file, made first where it is not there or no longer sound.

    Raises:
        SysmeterError: it cannot be made.
    """
    from capstone import feedfile, generator

    name = f"default-v{feedfile.VERSION}-{generator.DEFAULT_MESSAGES}-{generator.DEFAULT_SEED}.feed"
    path = cache_directory() / name
    if path.exists():
        try:
            feedfile.read(path)
        except SysmeterError:
            listener.say(f"the cached message file {path} is damaged and is made anew")
        else:
            return path
    listener.say(f"making the default message file, once ({generator.DEFAULT_MESSAGES:,} messages)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SysmeterError(
            f"the cache directory {path.parent} cannot be made: {error.strerror}",
            "set XDG_CACHE_HOME to a directory that can be written, or name a message file with --feed",
        ) from error
    # In a process of its own: the generator brings numba, whose LLVM must not meet bcc's.
    made = subprocess.run(
        [*own_python("sysmeter"), "feed", "make", "--force", str(path)],
        preexec_fn=die_with_parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise SysmeterError("the default message file cannot be made: " + _without_prefix(made.stderr))
    return path


def _without_prefix(text: str) -> str:
    lines = [line.removeprefix("sysmeter: ").removeprefix("error: ") for line in text.strip().splitlines()]
    return "; ".join(lines) or "no reason given"
