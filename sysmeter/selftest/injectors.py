"""One injector a cause. Each holds the target thread by its own means and keeps its own record of it.

A record is ``{t_begin_ns, t_end_ns, held_ns, held_max_ns, identity}``: between which two clock reads the thread was
held, and how long it really was, as far as the injector can know: at least ``held_ns``, at most ``held_max_ns``
(what the host adds, such as a wait for the CPU after a sleep, lies between the two). ``identity`` is by what the
diagnosis must name it. How the times are known:

- ``preemption``: the rival's own account of its CPU time (CLOCK_THREAD_CPUTIME_ID).
- ``sleep``, ``stall``: what was asked for; at most until the thread's next clock read.
- ``mutex``: from when the thread is seen asleep to the holder's clock read before it unlocks; at most as above.
- ``page_fault``: as many times the cheapest page of all trials so far; at most the thread's own clock reads.
- ``interrupt``: at most for the length of the system call that returns when the other CPU is done.
- ``stop``: from when the thread is seen stopped to the call of kill(SIGCONT); at most to its first turn after it.
- ``migration``: at most from the call of sched_setaffinity to the thread's first turn on the other CPU.
- ``quota``: the kernel's account of how long the group was throttled; at most as long as the thread did not run.
- ``collection``: the CPU time of the collecting thread, which holds the interpreter lock meanwhile; at most between its
  clock reads around gc.collect, as at both ends of a collection the interpreter may hand the lock over.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sysmeter import host, injection
from sysmeter.selftest import plan, rival
from sysmeter.selftest.cgroups import QuotaGroup, QuotaUnavailable
from sysmeter.selftest.commands import Commands, NotCarriedOut
from sysmeter.units import NS_PER_MS, NS_PER_S, NS_PER_US
from sysmeter.workload import die_with_parent, own_python

if TYPE_CHECKING:
    from collections.abc import Iterable

# Source: include/uapi/linux/membarrier.h, and each architecture's table of system calls.
_MEMBARRIER_CALL = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_MEMBARRIER_GLOBAL_EXPEDITED = 1 << 1

# A fifth of the CPU, in short periods: the thread is held again and again, each time for some milliseconds.
_QUOTA_NS = 2 * NS_PER_MS
_QUOTA_PERIOD_NS = 10 * NS_PER_MS

_INTERRUPT_ATTEMPTS = 8
_INTERRUPT_AGAIN_SECONDS = 0.003
_INTERRUPT_AWAY_NS = 30 * NS_PER_US  # more than a read of the thread's CPU clock, less than any other task needs

_STATE_LOOKS = 200
_STATE_LOOK_SECONDS = 0.0001

_RIVAL_PATIENCE_SECONDS = 2.0


class Unavailable(Exception):
    """This host cannot have the cause injected; the text says why."""


@dataclass(frozen=True)
class Target:
    """The thread that is held, and where it runs. ``other_cpu`` is where it may be moved to for a moment."""

    name: str
    tid: int
    tgid: int
    cpu: int
    other_cpu: int
    commands: Commands


@dataclass
class Record:
    """What an injector did, see the module's words."""

    t_begin_ns: int
    t_end_ns: int
    held_ns: int
    held_max_ns: int
    identity: dict[str, Any] = field(default_factory=dict)


class Injector(Protocol):
    """Made before the window opens, closed after it; :meth:`inject` is called in between."""

    def inject(self, argument: int) -> Record:
        """Hold the thread once. Raises NotCarriedOut."""

    def close(self) -> None:
        """Put everything back."""


class _Asking:
    """An injector that lets the thread hold itself."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._commands = target.commands

    def close(self) -> None:
        """Nothing to put back."""


class Sleep(_Asking):
    """The thread sleeps in clock_nanosleep."""

    def inject(self, argument: int) -> Record:
        """For ``argument`` ns."""
        done = self._commands.do(injection.DO_SLEEP, argument)
        identity = {"syscall": "clock_nanosleep"}
        return Record(done.t_begin_ns, done.t_end_ns, argument, done.t_end_ns - done.t_begin_ns, identity)


class Stall(_Asking):
    """The thread spins."""

    def inject(self, argument: int) -> Record:
        """For ``argument`` ns."""
        done = self._commands.do(injection.DO_SPIN, argument)
        return Record(done.t_begin_ns, done.t_end_ns, argument, done.t_end_ns - done.t_begin_ns)


class PageFault(_Asking):
    """Pages of a buffer are given back, and the thread touches them."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._page_ns = NS_PER_MS

    def inject(self, argument: int) -> Record:
        """``argument`` pages."""
        words = self._commands.words
        n_pages = min(argument, int(words[injection.BUFFER_BYTES]) // mmap.PAGESIZE)
        done = self._commands.do(injection.DO_FAULT, n_pages)
        # The whole buffer: faults near each other are one place to the diagnosis, whichever trial they are of.
        identity = {"address": int(words[injection.BUFFER_AT]), "n_bytes": int(words[injection.BUFFER_BYTES])}
        touched_ns = done.t_end_ns - done.t_begin_ns
        self._page_ns = min(self._page_ns, touched_ns // n_pages)
        return Record(done.t_begin_ns, done.t_end_ns, n_pages * self._page_ns, touched_ns, identity)


class Mutex(_Asking):
    """The thread locks a mutex that this process holds."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._libc = ctypes.CDLL(None)
        self._mutex = ctypes.c_void_p(target.commands.words[injection.MUTEX :].ctypes.data)

    def inject(self, argument: int) -> Record:
        """For about ``argument`` ns."""
        self._libc.pthread_mutex_lock(self._mutex)
        try:
            number = self._commands.ask(injection.DO_LOCK)
            t_asleep_ns = await_state(self._target, "S")
            time.sleep(argument / NS_PER_S)
            t_unlock_ns = time.monotonic_ns()
        finally:
            self._libc.pthread_mutex_unlock(self._mutex)
        done = self._commands.wait(number)
        if t_asleep_ns is None:
            raise NotCarriedOut("the thread did not come to the mutex")
        identity = {"address": int(self._commands.words[injection.MUTEX_AT])}
        held_max_ns = done.t_end_ns - done.t_begin_ns
        return Record(done.t_begin_ns, done.t_end_ns, t_unlock_ns - t_asleep_ns, held_max_ns, identity)


class Interrupt(_Asking):
    """This CPU interrupts the one the thread runs on (membarrier), each time waiting until it is done."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        if _MEMBARRIER_CALL is None or not target.commands.words[injection.HAS_MEMBARRIER]:
            raise Unavailable("this kernel has no expedited membarrier(2)")
        self._libc = ctypes.CDLL(None, use_errno=True)

    def inject(self, argument: int) -> Record:
        """``argument`` interrupts, one after the other.

        The kernel spares a CPU that runs another process at that moment, unless that one has asked for such interrupts
        too. So there must have been some by the kernel's own count, and the thread must have run all the while by its.
        """
        for _ in range(_INTERRUPT_ATTEMPTS):
            before = call_function_interrupts(self._target.cpu)
            first = self._commands.do(injection.DO_TELL)
            t_begin_ns = time.monotonic_ns()
            for _ in range(argument):
                if self._libc.syscall(_MEMBARRIER_CALL, _MEMBARRIER_GLOBAL_EXPEDITED, 0) != 0:
                    raise NotCarriedOut(f"membarrier failed: {os.strerror(ctypes.get_errno())}")
            t_end_ns = time.monotonic_ns()
            last = self._commands.do(injection.DO_TELL)
            away_ns = last.t_end_ns - first.t_end_ns - (last.cpu_time_ns - first.cpu_time_ns)
            is_counted = before is None or call_function_interrupts(self._target.cpu) != before
            if is_counted and away_ns < _INTERRUPT_AWAY_NS:
                identity = {"vector": "call function", "n_interrupts": argument}
                return Record(t_begin_ns, t_end_ns, 0, t_end_ns - t_begin_ns, identity)
            time.sleep(_INTERRUPT_AGAIN_SECONDS)
        raise NotCarriedOut("others used the thread's CPU each time")


class Stop(_Asking):
    """The thread's whole process is stopped and continued."""

    def inject(self, argument: int) -> Record:
        """For about ``argument`` ns."""
        t_begin_ns = time.monotonic_ns()
        try:
            os.kill(self._target.tgid, signal.SIGSTOP)
            t_stopped_ns = await_state(self._target, "T")
            time.sleep(argument / NS_PER_S)
        except ProcessLookupError as error:
            raise NotCarriedOut("the process is gone") from error
        finally:
            t_continue_ns = time.monotonic_ns()
            _continue(self._target.tgid)
        done = self._commands.do(injection.DO_TELL)
        if t_stopped_ns is None:
            # A stop takes hold when the thread runs; one that waits for a CPU that others use goes on waiting.
            raise NotCarriedOut("the thread did not come to a stop: others used its CPU")
        held_max_ns = done.t_end_ns - t_begin_ns
        return Record(t_begin_ns, done.t_end_ns, t_continue_ns - t_stopped_ns, held_max_ns)


class Migration(_Asking):
    """The thread is moved to another CPU, and after a moment back, which is no part of the trial."""

    def inject(self, argument: int) -> Record:
        """Stays there for about ``argument`` ns."""
        target = self._target
        t_begin_ns = time.monotonic_ns()
        try:
            os.sched_setaffinity(target.tid, {target.other_cpu})
            done = self._commands.do(injection.DO_TELL)
            time.sleep(argument / NS_PER_S)
        except ProcessLookupError as error:
            raise NotCarriedOut("the thread is gone") from error
        finally:
            self.close()
        if done.cpu != target.other_cpu:
            raise NotCarriedOut(f"the thread found itself on CPU {done.cpu}")
        identity = {"cpus": [target.cpu, target.other_cpu]}
        self._commands.do(injection.DO_TELL)  # the window ends when it is back
        return Record(t_begin_ns, done.t_end_ns, 0, done.t_end_ns - t_begin_ns, identity)

    def close(self) -> None:
        """Pin the thread to its own CPU again."""
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self._target.tid, {self._target.cpu})


class Quota(_Asking):
    """The thread is moved into a cgroup, and the group's CPU time is limited for a while."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        try:
            self._group = QuotaGroup(target.tgid, target.tid)
        except QuotaUnavailable as error:
            raise Unavailable(str(error)) from error

    def inject(self, argument: int) -> Record:
        """The limit stands for about ``argument`` ns."""
        try:
            self._group.enter()
            try:
                before_ns = self._group.throttled_ns()
                begin = self._commands.do(injection.DO_TELL)
                self._group.limit(_QUOTA_NS, _QUOTA_PERIOD_NS)
                time.sleep(argument / NS_PER_S)
            finally:
                self._group.unlimit()
            end = self._commands.do(injection.DO_TELL)
            held_ns = self._group.throttled_ns() - before_ns
        except OSError as error:
            raise NotCarriedOut(f"the cgroup refused: {error.strerror}") from error
        finally:
            self._leave()
        if held_ns == 0:
            raise NotCarriedOut("the thread was not throttled: others used its CPU")
        # When the quota is there again and others have the CPU, the thread goes on waiting; nothing tells since when.
        away_ns = end.t_end_ns - begin.t_end_ns - (end.cpu_time_ns - begin.cpu_time_ns)
        return Record(begin.t_end_ns, end.t_end_ns, held_ns, max(held_ns, away_ns))

    def close(self) -> None:
        """Remove the group."""
        self._group.close()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # the thread is gone, or close does it
            self._group.leave()


class Preemption:
    """A process of its own competes for the thread's CPU."""

    def __init__(self, target: Target) -> None:
        self._process = subprocess.Popen(
            [*own_python("sysmeter.selftest.rival"), str(target.cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._write_fd, self._read_fd = self._process.stdin.fileno(), self._process.stdout.fileno()
        if os.read(self._read_fd, 64) != b"ready\n":
            self.close()
            raise Unavailable("the competing process does not start")

    def inject(self, argument: int) -> Record:
        """Use ``argument`` ns of CPU time there."""
        os.write(self._write_fd, f"{argument}\n".encode())
        words = os.read(self._read_fd, 128).split()
        if len(words) != 3:
            raise NotCarriedOut("the competing process is gone")
        t_begin_ns, t_end_ns, used_ns = map(int, words)
        return Record(t_begin_ns, t_end_ns, used_ns, used_ns, {"comm": rival.COMM, "tid": self._process.pid})

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_RIVAL_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Control:
    """Nothing is injected for a while."""

    def __init__(self, target: Target) -> None:
        self._cpu = target.cpu

    def inject(self, argument: int) -> Record:
        """For ``argument`` ns. What the kernel itself says of the host's own interrupts meanwhile is kept."""
        before = call_function_interrupts(self._cpu)
        t_begin_ns = time.monotonic_ns()
        time.sleep(argument / NS_PER_S)
        t_end_ns = time.monotonic_ns()
        after = call_function_interrupts(self._cpu)
        interrupts = None if before is None or after is None else after - before
        return Record(t_begin_ns, t_end_ns, 0, 0, {"host_call_function_interrupts": interrupts})

    def close(self) -> None:
        """Nothing to put back."""


class Collection(_Asking):
    """Another Python thread of the workload collects garbage, holding the interpreter lock."""

    def inject(self, argument: int) -> Record:
        """Generation ``argument``."""
        done = self._commands.do(injection.DO_COLLECT, argument)
        if not self._commands.words[injection.COUNT]:
            raise NotCarriedOut("another thread was collecting already")
        length_ns = done.t_end_ns - done.t_begin_ns
        identity = {"generation": argument, "tid": int(self._commands.words[injection.TID])}
        return Record(done.t_begin_ns, done.t_end_ns, min(done.cpu_time_ns, length_ns), length_ns, identity)


_KINDS: dict[str, type[Any]] = {
    plan.PREEMPTION: Preemption,
    plan.SLEEP: Sleep,
    plan.MUTEX: Mutex,
    plan.PAGE_FAULT: PageFault,
    plan.STALL: Stall,
    plan.INTERRUPT: Interrupt,
    plan.STOP: Stop,
    plan.MIGRATION: Migration,
    plan.QUOTA: Quota,
    plan.COLLECTION: Collection,
    plan.CONTROL: Control,
}


def make_injectors(causes: Iterable[str], target: Target) -> tuple[dict[str, Injector], dict[str, str]]:
    """(the injectors by cause, why others cannot be had). Whoever gets them closes them."""
    made: dict[str, Injector] = {}
    missing: dict[str, str] = {}
    for cause in causes:
        try:
            made[cause] = _KINDS[cause](target)
        except Unavailable as error:
            missing[cause] = str(error)
    return made, missing


def await_state(target: Target, state: str) -> int | None:
    """When the thread was first seen in a state, by its letter in proc_pid_stat(5); None: it did not come to it."""
    path = f"/proc/{target.tgid}/task/{target.tid}/stat"
    for _ in range(_STATE_LOOKS):
        try:
            with open(path) as file:
                found = file.read().rpartition(")")[2].split()[0]
        except OSError:
            return None
        if found == state:
            return time.monotonic_ns()
        time.sleep(_STATE_LOOK_SECONDS)
    return None


def call_function_interrupts(cpu: int, path: str = "/proc/interrupts") -> int | None:
    """How many function-call interrupts the CPU has taken; None where the kernel has no such row (other machines)."""
    with open(path) as file:
        columns = file.readline().split()
        for line in file:
            name, _, rest = line.partition(":")
            if name.strip() == "CAL":
                return int(rest.split()[columns.index(f"CPU{cpu}")])
    return None


def choose_other_cpu(cpu: int, measured: Iterable[int]) -> int:
    """A CPU that a thread of ``cpu`` may be moved to: an unmeasured one where there is one."""
    chosen = list(measured)
    others = [*host.unmeasured_cpus(chosen), *(other for other in chosen if other != cpu)]
    return others[0] if others else cpu


def _continue(tgid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(tgid, signal.SIGCONT)
