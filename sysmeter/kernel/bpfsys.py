"""The bpf(2) system call, where bcc's Python part falls short: maps by bytes, test runs, ids.

Source: bpf(2); ``union bpf_attr`` in the kernel's ``include/uapi/linux/bpf.h``. The attribute layouts are
ABI.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

from sysmeter.errors import KernelError

_BPF_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361}
_MEMBARRIER_NUMBER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365}

_MAP_LOOKUP_ELEM, _MAP_UPDATE_ELEM, _MAP_DELETE_ELEM = 1, 2, 3
_PROG_TEST_RUN, _PROG_GET_NEXT_ID, _OBJ_GET_INFO_BY_FD, _ENABLE_STATS = 10, 11, 15, 32
_STATS_RUN_TIME = 0
_MEMBARRIER_CMD_GLOBAL = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    """One bpf(2) call. Returns its result and the attributes as the kernel left them. Raises OSError."""
    number = _BPF_NUMBER.get(platform.machine())
    if number is None:
        raise KernelError(f"the bpf system call's number on {platform.machine()} is not known to sysmeter")
    buffer = ctypes.create_string_buffer(attributes, 144)
    result = _libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(len(buffer)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result), buffer.raw


def _element(map_fd: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None) -> tuple[bytes, object]:
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_address = ctypes.addressof(value) if value is not None else 0
    attributes = struct.pack("=IIQQQ", map_fd, 0, ctypes.addressof(key_buffer), value_address, 0)
    return attributes, key_buffer  # the buffer must live as long as its address is used


def map_lookup(map_fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """The value at ``key``, or None. Raises OSError.

    ``value_bytes`` must be what the kernel writes: for a per-CPU map, the value's size rounded up to 8 bytes,
    times the possible CPUs.
    """
    value = ctypes.create_string_buffer(value_bytes)
    attributes, _keep = _element(map_fd, key, value)
    try:
        _bpf(_MAP_LOOKUP_ELEM, attributes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return value.raw


def map_update(map_fd: int, key: bytes, value: bytes) -> None:
    """Store ``value`` at ``key``, whether or not there was one. Raises OSError."""
    buffer = ctypes.create_string_buffer(value, len(value))
    attributes, _keep = _element(map_fd, key, buffer)
    _bpf(_MAP_UPDATE_ELEM, attributes)


def map_delete(map_fd: int, key: bytes) -> bool:
    """Remove ``key``; False if it was not there. Raises OSError."""
    attributes, _keep = _element(map_fd, key, None)
    try:
        _bpf(_MAP_DELETE_ELEM, attributes)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


def test_run(prog_fd: int) -> None:
    """Run a raw-tracepoint program once, here and now, in the calling thread (Linux 5.10). Raises OSError."""
    _bpf(_PROG_TEST_RUN, struct.pack("=I", prog_fd))


test_run.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever its name looks like to pytest


def program_info(prog_fd: int, n_bytes: int) -> bytes:
    """The first ``n_bytes`` of ``struct bpf_prog_info``, or as many as it has. Raises OSError."""
    info = ctypes.create_string_buffer(n_bytes)
    attributes = struct.pack("=IIQ", prog_fd, n_bytes, ctypes.addressof(info))
    _result, left = _bpf(_OBJ_GET_INFO_BY_FD, attributes)
    _fd, filled, _address = struct.unpack_from("=IIQ", left)
    return info.raw[:filled]


def enable_run_time_statistics() -> int:
    """Let the kernel time every run of every BPF program for as long as the returned descriptor is open (Linux 5.8).

    It costs each run two reads of a clock. The kernel ends it with the last such descriptor, a killed process's too.

    Raises:
        OSError: EINVAL on an older kernel.
    """
    return _bpf(_ENABLE_STATS, struct.pack("=I", _STATS_RUN_TIME))[0]


def loaded_program_ids() -> list[int]:
    """Ids of all BPF programs loaded on this host, by anyone. Raises OSError."""
    ids: list[int] = []
    last = 0
    while True:
        try:
            _result, left = _bpf(_PROG_GET_NEXT_ID, struct.pack("=II", last, 0))
            _start, last = struct.unpack_from("=II", left)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return ids
            raise
        ids.append(last)


def wait_for_running_programs() -> bool:
    """Return after every BPF program that was running at the call has ended; False if the kernel cannot tell.

    BPF programs run inside RCU read sections, and membarrier(2)'s global command waits for a grace period of
    those. It is refused on hosts with nohz_full CPUs.
    """
    number = _MEMBARRIER_NUMBER.get(platform.machine())
    if number is None:
        return False
    return bool(_libc.syscall(ctypes.c_long(number), ctypes.c_int(_MEMBARRIER_CMD_GLOBAL), 0, 0) == 0)


def n_possible_cpus() -> int:
    """The largest CPU number this kernel could ever use, plus one. Source: sysfs, ``cpu/possible``."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii")
    return max(int(part.rpartition("-")[2]) for part in text.strip().split(",")) + 1
