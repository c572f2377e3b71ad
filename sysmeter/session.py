"""One measured run from the observer's side: probes, workload, drain, Recording.

``probes: attach, self-test; workload: warm-up, window, end; probes: drain, detach; then the Recording``
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sysmeter import __version__, clock, host, records
from sysmeter.errors import EXIT_INTERRUPTED, KernelError, RecordingError, SysmeterError, UsageError
from sysmeter.recording import FORMAT, Recording, RecordingWriter
from sysmeter.records import CAPSTONE, LIVE, WorkloadKind
from sysmeter.workload import Workload, own_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    import numpy.typing as npt

    from sysmeter.kernel import ProbeResult, ProbeSet

PROBE_NAMES = ("context_switch", "runq_delay", "page_fault", "syscalls", "interrupts", "softirqs", "migrations")
AUDIT_PROBE = "allocations"

# The package that is started as the workload's process.
_PACKAGES = {CAPSTONE: "capstone", LIVE: "sysmeter.live"}

# The rings are drained after the run; in a long run also now and then, from a CPU that is not measured
# where there is one. Each wake-up of the observer on a measured CPU is a preemption it causes itself.
_DRAIN_SECONDS_UNMEASURED = 1.0
_DRAIN_SECONDS_MEASURED = 60.0
# An audit counts and does not time, and an allocating loop makes some 500,000 calls a second: half the ring.
_DRAIN_SECONDS_AUDIT = 0.5


class Interrupted(SysmeterError):
    """Ended by the user before there was anything to save."""

    exit_code = EXIT_INTERRUPTED


@dataclass(frozen=True)
class RunSettings:
    """What a run of the capstone is asked to do. ``seconds`` counts the warm-up; None means the whole message file.

    ``chosen_probes`` are names of the catalogue, those that they require included; they count where ``probes`` is set.
    """

    workload: ClassVar[WorkloadKind] = CAPSTONE

    feed: str
    cache_dir: str
    cpus: tuple[int, int]
    mode: str = "paced"
    rate_hz: int = 100_000
    seconds: float | None = None
    warmup_seconds: float = 1.0
    loop: bool = False
    precision_bits: int = 7
    probes: bool = True
    chosen_probes: tuple[str, ...] = PROBE_NAMES
    stop_above_ns: int | None = None
    gap_threshold_ns: int = 5_000
    instrument: int = 42
    book: str = "array"
    queue: str = "ring"
    stall: str = "none"
    stall_every_ns: int | None = None
    stall_for_ns: int = 10_000_000
    audit: bool = False

    @property
    def probe_names(self) -> tuple[str, ...]:
        """The probes that the run asks for, whether or not they can be had."""
        return tuple(dict.fromkeys((*self.chosen_probes, AUDIT_PROBE))) if self.audit else self.chosen_probes


@dataclass(frozen=True)
class LiveSettings:
    """What a run of the live workload is asked to do. ``seconds`` counts the warm-up.

    ``gc`` is a policy as :mod:`sysmeter.gcpolicy` words it, ``threads`` the number of other Python threads of the
    process, ``orders`` the size of the order cache. ``takes_commands``: see sysmeter.injection.
    """

    workload: ClassVar[WorkloadKind] = LIVE
    audit: ClassVar[bool] = False  # Python allocates all the time: there is no zero to audit

    cpus: tuple[int]
    mode: str = "paced"
    rate_hz: int = 10_000
    seconds: float = 10.0
    warmup_seconds: float = 1.0
    precision_bits: int = 7
    probes: bool = True
    gap_threshold_ns: int = 20_000
    gc: str = "default"
    threads: int = 0
    orders: int = 20_000
    takes_commands: bool = False
    chosen_probes: tuple[str, ...] = PROBE_NAMES

    @property
    def probe_names(self) -> tuple[str, ...]:
        """The probes that the run asks for, whether or not they can be had."""
        return self.chosen_probes


class UnsavedRecording(SysmeterError):
    """The run was carried out, but its Recording cannot be saved; it is at hand as ``recording``."""

    def __init__(self, cause: SysmeterError, recording: Recording) -> None:
        super().__init__(cause.message, cause.hint)
        self.recording = recording


class RunListener:
    """What a run tells while it goes on. Each method may be overridden; none is called inside the window."""

    def say(self, text: str) -> None:
        """What is being done; of no interest later."""

    def note(self, text: str) -> None:
        """Something the user should know; it is also kept in the Recording."""

    def window_begins(self, expected_ns: int, may_show_progress: bool) -> None:
        """The threads are about to start. Progress is welcome only where a CPU is not measured."""

    def window_ended(self) -> None:
        """The threads have ended."""


class Companion:
    """What else the observer has to do while the window is open. Each method may be overridden.

    It works in threads or processes of its own, on CPUs that are not measured where there are any.
    """

    def prepare(self, workload: Workload, ready: dict[str, Any]) -> None:
        """The workload waits for its start; ``ready`` is its event, see sysmeter.workload.

        Raises:
            SysmeterError: the run cannot be carried out so.
        """

    def begin(self) -> None:
        """The workload's threads have been told to start."""

    def end(self) -> dict[str, Any]:
        """The window is over, or there was none: nothing may go on after this. Returns what the Recording's meta keeps.

        Called once for each call of :meth:`prepare`, also where that one failed.
        """
        return {}


def run(
    settings: RunSettings | LiveSettings,
    out: Path,
    listener: RunListener | None = None,
    companion: Companion | None = None,
) -> Recording:
    """Carry out one run and save its Recording in ``out``; ``companion`` acts meanwhile.

    An interrupt (SIGINT, SIGTERM or SIGHUP) inside the run ends it in order, and what was measured is saved with
    ``interrupted`` set; a second one abandons it.

    Raises:
        SysmeterError: what was wrong, with a remedy. Nothing is left attached, running or half-written.
    """
    if settings.audit and not settings.probes:
        raise UsageError("an audit needs the kernel probes, which are switched off", "leave out --audit or --no-probes")
    return _Session(settings, out, listener or RunListener(), companion or Companion()).run()


_PREPARING, _IN_WINDOW, _SAVING = range(3)
_TWICE = "interrupted twice: what was measured is not saved"


class _Session:
    def __init__(
        self, settings: RunSettings | LiveSettings, out: Path, listener: RunListener, companion: Companion
    ) -> None:
        self._settings = settings
        self._companion = companion
        self._out = out
        self._listener = listener
        self._notes: list[str] = []
        self._n_signals = 0
        self._phase = _PREPARING
        self._wake_read_fd, self._wake_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._workload: Workload | None = None
        self._housekeeping = host.unmeasured_cpus(settings.cpus)
        self._observation: dict[str, Any] | None = None

    def run(self) -> Recording:
        """Everything, in order."""
        with RecordingWriter(self._out) as writer, self._signals(), self._own_affinity():
            settings = {**asdict(self._settings), "housekeeping_cpus": self._housekeeping}
            settings["cpus"] = list(self._settings.cpus)
            settings["chosen_probes"] = list(self._settings.chosen_probes)
            command = own_python(_PACKAGES[self._settings.workload])
            with Workload(command, self._note, self._listener.say, self._wake_read_fd) as workload:
                self._workload = workload
                workload.send("prepare", settings=settings)
                # The workload prepares meanwhile, in its own process; the capstone may compile for seconds.
                with self._open_probes() as probes:
                    ready = workload.receive("ready")
                    if ready is None or self._n_signals:
                        raise Interrupted("interrupted before anything was measured: nothing was saved")
                    recording = self._measure(workload, probes, ready, settings)
            try:
                writer.commit(recording)
            except RecordingError as error:
                raise UnsavedRecording(error, recording) from error
            recording.was_signalled = self._n_signals > 0
            return recording

    @contextlib.contextmanager
    def _open_probes(self) -> Iterator[ProbeSet | None]:
        if not self._settings.probes:
            yield None
            return
        from sysmeter.kernel import ProbeSet

        with ProbeSet.open(self._settings.probe_names) as probes:
            probes.self_test()
            try:
                self._observation = {"costs": probes.measure_costs(), "reason": None}
            except KernelError as error:
                self._observation = {"costs": None, "reason": error.message}
            yield probes

    def _measure(
        self, workload: Workload, probes: ProbeSet | None, ready: dict[str, Any], settings: dict[str, Any]
    ) -> Recording:
        self._check_space(ready["recording_bytes"])
        lock = self._find_interpreter_lock(ready["tgid"])
        threads: dict[str, dict[str, int]] = ready["threads"]
        clock_facts: dict[str, Any] = {**clock.describe_clock(), "checked_start": None, "checked_end": None}
        clock_facts["reason"] = "the probes are off" if probes is None else None
        if probes is not None:
            clock_facts["checked_start"], clock_facts["reason"] = probes.check_clock()
            probes.attach_process(ready["tgid"])
            probes.watch({thread["tid"]: name for name, thread in threads.items()})
        settings.update(ready.get("settings") or {})
        steal_before_ns = host.read_cpu_steal()
        workload_threads = host.thread_names(ready["tgid"])
        tracers = set(host.tracer_pids(ready["tgid"]))
        throttled_before = host.read_throttled_periods()
        cpu_before_ns = time.process_time_ns()
        observer_tids: set[int] = set()
        try:
            self._companion.prepare(workload, ready)
            done = self._await_window(workload, probes, ready["expected_ns"])
            observer_cpu_ns = time.process_time_ns() - cpu_before_ns
            throttled_after = host.read_throttled_periods()
        finally:
            observer_tids |= set(host.thread_names(os.getpid()))
            of_companion = self._companion.end()
        steal_after_ns = host.read_cpu_steal()
        workload_threads |= host.thread_names(ready["tgid"])
        done["process"]["tracer_pids"] = sorted(tracers | set(host.tracer_pids(ready["tgid"])))
        if "ring_slots" in done["run"]:
            settings["ring_slots"] = done["run"]["ring_slots"]
        arrays = workload.read_arrays(done["arrays"])
        arrays["kernel_events"] = np.empty(0, records.KERNEL_EVENT)
        statuses: dict[str, Any] = {name: _probe_off("switched off with --no-probes") for name in PROBE_NAMES}
        if probes is not None:
            is_good, reason = probes.check_clock()
            clock_facts["checked_end"] = is_good
            clock_facts["reason"] = clock_facts["reason"] or reason
            result = probes.close()
            for text in result.notes:
                self._note(text)
            arrays["kernel_events"] = result.events
            not_chosen = {name: _probe_off("not chosen with --probes") for name in PROBE_NAMES}
            statuses = {**not_chosen, **result.statuses}
            assert self._observation is not None  # as there are probes
            self._observation |= {
                "observer_cpu_ns": observer_cpu_ns,
                "programs": _timed_programs(result),
                "watched_ns": result.watched_ns,
            }
        # From here on neither bcc nor the workload is in use, and a second signal may break off at any instruction.
        self._phase = _SAVING
        if self._n_signals > 1:
            raise Interrupted(_TWICE)
        if statuses.get(AUDIT_PROBE, {}).get("status") == "ok":
            done["process"].setdefault("allocation_sources", []).append("libc")
        meta = {
            "format": FORMAT,
            "workload": self._settings.workload.name,
            "sysmeter_version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings,
            "host": host.describe_host(self._settings.cpus),
            "clock": clock_facts,
            "threads": {**threads, "tgid": ready["tgid"]},
            **({} if lock is None else {"interpreter_lock": lock}),
            "probes": statuses,
            "edges": done["edges"],
            "run": done["run"],
            "histograms": done["histograms"],
            "process": done["process"],
            "interrupted": done["run"]["stopped_by"] == "interrupt",
            "notes": self._notes,
            "throttled_periods": _newly_throttled(throttled_before, throttled_after),
            "steal_ns": {
                str(cpu): steal_after_ns[cpu] - steal_before_ns[cpu]
                for cpu in self._settings.cpus
                if cpu in steal_after_ns and cpu in steal_before_ns
            },
            "syscall_names": self._syscall_names(arrays["kernel_events"]),
            "interrupt_names": self._interrupt_names(arrays["kernel_events"]),
            "observer": {"tgid": os.getpid(), "tids": sorted(observer_tids | set(host.thread_names(os.getpid())))},
            "workload_tids": {str(tid): comm for tid, comm in workload_threads.items()},
            "observation": self._observation,
            **of_companion,
        }
        return Recording(meta, arrays)

    def _find_interpreter_lock(self, tgid: int) -> dict[str, Any] | None:
        """Where the lock lies that the workload holds; None where it holds none, or nobody watches who waits for it."""
        if not (self._settings.workload.holds_interpreter_lock and self._settings.probes):
            return None
        from sysmeter.kernel import interpreter_lock

        return dict(interpreter_lock(tgid))

    def _await_window(self, workload: Workload, probes: ProbeSet | None, expected_ns: int) -> dict[str, Any]:
        self._listener.window_begins(expected_ns, bool(self._housekeeping))
        try:
            self._phase = _IN_WINDOW
            workload.send("go")
            self._companion.begin()
            drain_seconds = _DRAIN_SECONDS_UNMEASURED if self._housekeeping else _DRAIN_SECONDS_MEASURED
            if self._settings.audit:
                drain_seconds = min(drain_seconds, _DRAIN_SECONDS_AUDIT)
            while True:
                done = workload.receive("done", drain_seconds)
                if done is not None:
                    return done
                if self._n_signals > 1:
                    raise Interrupted(_TWICE)
                if self._n_signals:
                    workload.stop()
                elif probes is not None:
                    probes.drain()
        finally:
            self._listener.window_ended()

    @staticmethod
    def _syscall_names(events: npt.NDArray[Any]) -> dict[str, str]:
        called = events["value"][events["kind"] == records.EVENT_SYSCALL]
        slept_in = events["detail"][(events["kind"] == records.EVENT_SWITCH) & (events["detail"] > 0)]
        numbers = np.unique(np.concatenate((called, slept_in.astype(np.int64) - 1)))
        if not len(numbers):
            return {}
        from sysmeter.kernel import syscall_names

        return {str(number): name for number, name in syscall_names(numbers.tolist()).items()}

    @staticmethod
    def _interrupt_names(events: npt.NDArray[Any]) -> dict[str, str]:
        is_device = (events["kind"] == records.EVENT_INTERRUPT) & (events["detail"] == records.INTERRUPT_DEVICE)
        found = {number: host.interrupt_name(number) for number in np.unique(events["value2"][is_device]).tolist()}
        return {str(number): name for number, name in found.items() if name}

    def _check_space(self, recording_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._out.absolute().parent).free
        if free_bytes < recording_bytes:
            raise RecordingError(
                f"the Recording takes up to {recording_bytes >> 20} MiB, and {self._out.absolute().parent} has"
                f" {free_bytes >> 20} MiB free",
                "free some space, name another place with --out, or make the run shorter with --seconds",
            )

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._listener.note(text)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGINT, SIGTERM and SIGHUP end the run in order.

        The handler raises nothing while bcc or the workload's pipe is in use: it wakes the wait for the
        workload, which looks at what came. Only saving is broken off by the second signal directly.
        """

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self._n_signals += 1
            if self._phase == _SAVING:
                if self._n_signals > 1:
                    raise Interrupted("interrupted while saving: nothing was saved")
                return
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write_fd, b"!")

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            os.close(self._wake_read_fd)
            os.close(self._wake_write_fd)

    @contextlib.contextmanager
    def _own_affinity(self) -> Iterator[None]:
        """Keep the observer itself off the measured CPUs where that leaves it any."""
        before = os.sched_getaffinity(0)
        if self._housekeeping:
            os.sched_setaffinity(0, self._housekeeping)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def _timed_programs(result: ProbeResult) -> dict[str, dict[str, Any]] | None:
    """Runs of each program while threads were watched; None where nobody had the kernel time them."""
    timed = {
        hook: {"probe": name, "n": runs.n, "time_ns": runs.time_ns}
        for name, by_hook in result.runs.items()
        for hook, runs in by_hook.items()
    }
    return timed if any(row["n"] for row in timed.values()) else None


def _newly_throttled(before: dict[str, int] | None, after: dict[str, int] | None) -> dict[str, int] | None:
    """Control groups that used up a CPU quota meanwhile, and in how many periods; None where that is not known."""
    if after is None:
        return None
    known = before or {}
    return {group: n - known.get(group, 0) for group, n in after.items() if n > known.get(group, 0)}


def _probe_off(reason: str) -> dict[str, Any]:
    return {"status": "off", "reason": reason, "events": None, "lost": None, "missed": None, "broken_links": None}
