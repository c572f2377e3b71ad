"""One measured run from the observer's side: probes, workload, drain, Recording.

``probes attach → self-test → workload warms up → window → workload ends → drain, detach → Recording``
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sysmeter import __version__, clock, host, records
from sysmeter.errors import EXIT_INTERRUPTED, RecordingError, SysmeterError, UsageError
from sysmeter.recording import FORMAT, Recording, RecordingWriter
from sysmeter.records import CAPSTONE, LIVE, WorkloadKind
from sysmeter.workload import Workload, own_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    import numpy.typing as npt

    from sysmeter.kernel import ProbeSet

PROBE_NAMES = ("context_switch", "runq_delay", "page_fault", "syscalls")
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
    """What a run of the capstone is asked to do. ``seconds`` counts the warm-up; None means the whole message file."""

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
        return (*PROBE_NAMES, AUDIT_PROBE) if self.audit else PROBE_NAMES


@dataclass(frozen=True)
class LiveSettings:
    """What a run of the live workload is asked to do. ``seconds`` counts the warm-up.

    ``gc`` is a policy as :mod:`sysmeter.gcpolicy` words it, ``threads`` the number of other Python threads of the
    process, ``orders`` the size of the order cache.
    """

    workload: ClassVar[WorkloadKind] = LIVE
    audit: ClassVar[bool] = False  # Python allocates all the time: there is no zero to audit
    probe_names: ClassVar[tuple[str, ...]] = PROBE_NAMES

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


def run(settings: RunSettings | LiveSettings, out: Path, listener: RunListener | None = None) -> Recording:
    """Carry out one run and save its Recording in ``out``.

    An interrupt (SIGINT, SIGTERM or SIGHUP) inside the run ends it in order, and what was measured is saved with
    ``interrupted`` set; a second one abandons it.

    Raises:
        SysmeterError: what was wrong, with a remedy. Nothing is left attached, running or half-written.
    """
    if settings.audit and not settings.probes:
        raise UsageError("an audit needs the kernel probes, which are switched off", "leave out --audit or --no-probes")
    return _Session(settings, out, listener or RunListener()).run()


_PREPARING, _IN_WINDOW, _SAVING = range(3)


class _Session:
    def __init__(self, settings: RunSettings | LiveSettings, out: Path, listener: RunListener) -> None:
        self._settings = settings
        self._out = out
        self._listener = listener
        self._notes: list[str] = []
        self._n_signals = 0
        self._phase = _PREPARING
        self._wake_read_fd, self._wake_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._workload: Workload | None = None
        self._housekeeping = host.unmeasured_cpus(settings.cpus)

    def run(self) -> Recording:
        """Everything, in order."""
        with RecordingWriter(self._out) as writer, self._signals(), self._own_affinity():
            settings = {**asdict(self._settings), "housekeeping_cpus": self._housekeeping}
            settings["cpus"] = list(self._settings.cpus)
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
        tracers = set(host.tracer_pids(ready["tgid"]))
        done = self._await_window(workload, probes, ready["expected_ns"])
        self._phase = _SAVING
        steal_after_ns = host.read_cpu_steal()
        done["process"]["tracer_pids"] = sorted(tracers | set(host.tracer_pids(ready["tgid"])))
        if "ring_slots" in done["run"]:
            settings["ring_slots"] = done["run"]["ring_slots"]
        arrays = workload.read_arrays(done["arrays"])
        arrays["kernel_events"] = np.empty(0, records.KERNEL_EVENT)
        statuses: dict[str, Any] = {name: _probe_off() for name in self._settings.probe_names}
        if probes is not None:
            is_good, reason = probes.check_clock()
            clock_facts["checked_end"] = is_good
            clock_facts["reason"] = clock_facts["reason"] or reason
            result = probes.close()
            for text in result.notes:
                self._note(text)
            arrays["kernel_events"] = result.events
            statuses = dict(result.statuses)
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
            "steal_ns": {
                str(cpu): steal_after_ns[cpu] - steal_before_ns[cpu]
                for cpu in self._settings.cpus
                if cpu in steal_after_ns and cpu in steal_before_ns
            },
            "syscall_names": self._syscall_names(arrays["kernel_events"]),
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
            drain_seconds = _DRAIN_SECONDS_UNMEASURED if self._housekeeping else _DRAIN_SECONDS_MEASURED
            if self._settings.audit:
                drain_seconds = min(drain_seconds, _DRAIN_SECONDS_AUDIT)
            while True:
                done = workload.receive("done", drain_seconds)
                if done is not None:
                    return done
                if self._n_signals > 1:
                    raise Interrupted("interrupted twice: what was measured is not saved")
                if self._n_signals:
                    workload.stop()
                elif probes is not None:
                    probes.drain()
        finally:
            self._listener.window_ended()

    @staticmethod
    def _syscall_names(events: npt.NDArray[Any]) -> dict[str, str]:
        numbers = np.unique(events["value"][events["kind"] == records.EVENT_SYSCALL])
        if not len(numbers):
            return {}
        from sysmeter.kernel import syscall_names

        return {str(number): name for number, name in syscall_names(numbers.tolist()).items()}

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


def _probe_off() -> dict[str, Any]:
    reason = "switched off with --no-probes"
    return {"status": "off", "reason": reason, "events": None, "lost": None, "missed": None, "broken_links": None}
