"""Where the interpreter lock of a process that runs CPython lies: the object ``_PyRuntime``.

The lock's mutex and condition variables are in it (``_PyRuntime.ceval.gil`` in 3.11; from 3.12 on in the main
interpreter's state, ``_PyRuntime._main_interpreter``; source: Include/internal/pycore_runtime.h), so a futex at an
address inside it is the lock's. Read from the very file that the process has mapped, its executable or libpython.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from sysmeter.kernel.elf import exported_object

_OBJECT = "_PyRuntime"


class LockPlace(TypedDict):
    """Address and size of the object that holds the lock, or the reason why they are not known."""

    address: int | None
    n_bytes: int | None
    reason: str | None


def interpreter_lock(tgid: int) -> LockPlace:
    """Find the interpreter lock of process ``tgid``."""
    try:
        for start, link in _file_begins(tgid):
            found = exported_object(link, _OBJECT)
            if found is not None:
                address, size, begins_at = found
                return LockPlace(address=address - begins_at + start, n_bytes=size, reason=None)
    except OSError as error:
        return _unknown(f"the files that process {tgid} has mapped cannot be read: {error.strerror}")
    return _unknown(f"no file that process {tgid} has mapped exports {_OBJECT}")


def _unknown(reason: str) -> LockPlace:
    return LockPlace(address=None, n_bytes=None, reason=reason)


def _file_begins(tgid: int) -> list[tuple[int, Path]]:
    """Where the begin of each file is mapped that the process maps some code of, and a path that opens that file.

    Source: proc_pid_maps(5), proc_pid_map_files(5), as in sysmeter.kernel.uprobe.
    """
    begins: dict[tuple[str, str], tuple[int, Path]] = {}
    with_code = set()
    for line in Path(f"/proc/{tgid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        area, permissions, offset, device, inode, *_name = line.split(maxsplit=5)
        if inode == "0":
            continue
        start, _, end = area.partition("-")
        if int(offset, 16) == 0:
            link = Path(f"/proc/{tgid}/map_files/{int(start, 16):x}-{int(end, 16):x}")
            begins.setdefault((device, inode), (int(start, 16), link))
        if "x" in permissions:
            with_code.add((device, inode))
    return [begins[key] for key in begins if key in with_code]
