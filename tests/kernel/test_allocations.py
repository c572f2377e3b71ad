"""The probe at libc's allocator: known numbers of calls, other threads, a flood, and what is left behind (nothing).

The interpreter calls the allocator too, at times of its own. So calls are told by a size that it never asks
for; calls of free have none, and are counted exactly in a measurement in which it did nothing. Where it did, the
measurement is taken again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sysmeter import records
from sysmeter.errors import KernelError
from sysmeter.kernel import ProbeResult, ProbeSet
from sysmeter.kernel.elf import exported_functions

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).resolve().parents[2]

MAX_MEASUREMENTS = 30
N_BYTES = 9_973
N_MALLOC, N_CALLOC, N_REALLOC = 37, 23, 11
N_FREE = N_MALLOC + N_CALLOC
UPROBE_EVENTS = Path("/sys/kernel/tracing/uprobe_events")

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.calloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
libc.realloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.free.argtypes = (ctypes.c_void_p,)
libc.free.restype = None


def call_all() -> None:
    for _ in range(N_MALLOC):
        libc.free(libc.malloc(N_BYTES))
    for k in range(N_CALLOC):
        block = libc.calloc(1, N_BYTES)
        if k < N_REALLOC:
            block = libc.realloc(block, N_BYTES)
        libc.free(block)


def audit(action: Callable[[], object], **rings: int) -> tuple[int, ProbeResult]:
    """(tid, result) of ``action`` in a watched thread of its own."""
    tid: list[int] = []
    with ProbeSet.open(("allocations",), **rings) as probes:
        probes.self_test()
        probes.attach_process(os.getpid())
        assert probes.unavailable == {}

        def subject() -> None:
            tid.append(threading.get_native_id())
            probes.watch({tid[0]: "subject"})
            action()
            probes.unwatch_all()

        thread = threading.Thread(target=subject)
        thread.start()
        thread.join()
        return tid[0], probes.close()


def first_bytes(tgid: int, name: str = "malloc") -> bytes:
    """What a process would execute first in a function of libc: a breakpoint, where a uprobe is."""
    for line in Path(f"/proc/{tgid}/maps").read_text().splitlines():
        area, permissions, offset, _device, _inode, *path = line.split(maxsplit=5)
        if "x" in permissions and path and "libc.so" in path[0]:
            at = int(area.split("-")[0], 16) + exported_functions(Path(path[0]), (name,))[name] - int(offset, 16)
            with open(f"/proc/{tgid}/mem", "rb", buffering=0) as memory:
                memory.seek(at)
                return memory.read(4)
    raise AssertionError("no libc")


def test_calls_in_known_numbers() -> None:
    for _ in range(MAX_MEASUREMENTS):
        tid, result = audit(call_all)
        status = result.statuses["allocations"]
        assert (status["status"], status["lost"], status["missed"]) == ("ok", 0, 0)
        events = result.events
        assert set(events["kind"].tolist()) == {records.EVENT_ALLOCATION}
        assert set(events["tid"].tolist()) == {tid}
        places = np.flatnonzero(events["value2"] == N_BYTES)
        assert np.bincount(events["value"][places], minlength=5).tolist() == [0, N_MALLOC, N_CALLOC, N_REALLOC, 0]
        # From the first call to the one that frees the last block; the interpreter may free something between.
        between = events["value"][places[0] : places[-1] + 2]
        n_free = int(np.count_nonzero(between == records.ALLOCATION_FREE))
        assert n_free >= N_FREE
        if len(between) == len(places) + N_FREE:
            return
    pytest.fail("the interpreter was at work in every measurement")


def test_realloc_of_nothing_is_a_malloc_too() -> None:
    _tid, result = audit(lambda: libc.free(libc.realloc(None, N_BYTES)))
    ours = result.events["value"][result.events["value2"] == N_BYTES]
    assert records.ALLOCATION_REALLOC in ours


def test_calls_of_other_threads_do_not_come_through() -> None:
    stop = threading.Event()

    def stir() -> None:
        while not stop.is_set():
            libc.free(libc.malloc(N_BYTES + 1))

    bystander = threading.Thread(target=stir)
    bystander.start()
    try:
        tid, result = audit(call_all)
    finally:
        stop.set()
        bystander.join()
    assert set(result.events["tid"].tolist()) == {tid}
    assert np.count_nonzero(result.events["value2"] == N_BYTES + 1) == 0
    assert np.count_nonzero(result.events["value2"] == N_BYTES) == N_MALLOC + N_CALLOC + N_REALLOC


def test_a_flood_loses_calls_but_counts_each() -> None:
    n_pairs = 2_000

    def flood() -> None:
        for _ in range(n_pairs):
            libc.free(libc.malloc(N_BYTES))

    _tid, result = audit(flood, allocation_ring_bytes=4096)
    status = result.statuses["allocations"]
    assert status["lost"] is not None
    assert status["events"] is not None
    assert status["lost"] > 0
    # What the interpreter allocates itself meanwhile comes on top; it keeps most of its memory to itself.
    assert 2 * n_pairs <= status["events"] + status["lost"] <= 2 * n_pairs + 100


def test_two_watched_threads_on_one_cpu_lose_no_count() -> None:
    """A program at a uprobe can be preempted by the other thread's in the midst of counting."""
    n_pairs = 3_000
    cpu = max(os.sched_getaffinity(0))
    with ProbeSet.open(("allocations",), allocation_ring_bytes=4096) as probes:
        probes.attach_process(os.getpid())
        barrier = threading.Barrier(3)

        def subject() -> None:
            os.sched_setaffinity(0, {cpu})
            barrier.wait()
            barrier.wait()
            for _ in range(n_pairs):
                libc.free(libc.malloc(N_BYTES))

        threads = [threading.Thread(target=subject) for _ in range(2)]
        for thread in threads:
            thread.start()
        barrier.wait()
        probes.watch({thread.native_id or 0: "subject" for thread in threads})
        barrier.wait()
        for thread in threads:
            thread.join()
        status = probes.close().statuses["allocations"]
    assert (status["events"] or 0) + (status["lost"] or 0) >= 4 * n_pairs


def test_the_self_test_leaves_no_trace_and_no_breakpoint() -> None:
    before = first_bytes(os.getpid())
    with ProbeSet.open(("allocations", "syscalls")) as probes:
        assert probes.self_test().unavailable == {}
        assert first_bytes(os.getpid()) == before
        result = probes.close()
    assert len(result.events) == 0


def test_nothing_stays_after_close() -> None:
    text, listed = first_bytes(os.getpid()), UPROBE_EVENTS.read_text()
    n_descriptors = len(os.listdir("/proc/self/fd"))
    with ProbeSet.open(("allocations",)) as probes:
        probes.attach_process(os.getpid())
        assert first_bytes(os.getpid()) != text
        assert UPROBE_EVENTS.read_text() == listed
    assert first_bytes(os.getpid()) == text
    assert UPROBE_EVENTS.read_text() == listed
    assert len(os.listdir("/proc/self/fd")) == n_descriptors


def test_nothing_stays_after_the_death_of_the_observer() -> None:
    listed = UPROBE_EVENTS.read_text()
    code = (
        "import sys, time\nfrom sysmeter.kernel import ProbeSet\np = ProbeSet.open(('allocations',))\n"
        "p.attach_process(int(sys.argv[1]))\nassert not p.unavailable\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen(["sleep", "600"]) as target:
        deadline = time.monotonic() + 20
        while Path(f"/proc/{target.pid}/comm").read_text() != "sleep\n" and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        before = first_bytes(target.pid)
        observer = subprocess.Popen(
            [sys.executable, "-c", code, str(target.pid)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert observer.stdout is not None
        assert observer.stdout.readline() == "ready\n"
        assert first_bytes(target.pid) != before
        assert first_bytes(os.getpid()) != first_bytes(target.pid), "another process was touched"
        observer.send_signal(signal.SIGKILL)
        observer.communicate()
        while first_bytes(target.pid) != before and time.monotonic() < deadline + 20:
            time.sleep(0.01)
        assert first_bytes(target.pid) == before
        assert UPROBE_EVENTS.read_text() == listed
        target.kill()


def test_without_a_process_it_is_unavailable_and_counts_no_zero() -> None:
    with ProbeSet.open(("allocations", "syscalls")) as probes:
        probes.self_test()
        probes.watch({threading.get_native_id(): "this one"})
        statuses = probes.close().statuses
    assert statuses["allocations"]["status"] == "unavailable"
    assert "not attached" in (statuses["allocations"]["reason"] or "")
    assert statuses["allocations"]["events"] is None
    assert statuses["syscalls"]["status"] == "ok"


def test_a_thread_of_another_process_makes_it_unavailable() -> None:
    with subprocess.Popen(["sleep", "600"]) as other, ProbeSet.open(("allocations", "syscalls")) as probes:
        probes.attach_process(os.getpid())
        probes.watch({other.pid: "other"})
        assert "allocations" in probes.unavailable
        other.kill()


def test_a_process_without_an_allocator_makes_it_unavailable() -> None:
    with ProbeSet.open(("allocations", "syscalls")) as probes:
        probes.attach_process(2)  # kthreadd: it maps no file
        assert "exports malloc" in probes.unavailable["allocations"]


def test_a_process_that_is_gone_makes_it_unavailable() -> None:
    with ProbeSet.open(("allocations", "syscalls")) as probes:
        probes.attach_process(4_194_399)
        assert "4194399" in probes.unavailable["allocations"]


def test_attaching_comes_before_watching() -> None:
    with ProbeSet.open(("syscalls",)) as probes:
        probes.watch({threading.get_native_id(): "this one"})
        with pytest.raises(KernelError, match="before"):
            probes.attach_process(os.getpid())
