"""Where in an ELF file a function begins, and where an object lies: offsets for uprobes, addresses of locks.

Reads what :manpage:`elf(5)` describes, for 64-bit little-endian files; bcc's own look-up of symbols also
follows debug links and searches by name through the host's library directories, where it may find another file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

_IDENT = b"\x7fELF\x02\x01"  # 64-bit, little-endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = np.dtype(
    [
        ("type", "<u4"),
        ("flags", "<u4"),
        ("offset", "<u8"),
        ("address", "<u8"),
        ("physical", "<u8"),
        ("file_size", "<u8"),
        ("memory_size", "<u8"),
        ("alignment", "<u8"),
    ]
)
_SECTION = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("alignment", "<u8"),
        ("entry_size", "<u8"),
    ]
)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_PT_LOAD, _SHT_DYNSYM, _STT_OBJECT, _STT_FUNC = 1, 11, 1, 2


def exported_functions(path: Path, names: Iterable[str]) -> dict[str, int]:
    """File offsets of those of ``names`` that the file at ``path`` defines for others to call.

    Empty for a file that is not an ELF file of this kind, or exports none of them. Raises OSError.
    """
    found = _read(path, lambda content: _symbols(content, names, _STT_FUNC))
    if found is None:
        return {}
    loaded, symbols = found
    offsets = {}
    for name, (address, _size) in symbols.items():
        within = loaded[(loaded["address"] <= address) & (address < loaded["address"] + loaded["file_size"])]
        if within.size:
            offsets[name] = address - int(within[0]["address"]) + int(within[0]["offset"])
    return offsets


def exported_object(path: Path, name: str) -> tuple[int, int, int] | None:
    """The object ``name`` that the file at ``path`` defines for others: (address, size, address of the file's begin).

    Addresses are the file's own, before it is mapped: where the file's begin is mapped elsewhere, both are shifted by
    the same distance. None for a file that is not an ELF file of this kind, or exports no such object. Raises OSError.
    """
    found = _read(path, lambda content: _symbols(content, [name], _STT_OBJECT))
    if found is None:
        return None
    loaded, symbols = found
    first = loaded[loaded["offset"] == 0]
    if name not in symbols or not first.size:
        return None
    return *symbols[name], int(first[0]["address"])


_Found = tuple["np.ndarray[Any, Any]", dict[str, tuple[int, int]]]


def _read(path: Path, find: Callable[[mmap.mmap], _Found]) -> _Found | None:
    with open(path, "rb") as file:
        if file.read(len(_IDENT)) != _IDENT:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return find(content)
            except (ValueError, IndexError, OverflowError, struct.error):
                return None  # damaged, or not laid out as the linker lays it out: nothing in it can be used


def _symbols(content: mmap.mmap, names: Iterable[str], kind: int) -> _Found:
    """The loaded segments, and those of ``names`` that are of this kind: name → (address, size)."""
    header = _HEADER.unpack_from(content)
    segments_at, sections_at, n_segments, n_sections = header[5], header[6], header[10], header[12]
    segments = np.frombuffer(content, _SEGMENT, n_segments, segments_at).copy()
    sections = np.frombuffer(content, _SECTION, n_sections, sections_at).copy()
    loaded = segments[segments["type"] == _PT_LOAD]
    places: dict[str, tuple[int, int]] = {}
    for table in sections[sections["type"] == _SHT_DYNSYM]:
        texts = sections[int(table["link"])]
        text_at = int(texts["offset"])
        text = content[text_at : text_at + int(texts["size"])]
        n_symbols = int(table["size"]) // _SYMBOL.itemsize
        symbols = np.frombuffer(content, _SYMBOL, n_symbols, int(table["offset"])).copy()
        symbols = symbols[(symbols["section"] != 0) & (symbols["info"] & 0xF == kind)]
        for name in names:
            # Linkers let a name be the end of a longer one, so each place where it ends a text may be meant.
            found = symbols[np.isin(symbols["name"], _places(text, name.encode() + b"\0"))]
            for symbol in found:
                places[name] = (int(symbol["value"]), int(symbol["size"]))
    return loaded, places


def _places(text: bytes, part: bytes) -> list[int]:
    places = []
    at = text.find(part)
    while at >= 0:
        places.append(at)
        at = text.find(part, at + 1)
    return places
