"""Names of system calls, from the table that bcc carries for this machine."""

from __future__ import annotations

import importlib
from collections.abc import Iterable


def syscall_names(numbers: Iterable[int]) -> dict[int, str]:
    """The names of those of ``numbers`` that bcc knows; empty where bcc or its table is missing.

    Imported only when a call was made: bcc asks the program ``ausyscall``, if there is one, at its import.
    """
    wanted = set(numbers)
    if not wanted:
        return {}
    try:
        table: dict[int, bytes] = importlib.import_module("bcc.syscall").syscalls
    except (ImportError, AttributeError, OSError):
        return {}
    return {number: table[number].decode() for number in sorted(wanted) if number in table}
