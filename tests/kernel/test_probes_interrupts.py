"""Interrupts and softirqs of a watched thread, against what the kernel counts of its CPU.

/proc/interrupts and /proc/softirqs count what a CPU took, whoever was its current task. While the subject is pinned to
it and never leaves it (its own getrusage says whether it did), that is what the subject took. So many short trials are
made, and those count in which the subject stayed and nothing fell into an edge, where nobody could say on which side
of the reading of the counters it belongs.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from sysmeter import host, records
from sysmeter.kernel import ProbeSet, syscall_names
from sysmeter.kernel.catalogue import CATALOGUE

pytestmark = pytest.mark.kernel

CLOCK_SLACK_NS = 1_000  # see sysmeter.analysis.reads
MAX_TRIALS = 3_000
ENOUGH_TRIALS = 60
SPIN_NS = 2_000_000  # shorter than a turn on a CPU that has to be shared
ENOUGH_TICKS = 8
GAP_NS = 1_000

# Which row of /proc/interrupts counts which kinds of interrupts.
ROWS = {
    "LOC": (records.INTERRUPT_LOCAL_TIMER,),
    "RES": (records.INTERRUPT_RESCHEDULE,),
    "CAL": (records.INTERRUPT_CALL_FUNCTION, records.INTERRUPT_CALL_FUNCTION_SINGLE),
    "IWI": (records.INTERRUPT_IRQ_WORK,),
}


def cpu_rows(path: str, cpu: int) -> dict[str, int]:
    """The column of one CPU of /proc/interrupts or /proc/softirqs, by row."""
    header, *lines = Path(path).read_text(encoding="ascii").splitlines()
    column = header.split().index(f"CPU{cpu}")
    rows = {}
    for line in lines:
        name, _, rest = line.partition(":")
        figures = rest.split()
        if len(figures) > column and figures[column].isdecimal():
            rows[name.strip()] = int(figures[column])
    return rows


@dataclass
class Edge:
    t_before_ns: int
    n_switches_before: tuple[int, int]
    interrupts: dict[str, int]
    softirqs: dict[str, int]
    n_switches_after: tuple[int, int]
    t_after_ns: int


def take_edge(cpu: int) -> Edge:
    t_before_ns, n_before = time.monotonic_ns(), n_switches()
    interrupts, softirqs = cpu_rows("/proc/interrupts", cpu), cpu_rows("/proc/softirqs", cpu)
    return Edge(t_before_ns, n_before, interrupts, softirqs, n_switches(), time.monotonic_ns())


def n_switches() -> tuple[int, int]:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw, usage.ru_nivcsw


@dataclass
class Trial:
    opened: Edge
    closed: Edge
    gaps: list[tuple[int, int]]
    events: np.ndarray = field(default_factory=lambda: np.zeros(0, records.KERNEL_EVENT))

    def grew(self, counters: str, row: str) -> int:
        return getattr(self.closed, counters)[row] - getattr(self.opened, counters)[row]

    def of_kind(self, *kinds: int) -> int:
        return int(np.count_nonzero(np.isin(self.events["detail"], kinds)))


def spin(until: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Read the clock until ``until`` of it; the pairs of consecutive reads that lie apart."""
    gaps, before = [], time.monotonic_ns()
    while True:
        now = time.monotonic_ns()
        if now - before > GAP_NS:
            gaps.append((before, now))
        before = now
        if until(now):
            return gaps


def trials_of(name: str, cpu: int, action: Callable[[], list[tuple[int, int]]], n_ticks: int = 0) -> list[Trial]:
    """Undisturbed trials of ``action`` in a thread pinned to ``cpu`` and watched by the probe ``name`` alone.

    Many enough, and with at least ``n_ticks`` clock interrupts, which on a shared CPU tend to end in a preemption.
    """
    trials: list[Trial] = []
    tids: list[int] = []
    with ProbeSet.open((name,)) as probes:
        probes.self_test()
        assert probes.unavailable == {}

        def subject() -> None:
            os.sched_setaffinity(0, {cpu})
            tids.append(threading.get_native_id())
            probes.watch({tids[0]: "subject"})
            n_stayed = n_ticks_stayed = 0
            for _ in range(MAX_TRIALS):
                opened = take_edge(cpu)
                gaps = action()
                trials.append(Trial(opened, take_edge(cpu), gaps))
                if stayed(trials[-1]):
                    n_stayed += 1
                    n_ticks_stayed += trials[-1].grew("interrupts", "LOC")
                if n_stayed >= 2 * ENOUGH_TRIALS and n_ticks_stayed >= 2 * n_ticks:
                    break
            probes.unwatch_all()

        thread = threading.Thread(target=subject)
        thread.start()
        thread.join()
        result = probes.close()
    status = result.statuses[name]
    assert (status["status"], status["lost"], status["missed"]) == ("ok", 0, 0)
    events = result.events[result.events["kind"] == CATALOGUE[name].kind]
    assert len(events) == status["events"]
    assert set(events["tid"].tolist()) <= {tids[0]}, "the filter lets the subject's events through alone"
    assert set(events["cpu"].tolist()) <= {cpu}
    assert np.all(events["value"] > 0), "durations are positive"
    t_ns = events["t_ns"].astype(np.int64)
    quiet = []
    for trial in trials:
        inner = (t_ns > trial.opened.t_after_ns) & (t_ns < trial.closed.t_before_ns)
        outer = (t_ns + events["value"] > trial.opened.t_before_ns) & (t_ns < trial.closed.t_after_ns)
        if stayed(trial) and np.array_equal(inner, outer):
            trial.events = events[inner]
            quiet.append(trial)
    assert len(quiet) >= ENOUGH_TRIALS, f"the host left the subject alone in {len(quiet)} of {len(trials)} trials"
    return quiet


def stayed(trial: Trial) -> bool:
    """The subject never left the CPU, not even while it read the counters, which count for whoever has it."""
    return trial.opened.n_switches_before == trial.closed.n_switches_after


def last_cpu() -> int:
    return max(os.sched_getaffinity(0))


def spin_for(length_ns: int) -> list[tuple[int, int]]:
    t_end_ns = time.monotonic_ns() + length_ns
    return spin(lambda now: now >= t_end_ns)


def test_interrupts_of_a_spinning_thread_are_those_of_its_cpu() -> None:
    trials = trials_of("interrupts", last_cpu(), lambda: spin_for(SPIN_NS), ENOUGH_TICKS)
    for trial in trials:
        for row, kinds in ROWS.items():
            assert trial.of_kind(*kinds) == trial.grew("interrupts", row), row
    assert sum(trial.of_kind(records.INTERRUPT_LOCAL_TIMER) for trial in trials) >= ENOUGH_TICKS
    vectors = {int(event["value2"]) for trial in trials for event in trial.events if event["detail"] == 2}
    assert len(vectors) == 1, "the clock interrupt has one vector"


def test_device_interrupts_are_those_of_their_row() -> None:
    trials = trials_of("interrupts", last_cpu(), lambda: spin_for(SPIN_NS), ENOUGH_TICKS)
    for trial in trials:
        devices = trial.events[trial.events["detail"] == records.INTERRUPT_DEVICE]
        for number, n in zip(*np.unique(devices["value2"], return_counts=True), strict=True):
            assert trial.grew("interrupts", str(number)) == n
            assert host.interrupt_name(int(number))
        numbered = [row for row in trial.opened.interrupts if row.isdecimal()]
        assert sum(trial.grew("interrupts", row) for row in numbered) == len(devices)


def test_each_interrupt_lies_in_a_gap_of_the_threads_own_clock_reads() -> None:
    trials = trials_of("interrupts", last_cpu(), lambda: spin_for(SPIN_NS), ENOUGH_TICKS)
    n_checked = 0
    for trial in trials:
        starts = np.array([start for start, _ in trial.gaps], np.int64)
        ends = np.array([end for _, end in trial.gaps], np.int64)
        for event in trial.events:
            t_start_ns, t_end_ns = int(event["t_ns"]), int(event["t_ns"] + event["value"])
            # The first and the last read of the spin lie inside the edges, and so may an event before or after it.
            if t_start_ns < starts[0] or t_end_ns > ends[-1]:
                continue
            fits = (starts - CLOCK_SLACK_NS <= t_start_ns) & (t_end_ns <= ends + CLOCK_SLACK_NS)
            assert np.count_nonzero(fits) >= 1, event
            n_checked += 1
    assert n_checked >= ENOUGH_TICKS


MEMBARRIER = """
import ctypes, mmap, os, sys, time
os.sched_setaffinity(0, {%(cpu)d})
libc = ctypes.CDLL(None)
with open(sys.argv[1], "r+b") as file:
    words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
done = 0
words[2] = 1
while words[0] >= 0:
    if words[0] > done:
        for _ in range(%(n)d):
            libc.syscall(%(number)d, 2, 0, 0)  # MEMBARRIER_CMD_GLOBAL_EXPEDITED
        done = words[0]
        words[1] = done
"""
MEMBARRIER_NUMBER = {"x86_64": 324}.get(os.uname().machine, 283)
REGISTER_GLOBAL_EXPEDITED = 4
N_BARRIERS = 40


@contextmanager
def neighbour(path: Path, cpu: int) -> Iterator[memoryview]:
    """Another process on ``cpu`` that runs barriers on demand: words[0] asks for a round, words[1] tells it is done."""
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
    code = MEMBARRIER % {"cpu": cpu, "n": N_BARRIERS, "number": MEMBARRIER_NUMBER}
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        try:
            while not words[2]:
                assert process.poll() is None
                time.sleep(0.01)
            yield words
        finally:
            words[0] = -1
            process.wait()


def test_barriers_of_another_process_arrive_as_call_function_interrupts(tmp_path: Path) -> None:
    first, last = min(os.sched_getaffinity(0)), last_cpu()
    assert first != last, "this test needs two CPUs"
    libc = ctypes.CDLL(None)
    assert libc.syscall(MEMBARRIER_NUMBER, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0
    with neighbour(tmp_path / "words", first) as words:

        def bear() -> list[tuple[int, int]]:
            if words[0] == 0:
                # A CPU on which a thread of this process ended, and no other process ran since, takes the process
                # for unregistered (kernel: exit_mm, membarrier_switch_mm). So another one runs on it.
                subprocess.run(["true"], check=True)
            words[0] += 1
            t_give_up_ns = time.monotonic_ns() + 1_000_000_000
            return spin(lambda now: words[1] == words[0] or now > t_give_up_ns)

        trials = trials_of("interrupts", last, bear)
    for trial in trials:
        n_calls = trial.of_kind(*ROWS["CAL"])
        assert n_calls == trial.grew("interrupts", "CAL")
        assert n_calls >= N_BARRIERS
    exact = [trial for trial in trials if trial.of_kind(records.INTERRUPT_CALL_FUNCTION_SINGLE) == N_BARRIERS]
    assert exact, "one interrupt for each barrier where nobody else called"


def test_interrupts_while_the_watched_thread_is_away_are_not_its_own() -> None:
    """The subject sleeps in a read; another process burns the subject's CPU through many clock interrupts."""
    cpu = last_cpu()
    read_fd, write_fd = os.pipe()
    burn = f"import os, time; os.sched_setaffinity(0, {{{cpu}}})\nwhile time.process_time() < 0.2: pass"
    bounds: list[int] = []
    grew: list[int] = []
    with ProbeSet.open(("interrupts", "softirqs")) as probes:
        probes.self_test()

        def subject() -> None:
            os.sched_setaffinity(0, {cpu})
            probes.watch({threading.get_native_id(): "subject"})
            before = cpu_rows("/proc/interrupts", cpu)["LOC"]
            bounds.append(time.monotonic_ns())
            os.read(read_fd, 1)
            bounds.append(time.monotonic_ns())
            grew.append(cpu_rows("/proc/interrupts", cpu)["LOC"] - before)
            probes.unwatch_all()

        thread = threading.Thread(target=subject)
        thread.start()
        while not bounds:
            time.sleep(0.001)
        subprocess.run([sys.executable, "-c", burn], check=True)
        os.write(write_fd, b"!")
        thread.join()
        events = probes.close().events
    os.close(read_fd)
    os.close(write_fd)
    assert grew[0] >= 20, "the CPU took many clock interrupts meanwhile"
    inside = events[(events["t_ns"] > bounds[0]) & (events["t_ns"] < bounds[1])]
    # On its way into the read and out of it the subject itself was the current task.
    assert len(inside) <= 3


N_DATAGRAMS = 25


def test_softirqs_of_a_thread_are_those_of_its_cpu() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        address = receiver.getsockname()

        def send() -> list[tuple[int, int]]:
            for _ in range(N_DATAGRAMS):
                receiver.sendto(b"sysmeter", address)
                receiver.recv(64)
            return []

        trials = trials_of("softirqs", last_cpu(), send)
    for trial in trials:
        for number, name in enumerate(records.SOFTIRQ_NAMES):
            assert trial.of_kind(number) == trial.grew("softirqs", name), name
        assert trial.of_kind(records.SOFTIRQ_NAMES.index("NET_RX")) >= N_DATAGRAMS
        lengths_ns = trial.closed.t_before_ns - trial.opened.t_after_ns
        assert int(trial.events["value"].sum()) < lengths_ns, "they lie in the thread's own time"


def test_softirq_names_stand_in_the_kernels_order() -> None:
    rows = list(cpu_rows("/proc/softirqs", last_cpu()))
    assert tuple(rows) == records.SOFTIRQ_NAMES
    assert syscall_names([0])
