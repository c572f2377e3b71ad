"""Offsets of exported functions, against what the dynamic linker says of the running process."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from sysmeter.kernel.elf import exported_functions, exported_object
from sysmeter.kernel.interpreterlock import interpreter_lock
from sysmeter.kernel.uprobe import executable_files

NAMES = ("malloc", "calloc", "realloc", "free")


def mapping_of(name: str) -> tuple[int, int, int, str]:
    """Address of a function of libc, and (start, file offset, path) of the mapping that holds it.

    Not by ``CDLL(None)``: there a program that is not position-independent answers with a stub of its own.
    """
    address = ctypes.cast(getattr(ctypes.CDLL("libc.so.6"), name), ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, _permissions, offset, _device, _inode, *path = line.split(maxsplit=5)
        start, end = (int(word, 16) for word in area.split("-"))
        if start <= address < end:
            return address, start, int(offset, 16), path[0]
    raise AssertionError(address)


@pytest.mark.parametrize("name", NAMES)
def test_an_offset_is_where_the_linker_put_the_function(name: str) -> None:
    address, start, offset, path = mapping_of(name)
    assert exported_functions(Path(path), NAMES)[name] == address - start + offset


def test_names_that_a_file_does_not_define_are_absent() -> None:
    *_place, libc = mapping_of("malloc")
    assert exported_functions(Path(libc), ("alloc", "mallo", "no_such_function")) == {}


def test_the_end_of_a_longer_name_is_not_the_name() -> None:
    """libc exports __libc_malloc or the like; "libc_malloc" is nothing of it."""
    *_place, libc = mapping_of("malloc")
    assert exported_functions(Path(libc), ("libc_malloc", "ealloc")) == {}


@pytest.mark.parametrize("content", [b"", b"MZ", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_file_of_another_kind_or_damaged_exports_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert exported_functions(path, NAMES) == {}


def test_mapped_code_is_listed_once_a_file() -> None:
    names = [name for _link, name in executable_files(os.getpid())]
    assert len(names) == len(set(names))
    assert any("libc" in os.path.basename(name) for name in names)


@pytest.mark.kernel  # opens what another process has mapped
def test_the_interpreter_lock_lies_where_the_linker_put_its_object() -> None:
    place = interpreter_lock(os.getpid())
    address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    assert place["address"] == address
    assert (place["n_bytes"] or 0) > 10_000


@pytest.mark.kernel
def test_a_process_that_is_no_python_has_no_such_lock() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        place = interpreter_lock(process.pid)
    finally:
        process.kill()
        process.wait()
    assert (place["address"], place["n_bytes"]) == (None, None)
    assert "_PyRuntime" in (place["reason"] or "")
    gone = interpreter_lock(process.pid)
    assert "cannot be read" in (gone["reason"] or "")


@pytest.mark.parametrize("content", [b"", b"MZ", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_file_of_another_kind_holds_no_object(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert exported_object(path, "_PyRuntime") is None
