"""Before a run: does each probe see its event, does the filter hold others back, do the clocks agree?

A helper thread of this process is the subject. First it acts while only a thread number that nobody has is
in the filter: nothing may come through. Then it acts while it is watched itself: each probe must show the
event, at a time between two clock reads of the thread. On a busy virtual machine a single event can stay
unseen for reasons that do not make the probe useless (design: the host's own tasks run outside BPF's view),
so a probe passes when it saw one of at most ``MAX_ATTEMPTS`` provoked events.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sysmeter import clock, records
from sysmeter.errors import KernelError
from sysmeter.kernel.catalogue import CATALOGUE, Probe, Stimulus, spread_unavailability, with_required
from sysmeter.kernel.privileges import in_initial_pid_namespace
from sysmeter.kernel.program import Program

MAX_ATTEMPTS = 5
SLEEP_S = 0.001
# At least one tick of the slowest usual clock interrupt, 100 a second.
SPIN_NS = 15_000_000

_NOBODY = 0xFFFF_FFFE  # above any thread number the kernel gives
# Bytes that nobody else asks for, most likely; below the size at which malloc would map memory of its own.
_UNUSUAL_BYTES = 54_321
_GETPPID_NUMBER = {"x86_64": 110, "aarch64": 173, "riscv64": 173, "ppc64le": 64}

Events = npt.NDArray[np.void]

_ALLOCATION_FUNCTIONS = (
    records.ALLOCATION_MALLOC,
    records.ALLOCATION_CALLOC,
    records.ALLOCATION_REALLOC,
    records.ALLOCATION_FREE,
)

_libc = ctypes.CDLL(None)
_libc.malloc.restype = _libc.calloc.restype = _libc.realloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_libc.calloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.realloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None


@dataclass(frozen=True)
class Provocation:
    """One thing the helper thread did. ``mark`` is the page's address, the call's number, or the bytes it asked
    for; -1 if it has none.
    """

    t_before_ns: int
    t_after_ns: int
    mark: int


@dataclass
class SelfTestOutcome:
    """What the self-test found: probes that failed with the reason, and whether the clocks agree."""

    clock: tuple[bool, str | None] = (True, None)
    unavailable: dict[str, str] = field(default_factory=dict)


def provoke(stimulus: Stimulus) -> Provocation:
    """Carry out ``stimulus`` in the calling thread."""
    if stimulus is Stimulus.SLEEP:
        t_before_ns = clock.now_ns()
        time.sleep(SLEEP_S)
        return Provocation(t_before_ns, clock.now_ns(), -1)
    if stimulus is Stimulus.CALL:
        t_before_ns = clock.now_ns()
        os.getppid()
        return Provocation(t_before_ns, clock.now_ns(), _GETPPID_NUMBER.get(platform.machine(), -1))
    if stimulus is Stimulus.ALLOCATE:
        t_before_ns = clock.now_ns()
        _libc.free(_libc.malloc(_UNUSUAL_BYTES))
        _libc.free(_libc.realloc(_libc.calloc(1, _UNUSUAL_BYTES), _UNUSUAL_BYTES))
        return Provocation(t_before_ns, clock.now_ns(), _UNUSUAL_BYTES)
    if stimulus is Stimulus.SPIN:
        t_before_ns = t_after_ns = clock.now_ns()
        while t_after_ns < t_before_ns + SPIN_NS:
            t_after_ns = clock.now_ns()
        return Provocation(t_before_ns, t_after_ns, -1)
    if stimulus is Stimulus.DATAGRAM:
        return _send_to_itself()
    if stimulus is Stimulus.MOVE:
        return _move()
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        first_byte = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(first_byte)
        del first_byte
        t_before_ns = clock.now_ns()
        page[0] = 1
        return Provocation(t_before_ns, clock.now_ns(), address)


def _send_to_itself() -> Provocation:
    """A datagram over the loopback device is received by a softirq of the sending thread."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        t_before_ns = clock.now_ns()
        receiver.sendto(b"sysmeter", receiver.getsockname())
        return Provocation(t_before_ns, clock.now_ns(), -1)


def _move() -> Provocation:
    before = os.sched_getaffinity(0)
    try:
        # The kernel cuts this down to what the thread may have at all, which may be more than the process keeps to.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cpus[:1])
        t_before_ns = clock.now_ns()
        os.sched_setaffinity(0, cpus[-1:])
        return Provocation(t_before_ns, clock.now_ns(), -1)
    finally:
        os.sched_setaffinity(0, before)


def saw(probe: Probe, tid: int, provocation: Provocation, events: Events) -> bool:
    """Whether ``events`` hold what ``provocation`` must have made ``probe`` emit for thread ``tid``."""
    own = events[(events["kind"] == probe.kind) & (events["tid"] == tid)]
    own = own[(own["t_ns"] >= provocation.t_before_ns) & (own["t_ns"] <= provocation.t_after_ns)]
    if probe.stimulus is Stimulus.ALLOCATE:
        asked = own["value"][own["value2"] == provocation.mark]
        freed = own["value"][own["value"] == records.ALLOCATION_FREE]
        return {*asked.tolist(), *freed.tolist()} == set(_ALLOCATION_FUNCTIONS)
    if provocation.mark >= 0:
        pages = own["value"] & -mmap.PAGESIZE if probe.stimulus is Stimulus.TOUCH else own["value"]
        own = own[pages == provocation.mark]
    return bool(own.size > 0)


def compare_clocks(program: Program) -> tuple[bool, str | None]:
    """Whether BPF's clock, read between two reads of CLOCK_MONOTONIC here, lies between them; or why not."""
    try:
        t_before_ns = clock.now_ns()
        t_bpf_ns, _tgid, _tid = program.look()
        t_after_ns = clock.now_ns()
    except OSError as error:
        return False, f"this kernel cannot run a BPF program on demand (Linux 5.10 can): {error.strerror}"
    if t_before_ns <= t_bpf_ns <= t_after_ns:
        return True, None
    away_ns = t_bpf_ns - t_after_ns if t_bpf_ns > t_after_ns else t_bpf_ns - t_before_ns
    reason = f"BPF's clock is {away_ns} ns away from CLOCK_MONOTONIC in this process"
    offset_ns = clock.time_namespace_offset_ns()
    if offset_ns:
        reason += f"; it runs in a time namespace with an offset of {offset_ns} ns"
    return False, reason


def thread_number_problem(program: Program) -> str | None:
    """Why thread numbers of this process are not BPF's, or None. Asks about the calling thread."""
    own = threading.get_native_id()
    remedy = "run it in the host's pid namespace (docker run --pid=host)"
    try:
        _t_ns, _tgid, seen = program.look()
    except OSError:
        return None if in_initial_pid_namespace() else f"sysmeter runs in a pid namespace of its own; {remedy}"
    if seen == own:
        return None
    return (
        f"BPF numbers thread {own} of this process {seen}: sysmeter runs in a pid namespace of its own, "
        f"and the filter would aim at other threads; {remedy}"
    )


def run_self_test(program: Program, names: Iterable[str], drain: Callable[[], Events]) -> SelfTestOutcome:
    """Test the probes ``names``, with no thread watched yet. What ``drain`` gives meanwhile is dropped.

    Raises:
        KernelError: the filter map or a ring cannot be used at all.
    """
    names = with_required(names)
    outcome = SelfTestOutcome(clock=compare_clocks(program))
    with ThreadPoolExecutor(1, thread_name_prefix="sysmeter-self-test") as helper:
        tid = helper.submit(threading.get_native_id).result()
        problem = helper.submit(thread_number_problem, program).result()
        if problem:
            outcome.unavailable = dict.fromkeys(names, problem)
            return outcome
        outcome.unavailable = attach_to_this_process(program, names)
        names = tuple(name for name in names if name not in outcome.unavailable)
        leaking = _leaks(program, names, helper, drain)
        pending = [name for name in names if name not in leaking]
        for name in leaking:
            outcome.unavailable[name] = "events of a thread that was not watched came through its filter"
        for _attempt in range(MAX_ATTEMPTS):
            if not pending:
                break
            pending = _attempt_unseen(program, pending, tid, helper, drain)
        for name in pending:
            outcome.unavailable[name] = (
                f"it saw none of {MAX_ATTEMPTS} provoked events ({CATALOGUE[name].stimulus.value})"
                + (f"; {outcome.clock[1]}" if not outcome.clock[0] else "")
            )
    program.detach_process()
    spread_unavailability(outcome.unavailable, names)
    return outcome


def attach_to_this_process(program: Program, names: Iterable[str]) -> dict[str, str]:
    """Aim the probes of functions at the helper thread's process; those that cannot be aimed, with the reason."""
    at_functions = [name for name in names if any(hook.uprobe for hook in CATALOGUE[name].hooks)]
    try:
        program.attach_process(os.getpid(), at_functions)
    except KernelError as error:
        return dict.fromkeys(at_functions, error.message)
    return {}


def _leaks(
    program: Program, names: Iterable[str], helper: ThreadPoolExecutor, drain: Callable[[], Events]
) -> list[str]:
    names = tuple(names)
    drain()
    program.watch(_NOBODY, names)
    try:
        for stimulus in {CATALOGUE[name].stimulus for name in names}:
            helper.submit(provoke, stimulus).result()
    finally:
        program.unwatch([_NOBODY])
    events = drain()
    return [name for name in names if np.any(events["kind"] == CATALOGUE[name].kind)]


def _attempt_unseen(
    program: Program, names: list[str], tid: int, helper: ThreadPoolExecutor, drain: Callable[[], Events]
) -> list[str]:
    program.watch(tid, with_required(names))
    try:
        done = {
            stimulus: helper.submit(provoke, stimulus).result()
            for stimulus in {CATALOGUE[name].stimulus for name in names}
        }
    finally:
        program.unwatch([tid])
    events = drain()
    return [name for name in names if not saw(CATALOGUE[name], tid, done[CATALOGUE[name].stimulus], events)]
