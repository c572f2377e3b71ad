"""What the probes report about a thread, against what the thread itself knows about itself.

The subject thread reads its own ``getrusage(RUSAGE_THREAD)`` at both edges of a measurement, each edge between two
clock reads; tests.support.watched_threads says when a measurement is taken again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from sysmeter import records
from sysmeter.kernel import ProbeSet, bpfsys
from tests.support.watched_threads import Measurement, complete, is_preempted, measure, measure_until

pytestmark = pytest.mark.kernel

PAGE = mmap.PAGESIZE
N_SLEEPS = 23
N_PAGES = 64
N_CALLS = 137
NR_GETPPID = {"x86_64": 110}.get(os.uname().machine, 173)


@contextmanager
def cpu_burner(cpu: int) -> Iterator[None]:
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_thread_that_sleeps_23_times() -> None:
    def sleep() -> None:
        for _ in range(N_SLEEPS):
            time.sleep(0.001)

    def undisturbed(measurement: Measurement) -> bool:
        return measurement.witness("ru_nvcsw") == N_SLEEPS

    for measurement in measure_until(sleep, records.EVENT_SWITCH, undisturbed):
        switches = measurement.events(records.EVENT_SWITCH)
        voluntary = int(np.count_nonzero(~is_preempted(switches)))
        assert voluntary == measurement.witness("ru_nvcsw")
        assert len(switches) - voluntary == measurement.witness("ru_nivcsw")
        assert complete(measurement, "context_switch")
        if undisturbed(measurement):
            assert voluntary == N_SLEEPS


def test_each_sleep_is_followed_by_a_wake_up_that_precedes_the_switch_in() -> None:
    measurement = measure(lambda: [time.sleep(0.001) for _ in range(N_SLEEPS)])
    events = measurement.result.events
    wakeups = measurement.events(records.EVENT_WAKEUP)
    assert 0 < len(wakeups) <= measurement.witness("ru_nvcsw")
    switch_ins = events[(events["kind"] == records.EVENT_SWITCH) & (events["other_tid"] == measurement.tid)]
    for switch_in in switch_ins:
        switch_outs = events[
            (events["kind"] == records.EVENT_SWITCH)
            & (events["tid"] == measurement.tid)
            & (events["t_ns"] < switch_in["t_ns"])
        ]
        if not len(switch_outs):
            continue
        t_out_ns = switch_outs["t_ns"].max()
        between = wakeups[(wakeups["t_ns"] > t_out_ns) & (wakeups["t_ns"] <= switch_in["t_ns"])]
        assert len(between) <= 1
    assert {int(cpu) for cpu in wakeups["value"]} <= os.sched_getaffinity(0)
    assert measurement.result.statuses["runq_delay"]["lost"] == 0


def test_pages_touched_in_user_mode() -> None:
    addresses: list[int] = []

    def touch() -> None:
        with mmap.mmap(-1, N_PAGES * PAGE) as area:
            area.madvise(mmap.MADV_NOHUGEPAGE)
            first = ctypes.c_char.from_buffer(area)
            addresses[:] = [ctypes.addressof(first)]
            del first
            ctypes.memset(addresses[0], 1, N_PAGES * PAGE)

    def undisturbed(measurement: Measurement) -> bool:
        return measurement.witness("ru_minflt") == N_PAGES

    touch()
    for measurement in measure_until(touch, records.EVENT_PAGE_FAULT, undisturbed):
        faults = measurement.events(records.EVENT_PAGE_FAULT)
        assert len(faults) == measurement.witness("ru_minflt") + measurement.witness("ru_majflt")
        touched = {addresses[0] + i * PAGE for i in range(N_PAGES)}
        inside = [int(fault["value"]) & -PAGE for fault in faults if int(fault["value"]) & -PAGE in touched]
        assert sorted(inside) == sorted(touched), "each page once"
        user = faults["flags"] & records.FLAG_KERNEL_MODE == 0
        assert np.count_nonzero(user) >= N_PAGES
        assert complete(measurement, "page_fault")
        if undisturbed(measurement):
            assert len(faults) == N_PAGES


def test_pages_touched_by_the_kernel_on_the_threads_behalf() -> None:
    addresses: list[int] = []
    zero = open("/dev/zero", "rb", buffering=0)  # noqa: SIM115 -- closed below, outside the measured action

    def read_into_fresh_pages() -> None:
        with mmap.mmap(-1, N_PAGES * PAGE) as area:
            area.madvise(mmap.MADV_NOHUGEPAGE)
            first = ctypes.c_char.from_buffer(area)
            addresses[:] = [ctypes.addressof(first)]
            del first
            assert zero.readinto(area) == N_PAGES * PAGE

    def undisturbed(measurement: Measurement) -> bool:
        return measurement.witness("ru_minflt") == N_PAGES

    with zero:
        read_into_fresh_pages()
        for measurement in measure_until(read_into_fresh_pages, records.EVENT_PAGE_FAULT, undisturbed):
            faults = measurement.events(records.EVENT_PAGE_FAULT)
            assert len(faults) == measurement.witness("ru_minflt") + measurement.witness("ru_majflt")
            kernel_mode = faults[faults["flags"] & records.FLAG_KERNEL_MODE != 0]
            touched = {addresses[0] + i * PAGE for i in range(N_PAGES)}
            assert touched <= {int(fault["value"]) & -PAGE for fault in kernel_mode}


def test_system_calls_by_number() -> None:
    def call() -> None:
        for _ in range(N_CALLS):
            os.getppid()

    measurement = measure(call)
    calls = measurement.events(records.EVENT_SYSCALL)
    assert np.count_nonzero(calls["value"] == NR_GETPPID) == N_CALLS
    assert complete(measurement, "syscalls")


def test_no_system_call_where_there_is_none() -> None:
    def compute() -> int:
        return sum(range(1000))

    def undisturbed(measurement: Measurement) -> bool:
        return len(measurement.events(records.EVENT_SYSCALL)) == 0

    def gave_up_the_cpu(measurement: Measurement) -> bool:
        return measurement.witness("ru_nvcsw") > 0  # the interpreter's lock: a call of its own

    for measurement in measure_until(compute, records.EVENT_SWITCH, undisturbed):
        assert undisturbed(measurement) or gave_up_the_cpu(measurement)


def test_preemptions_by_a_competitor_on_the_same_cpu() -> None:
    cpu = max(os.sched_getaffinity(0))

    def spin() -> None:
        t_end_ns = time.thread_time_ns() + 100_000_000
        while time.thread_time_ns() < t_end_ns:
            pass

    def was_preempted(measurement: Measurement) -> bool:
        return measurement.witness("ru_nivcsw") >= 3

    with cpu_burner(cpu):
        for measurement in measure_until(spin, records.EVENT_SWITCH, was_preempted, cpu=cpu):
            switches = measurement.events(records.EVENT_SWITCH)
            involuntary = int(np.count_nonzero(is_preempted(switches)))
            assert involuntary == measurement.witness("ru_nivcsw")
            assert len(switches) - involuntary == measurement.witness("ru_nvcsw")
            assert complete(measurement, "context_switch")
            assert set(switches["cpu"].tolist()) <= {cpu}


def test_the_filter_lets_only_the_watched_thread_through() -> None:
    """The subject spins on one CPU; a bystander of the same process does all there is to see on another."""
    first, *_, last = sorted(os.sched_getaffinity(0)) * 2
    bystander_tid: list[int] = []
    stop = threading.Event()

    def stir() -> None:
        os.sched_setaffinity(0, {first})
        bystander_tid.append(threading.get_native_id())
        while not stop.is_set():
            time.sleep(0.0005)
            os.getppid()
            with mmap.mmap(-1, 4 * PAGE) as area:
                area[0] = area[PAGE] = 1

    bystander = threading.Thread(target=stir)
    bystander.start()
    try:
        measurement = measure(lambda: [os.getppid() for _ in range(20_000)], cpu=last)
    finally:
        stop.set()
        bystander.join()
    events = measurement.result.events
    others = events[events["kind"] != records.EVENT_SWITCH]
    assert len(others)
    assert set(others["tid"].tolist()) == {measurement.tid}
    assert_switches_concern(measurement.tid, events[events["kind"] == records.EVENT_SWITCH])
    assert np.count_nonzero(events["tid"] == bystander_tid[0]) == 0 or first == last


def assert_switches_concern(tid: int, switches: np.ndarray) -> None:
    """Each switch has the subject on one side, or happened on the CPU it was away from."""
    away_from: int | None = None
    for switch in switches:
        if switch["other_tid"] == tid:
            away_from = None
        elif switch["tid"] == tid:
            away_from = int(switch["cpu"])
        else:
            assert away_from == switch["cpu"], switch


def test_broken_links_are_flagged_exactly_where_the_chain_breaks() -> None:
    """While the subject is away from a CPU all switches there are reported: the chain can be rebuilt."""
    measurement = measure(lambda: [time.sleep(0.005) for _ in range(200)])
    switches = measurement.result.events
    switches = switches[switches["kind"] == records.EVENT_SWITCH]
    n_followed = 0
    last: dict[int, np.void] = {}
    away_from: int | None = None
    for switch in switches:
        cpu = int(switch["cpu"])
        if away_from == cpu:
            flagged = bool(switch["flags"] & records.FLAG_BROKEN_LINK)
            assert flagged == bool(last[cpu]["other_tid"] != switch["tid"])
            n_followed += 1
        last[cpu] = switch
        if switch["other_tid"] == measurement.tid:
            away_from = None
        elif switch["tid"] == measurement.tid:
            away_from = cpu
    assert n_followed >= 100
    counted = measurement.result.statuses["context_switch"]["broken_links"]
    n_flagged = int(np.count_nonzero(switches["flags"] & records.FLAG_BROKEN_LINK))
    assert counted is not None
    # A break before the subject's arrival from another CPU is flagged, but concerns no watched thread.
    assert counted <= n_flagged
    assert measurement.result.statuses["runq_delay"]["broken_links"] == counted
    assert measurement.result.statuses["page_fault"]["broken_links"] is None


def test_the_first_switch_seen_on_a_cpu_is_not_a_broken_link() -> None:
    """The memory of every CPU's last switch is wiped, as it is when the probes come, before each sleep."""
    n_sleeps = 30
    with ProbeSet.open(("context_switch",)) as probes:
        memory = probes._program._loaded.map_fd("last_in")
        tids: list[int] = []

        def subject() -> None:
            tids.append(threading.get_native_id())
            probes.watch({tids[0]: "subject"})
            for _ in range(n_sleeps):
                bpfsys.map_update(memory, bytes(4), bytes(8 * bpfsys.n_possible_cpus()))
                time.sleep(0.001)
            probes.unwatch_all()

        thread = threading.Thread(target=subject)
        thread.start()
        thread.join()
        events = probes.close().events
    switch_outs = events[(events["tid"] == tids[0]) & (events["value"] == 1)]
    assert len(switch_outs) >= n_sleeps
    # Real breaks, which this host may have, are rare; a false one would come with every sleep.
    assert np.count_nonzero(switch_outs["flags"] & records.FLAG_BROKEN_LINK) < n_sleeps / 2


def test_a_flood_of_system_calls_loses_calls_but_counts_each_and_loses_no_switch() -> None:
    n_calls = 5_000
    totals: list[int] = []

    with ProbeSet.open(syscall_ring_bytes=PAGE) as probes:
        probes.self_test()

        def subject() -> None:
            counter = SyscallCounter()
            probes.watch({threading.get_native_id(): "subject"})
            before = counter.read()
            for _ in range(n_calls):
                os.getppid()
            for _ in range(5):
                time.sleep(0.001)
            totals.append(counter.read() - before)
            probes.unwatch_all()
            counter.close()

        thread = threading.Thread(target=subject)
        thread.start()
        thread.join()
        result = probes.close()
    status = result.statuses["syscalls"]
    assert status["events"] is not None
    assert status["lost"] is not None
    assert status["lost"] > 0
    # Beside what the witness counted between its two reads: the first read, and the call that ends it all.
    assert totals[0] >= n_calls + 5
    assert status["events"] + status["lost"] == totals[0] + 2
    assert result.statuses["context_switch"]["lost"] == 0
    switches = result.events[result.events["kind"] == records.EVENT_SWITCH]
    assert np.count_nonzero(switches["value"] == 1) >= 5


class SyscallCounter:
    """An independent witness: the kernel's perf counter on raw_syscalls:sys_enter of the calling thread."""

    def __init__(self) -> None:
        attributes = np.zeros(16, dtype="<u8")
        attributes[0] = 2 | 128 << 32  # PERF_TYPE_TRACEPOINT, size
        with open("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id", encoding="ascii") as file:
            attributes[1] = int(file.read())
        libc = ctypes.CDLL(None, use_errno=True)
        number = {"x86_64": 298}.get(os.uname().machine, 241)
        self._fd = libc.syscall(number, ctypes.c_void_p(attributes.ctypes.data), 0, -1, -1, ctypes.c_ulong(8))
        assert self._fd >= 0, os.strerror(ctypes.get_errno())

    def read(self) -> int:
        return int.from_bytes(os.read(self._fd, 8), sys.byteorder)

    def close(self) -> None:
        os.close(self._fd)


def test_a_ring_that_is_drained_in_time_loses_nothing_however_often_it_wraps() -> None:
    n_rounds, n_calls = 300, 20
    with ProbeSet.open(("syscalls",), syscall_ring_bytes=PAGE) as probes:
        probes.self_test()
        probes.watch({threading.get_native_id(): "this one"})
        for _ in range(n_rounds):
            for _ in range(n_calls):
                os.getppid()
            probes.drain()
        result = probes.close()
    assert result.statuses["syscalls"]["lost"] == 0
    assert np.count_nonzero(result.events["value"] == NR_GETPPID) == n_rounds * n_calls
    assert np.all(np.diff(result.events["t_ns"].astype(np.int64)) >= 0)
    assert set(result.events["tid"].tolist()) == {threading.get_native_id()}


def test_a_full_ring_loses_switches_and_says_so() -> None:
    def sleep() -> None:
        for _ in range(200):
            time.sleep(0.0001)

    measurement = measure(sleep, names=("context_switch", "runq_delay"), ring_bytes=PAGE)
    statuses = measurement.result.statuses
    switches, wakeups = statuses["context_switch"]["lost"], statuses["runq_delay"]["lost"]
    assert switches is not None
    assert wakeups is not None
    assert switches > 0
    assert wakeups >= switches, "a lost switch is a loss of the probe that rests on switches, too"


def test_runq_delay_alone_brings_the_switches_it_rests_on() -> None:
    measurement = measure(lambda: time.sleep(0.002), names=("runq_delay",))
    kinds = set(measurement.result.events["kind"].tolist())
    assert kinds == {records.EVENT_SWITCH, records.EVENT_WAKEUP}
    assert list(measurement.result.statuses) == ["runq_delay"]


def test_a_thread_that_ends_is_forgotten() -> None:
    """Else every switch on its last CPU would be reported, and a new thread with its number watched."""
    with ProbeSet.open() as probes:
        started, release = threading.Event(), threading.Event()

        def subject() -> None:
            started.set()
            release.wait()

        thread = threading.Thread(target=subject)
        thread.start()
        started.wait()
        assert thread.native_id is not None
        probes.watch({thread.native_id: "short-lived"})
        release.set()
        thread.join()
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        probes.drain()
        for _ in range(50):
            time.sleep(0.001)
        assert probes.drain() == 0
        result = probes.close()
    last = result.events[result.events["kind"] == records.EVENT_SWITCH][-1]
    assert last["tid"] == thread.native_id
    assert last["value"] & 0x30


def test_a_thread_that_moves_takes_its_absence_with_it() -> None:
    """Once the subject has come back on another CPU, the one it left is no longer of interest."""
    allowed = sorted(os.sched_getaffinity(0))
    first, last = allowed[0], allowed[-1]
    assert first != last, "this test needs two CPUs"
    stop = threading.Event()
    later: list[np.ndarray] = []

    def stir() -> None:
        os.sched_setaffinity(0, {first})
        while not stop.is_set():
            time.sleep(0.0005)

    with ProbeSet.open(("context_switch",)) as probes:

        def subject() -> None:
            tid = threading.get_native_id()
            os.sched_setaffinity(0, {first})
            probes.watch({tid: "subject"})
            for _ in range(20):
                os.sched_setaffinity(0, {first})
                time.sleep(0.001)
                os.sched_setaffinity(0, {last})
                time.sleep(0.001)
            t_settled_ns = time.monotonic_ns()
            while time.monotonic_ns() < t_settled_ns + 100_000_000:
                pass
            probes.unwatch_all()
            events = probes.close().events
            later.append(events[events["t_ns"] >= t_settled_ns])
            assert {first, last} == set(events["cpu"].tolist())

        bystander = threading.Thread(target=stir)
        bystander.start()
        thread = threading.Thread(target=subject)
        thread.start()
        thread.join()
        stop.set()
        bystander.join()
    assert len(later) == 1
    assert set(later[0]["cpu"].tolist()) <= {last}


def test_a_program_that_the_kernel_skips_is_counted_as_missed() -> None:
    """A foreign BPF program holds a CPU for milliseconds while a timer on it wakes the subject."""
    from sysmeter.kernel.bccload import LoadedProgram

    cpu = max(os.sched_getaffinity(0))
    ready = threading.Event()
    stop = threading.Event()
    hog_code = (
        f"import os,sys,time; os.sched_setaffinity(0, {{{cpu}}}); print(os.getpid(), flush=True)\n"
        "while True: os.getppid(); time.sleep(0.0005)"
    )
    with subprocess.Popen([sys.executable, "-c", hog_code], stdout=subprocess.PIPE, text=True) as hog:
        foreign = None
        try:
            assert hog.stdout is not None
            hog_tid = int(hog.stdout.readline())
            foreign = LoadedProgram(
                "TRACEPOINT_PROBE(raw_syscalls, sys_enter) {\n"
                f"  if (args->id != {NR_GETPPID} || (u32)bpf_get_current_pid_tgid() != {hog_tid}) return 0;\n"
                "  u64 sum = 0;\n"
                "  for (int i = 0; i < 50000; i++) sum += bpf_ktime_get_ns();\n"
                "  return sum == 1;\n}",
                {"PAGE_SIZE": PAGE},
            )
            foreign.attach("tracepoint__raw_syscalls__sys_enter", "raw_syscalls", "sys_enter", False)
            with ProbeSet.open() as probes:

                def subject() -> None:
                    os.sched_setaffinity(0, {cpu})
                    probes.watch({threading.get_native_id(): "subject"})
                    ready.set()
                    while not stop.is_set():
                        time.sleep(0.0005)

                thread = threading.Thread(target=subject)
                thread.start()
                ready.wait()
                time.sleep(1)
                stop.set()
                thread.join()
                result = probes.close()
        finally:
            hog.kill()
            if foreign is not None:
                foreign.close()
    missed = result.statuses["runq_delay"]["missed"]
    assert missed is not None
    assert missed > 0
