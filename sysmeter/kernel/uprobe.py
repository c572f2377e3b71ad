"""Attaching BPF programs to functions that one process calls, by perf_event_open(2).

bcc can do this too, but where the kernel refuses it falls back to writing into tracefs' ``uprobe_events``, which a
SIGKILL leaves behind. Here everything hangs on descriptors: when they close, by whatever means, the kernel
takes the breakpoints out. Source: perf_event_open(2); ``perf_uprobe_event_init`` and ``__uprobe_perf_func`` in the
kernel's ``kernel/events/core.c`` and ``kernel/trace/trace_uprobe.c``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from sysmeter.errors import KernelError
from sysmeter.kernel.elf import exported_functions

_TYPE_FILE = Path("/sys/bus/event_source/devices/uprobe/type")
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
_PERF_FLAG_FD_CLOEXEC = 8
_ATTR_BYTES = 128
# type, size, config (0: at the entry), sample_period, sample_type, read_format, flags, wakeup_events, bp_type,
# config1 = uprobe_path, config2 = probe_offset
_ATTR = struct.Struct("<IIQQQQQIIQQ")
_SET_BPF = 0x40042408

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def executable_files(tgid: int) -> list[tuple[Path, str]]:
    """The files whose code process ``tgid`` maps: (a path that opens the very file mapped, its name), each once.

    The path is the kernel's own link to the mapping, so it holds for a file that was replaced or deleted since,
    and for a process in another mount namespace. Source: proc_pid_maps(5), proc_pid_map_files(5). Raises OSError.
    """
    files: dict[tuple[str, str], tuple[Path, str]] = {}
    for line in Path(f"/proc/{tgid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        area, permissions, _offset, device, inode, *name = line.split(maxsplit=5)
        if "x" in permissions and inode != "0" and name:
            start, _, end = area.partition("-")
            # maps pads the addresses with zeros, map_files does not.
            link = Path(f"/proc/{tgid}/map_files/{int(start, 16):x}-{int(end, 16):x}")
            files.setdefault((device, inode), (link, name[0]))
    return list(files.values())


def attach_to_process(tgid: int, programs: Mapping[str, int]) -> list[int]:
    """Attach BPF programs to the entry of library functions, for process ``tgid`` alone, all its threads.

    Args:
        tgid: the process, as the caller's pid namespace numbers it.
        programs: name of a function → descriptor of the program. Every file mapped by the process that exports a
            function of this name is taken: libc, and an allocator put in front of it.

    Returns:
        Descriptors; closing one detaches it.

    Raises:
        KernelError: no such process, a function that no file exports, or the kernel refused. Nothing stays attached.
    """
    try:
        found = [(link, exported_functions(link, programs)) for link, _name in executable_files(tgid)]
        kind = int(_TYPE_FILE.read_text(encoding="ascii"))
    except OSError as error:
        if error.filename == str(_TYPE_FILE):
            raise KernelError("this kernel has no uprobes (CONFIG_UPROBE_EVENTS)") from error
        raise KernelError(
            f"the files that process {tgid} has mapped cannot be read: {error.strerror}",
            "reading them needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE",
        ) from error
    for name in programs:
        if not any(name in offsets for _link, offsets in found):
            raise KernelError(
                f"no library that process {tgid} has mapped exports {name}", "a statically linked program has none"
            )
    attached: list[int] = []
    try:
        for link, offsets in found:
            for name, offset in offsets.items():
                attached.append(_open(kind, tgid, link, offset))
                fcntl.ioctl(attached[-1], _SET_BPF, programs[name])
    except OSError as error:
        detach(attached)
        raise KernelError(f"the kernel refused a probe at {name} of process {tgid}: {error.strerror}") from error
    except BaseException:
        detach(attached)
        raise
    return attached


def detach(descriptors: Iterable[int]) -> None:
    """Close what :func:`attach_to_process` returned. On return no breakpoint of theirs is left."""
    for fd in descriptors:
        os.close(fd)


def _open(kind: int, tgid: int, path: Path, offset: int) -> int:
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise KernelError(f"the number of perf_event_open on {platform.machine()} is not known to sysmeter")
    text = ctypes.create_string_buffer(os.fsencode(path))
    attributes = ctypes.create_string_buffer(_ATTR_BYTES)
    _ATTR.pack_into(attributes, 0, kind, _ATTR_BYTES, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(text), offset)
    # A program hears of every thread of the process: the kernel compares address spaces, not tasks.
    any_cpu, no_group = -1, -1
    fd = _libc.syscall(
        ctypes.c_long(number),
        attributes,
        ctypes.c_int(tgid),
        ctypes.c_int(any_cpu),
        ctypes.c_int(no_group),
        ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)
