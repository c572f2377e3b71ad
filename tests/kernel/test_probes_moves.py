"""Migrations, and the system call that a thread sleeps in, against what the thread and the kernel know of them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sysmeter import records
from sysmeter.kernel import ProbeSet, syscall_names
from tests.support.watched_threads import Measurement, complete, is_preempted, measure, measure_until

pytestmark = pytest.mark.kernel

N_MOVES = 16
N_SLEEPS = 20
PERF_EVENT_OPEN = {"x86_64": 298}.get(os.uname().machine, 241)
FUTEX = {"x86_64": 202}.get(os.uname().machine, 98)
FUTEX_WAIT = 0


class MigrationCounters:
    """Two witnesses of the calling thread's migrations: a perf software counter, and /proc/…/sched."""

    def __init__(self) -> None:
        attributes = np.zeros(16, dtype="<u8")
        attributes[0] = 1 | 128 << 32  # PERF_TYPE_SOFTWARE, size
        attributes[1] = 4  # PERF_COUNT_SW_CPU_MIGRATIONS
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.syscall(PERF_EVENT_OPEN, ctypes.c_void_p(attributes.ctypes.data), 0, -1, -1, ctypes.c_ulong(8))
        assert self._fd >= 0, os.strerror(ctypes.get_errno())
        self._path = Path(f"/proc/self/task/{threading.get_native_id()}/sched")

    def read(self) -> tuple[int, int]:
        (line,) = (line for line in self._path.read_text().splitlines() if line.startswith("se.nr_migrations"))
        return int.from_bytes(os.read(self._fd, 8), sys.byteorder), int(line.split()[-1])

    def close(self) -> None:
        os.close(self._fd)


def test_forced_moves_are_counted_as_the_kernel_counts_them() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    first, last = cpus[0], cpus[-1]
    assert first != last, "this test needs two CPUs"
    grown: list[tuple[int, int]] = []

    def move() -> None:
        os.sched_setaffinity(0, {first})
        counters = MigrationCounters()
        before = counters.read()
        for _ in range(N_MOVES // 2):
            os.sched_setaffinity(0, {last})
            os.sched_setaffinity(0, {first})
        after = counters.read()
        counters.close()
        grown.append((after[0] - before[0], after[1] - before[1]))

    measurement = measure(move, cpu=first)
    moves = measurement.events(records.EVENT_MIGRATION)
    assert grown[0] == (N_MOVES, N_MOVES)
    assert len(moves) == N_MOVES
    assert complete(measurement, "migrations")
    assert moves["value"].tolist() == [last, first] * (N_MOVES // 2)
    assert moves["value2"].tolist() == [first, last] * (N_MOVES // 2)
    assert {name.split(b"/")[0] for name in moves["other_comm"].tolist()} == {b"migration"}


def test_moves_of_a_thread_that_is_not_watched_do_not_come_through() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    with ProbeSet.open(("migrations",)) as probes:
        probes.self_test()
        bystander = threading.Thread(target=lambda: [os.sched_setaffinity(0, {cpu}) for cpu in cpus * 10])
        probes.watch({threading.get_native_id(): "this one"})
        bystander.start()
        bystander.join()
        events = probes.close().events
    assert bystander.native_id not in events["tid"].tolist()


def slept_in(measurement: Measurement, name: str) -> np.ndarray:
    """The subject's voluntary switches in the system call ``name``."""
    switches = measurement.events(records.EVENT_SWITCH)
    switches = switches[~is_preempted(switches)]
    names = syscall_names({int(detail) - 1 for detail in switches["detail"] if detail})
    return switches[[names.get(int(detail) - 1) == name for detail in switches["detail"]]]


def test_a_sleep_names_clock_nanosleep() -> None:
    def undisturbed(measurement: Measurement) -> bool:
        return measurement.witness("ru_nvcsw") == N_SLEEPS

    def sleep() -> None:
        for _ in range(N_SLEEPS):
            time.sleep(0.001)

    for measurement in measure_until(sleep, records.EVENT_SWITCH, undisturbed):
        if undisturbed(measurement):
            switches = slept_in(measurement, "clock_nanosleep")
            assert len(switches) == N_SLEEPS
            assert set(switches["value2"].tolist()) == {time.CLOCK_MONOTONIC}, "its first argument"


def test_a_wait_for_a_futex_names_its_address() -> None:
    libc = ctypes.CDLL(None)
    word = ctypes.c_uint32(1)
    patience = (ctypes.c_long * 2)(0, 1_000_000)

    def wait() -> None:
        for _ in range(N_SLEEPS):
            libc.syscall(FUTEX, ctypes.byref(word), FUTEX_WAIT, 1, patience, None, 0)

    measurement = measure(wait)
    switches = slept_in(measurement, "futex")
    there = switches[switches["value2"] == ctypes.addressof(word)]
    assert len(there) == N_SLEEPS
    assert complete(measurement, "context_switch")


def test_a_read_names_the_pipe_even_where_a_flood_of_calls_was_lost() -> None:
    read_fd, write_fd = os.pipe()
    code = (
        "import os, sys, time\n"
        f"for _ in range({N_SLEEPS}):\n    sys.stdin.buffer.raw.read(1)\n    time.sleep(0.003)\n    os.write(1, b'!')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=write_fd, bufsize=0, close_fds=True
    ) as process:
        assert process.stdin is not None

        def read() -> None:
            for _ in range(200):
                os.getppid()
            for _ in range(N_SLEEPS):
                process.stdin.write(b"?")
                assert os.read(read_fd, 1) == b"!"

        measurement = measure(read, syscall_ring_bytes=4096)
    os.close(read_fd)
    os.close(write_fd)
    switches = slept_in(measurement, "read")
    assert np.count_nonzero(switches["value2"] == read_fd) == N_SLEEPS
    lost = measurement.result.statuses["syscalls"]["lost"]
    assert lost is not None
    assert lost > 0
