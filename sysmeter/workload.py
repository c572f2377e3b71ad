"""The protocol between the observer and a workload. Nothing else of a workload is known to the observer.

The workload is a child process. It reads one JSON object a line from the *command* pipe and writes one a
line to the *report* pipe; both descriptors are named on its command line. Its bulk results lie in shared
memory of its own (memfds), which the observer opens through ``/proc/<tgid>/fd/<fd>``::

    observer                                   workload
    ─────────                                  ─────────
    {"command": "prepare", "settings": {…}} →
                                             ← {"event": "ready", "tgid": …, "threads": {name: {"tid": …, "cpu": …}},
                                                "control": {"fd": …, "stop_offset": bytes}, "expected_ns": …,
                                                "recording_bytes": …, "settings": {…}}
    (the probes are aimed at the tids)
    {"command": "go"}                       →
                                             ← {"event": "done", "arrays": {name: {"fd", "offset", "dtype", "length"}},
                                                "edges": {…}, "run": {…}, "histograms": {…}, "process": {…}}
    (the probes are drained, the arrays copied)
    {"command": "exit"}                     →
                                             ← (end of file)

In place of an event the workload may report ``{"event": "error", "message", "hint", "exit_code"}``. At any time
it may send ``{"event": "note", "text"}``, which the user should know and the Recording keeps, and
``{"event": "progress", "text"}``, which is of no interest later. Which threads there are and what the histograms are
called depends on the kind of workload (:data:`sysmeter.records.WORKLOADS`); array names and dtypes are those of
:func:`sysmeter.recording.array_dtypes`. The ready event's ``settings``, which may be left out, are what the workload
found out and adds to the settings it was given. ``edges``, ``run``, ``histograms`` and ``process`` go into the
Recording's meta.json as they are. ``control`` names one int64 word: the observer stores 1 there, and the threads end
their window soon and in order. A workload dies with its parent (PR_SET_PDEATHSIG). The ready event of one
that can be asked to hold its own thread has ``commands``, an array described as in ``arrays``, and perhaps
``wake_fd``, a pipe to write a byte to after each command: see :mod:`sysmeter.injection`.

In ``process``, ``allocation_sources`` names the workload's own counters of allocations, to which the observer adds
its own; ``loop_ns`` is the interval in which the measured threads allocate nothing that those leave out.

:class:`Workload` is the observer's side; :func:`serve` and :class:`Reporter` are the workload's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sysmeter.errors import EXIT_ERROR, SysmeterError, WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

_PR_SET_PDEATHSIG = 1
_EXIT_PATIENCE_SECONDS = 5.0
_KILL_AFTER_SECONDS = 0.2


class Workload:
    """A workload process as the observer sees it. Use as a context manager; leaving it ends the process."""

    def __init__(
        self,
        command: Sequence[str],
        on_note: Callable[[str], None],
        on_progress: Callable[[str], None] | None = None,
        wake_fd: int | None = None,
    ) -> None:
        """Start ``command``. :meth:`receive` also returns, with None, when ``wake_fd`` becomes readable."""
        self._wake_fd = wake_fd
        self._is_running = False
        self._listeners = {"note": on_note, "progress": on_progress or (lambda _text: None)}
        self._stop_word: npt.NDArray[np.int64] | None = None
        self._buffer = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        command_read, self._command_fd = os.pipe()
        self._report_fd, report_write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(command_read), str(report_write), str(os.getpid())],
                pass_fds=(command_read, report_write),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                # A session of its own: the terminal's Ctrl-C is for the observer, which ends the run in order.
                start_new_session=True,
            )
        except OSError as error:
            raise WorkloadError(f"the workload cannot be started: {error.strerror}") from error
        finally:
            os.close(command_read)
            os.close(report_write)

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def tgid(self) -> int:
        """Process id of the workload."""
        return self._process.pid

    def send(self, command: str, **fields: Any) -> None:
        """Send one command. A workload that is gone shows at the next :meth:`receive`."""
        self._is_running = command == "go"
        line = json.dumps({"command": command, **fields}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._command_fd, line)

    def receive(self, event: str, timeout_seconds: float | None = None) -> dict[str, Any] | None:
        """Wait for an event; None when ``timeout_seconds`` pass first, or at the wake descriptor. Notes are passed on.

        Raises:
            WorkloadError: the workload reported an error, died, or said something else.
        """
        while True:
            while b"\n" not in self._buffer:
                sources = [self._report_fd] if self._wake_fd is None else [self._report_fd, self._wake_fd]
                ready, _, _ = select.select(sources, [], [], timeout_seconds)
                if self._wake_fd in ready:
                    os.read(self._wake_fd, 64)
                    return None
                if not ready:
                    return None
                chunk = os.read(self._report_fd, 1 << 16)
                if not chunk:
                    raise self._death()
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if message["event"] in self._listeners:
                self._listeners[message["event"]](message["text"])
            elif message["event"] == "error":
                error = WorkloadError(message["message"], message["hint"])
                error.exit_code = message["exit_code"]
                raise error
            elif message["event"] == event:
                if "control" in message:
                    self._map_control(message["control"])
                self._is_running = False
                return message
            else:
                raise WorkloadError(f"the workload said {message['event']!r} where {event!r} was due")

    def stop(self) -> None:
        """Ask the threads to end their window; harmless before "ready" and after "done"."""
        if self._stop_word is not None:
            self._stop_word[0] = 1

    def read_arrays(self, described: dict[str, dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a "done" event, copied out of the workload's memory."""
        arrays = {}
        for name, where in described.items():
            dtype = np.dtype([tuple(field) for field in where["dtype"]]) if isinstance(where["dtype"], list) else None
            dtype = dtype or np.dtype(where["dtype"])
            length = where["length"]
            if length == 0:
                arrays[name] = np.empty(0, dtype)
                continue
            fd = self._open_shared(where["fd"])
            try:
                size = os.fstat(fd).st_size
                if where["offset"] + length * dtype.itemsize > size:
                    raise WorkloadError(f"the workload's array {name} lies outside its memory")
                with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
                    view = np.frombuffer(memory, dtype, length, where["offset"])
                    arrays[name] = view.copy()
                    del view
            finally:
                os.close(fd)
        return arrays

    def share_array(self, where: dict[str, Any]) -> npt.NDArray[Any]:
        """One of the workload's arrays in place, to be read and written; it outlives the workload."""
        dtype, length, offset = np.dtype(where["dtype"]), where["length"], where["offset"]
        page = offset // mmap.PAGESIZE * mmap.PAGESIZE
        fd = self._open_shared(where["fd"])
        try:
            if offset + length * dtype.itemsize > os.fstat(fd).st_size:
                raise WorkloadError("an array that the workload shares lies outside its memory")
            memory = mmap.mmap(fd, offset + length * dtype.itemsize - page, offset=page)
        finally:
            os.close(fd)
        return np.frombuffer(memory, dtype, length, offset - page)

    def open_pipe(self, fd: int) -> int:
        """A descriptor of our own for the end of a pipe to which the workload's threads listen; to be closed."""
        try:
            return os.open(f"/proc/{self.tgid}/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkloadError(f"the workload's pipe cannot be opened: {error.strerror}") from error

    def close(self) -> None:
        """End the workload: by its command, by SIGKILL where it does not follow. Idempotent."""
        if self._command_fd < 0:
            return
        # In the window its main thread waits for the others, and before "ready" it may compile for seconds;
        # neither would read the command soon.
        is_listening = self._stop_word is not None and not self._is_running
        if self._process.poll() is None:
            self.stop()
            self.send("exit")
        os.close(self._command_fd)
        self._command_fd = -1
        try:
            self._process.wait(_EXIT_PATIENCE_SECONDS if is_listening else _KILL_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stop_word = None
        os.close(self._report_fd)
        self._stderr.close()

    def _open_shared(self, fd: int) -> int:
        try:
            return os.open(f"/proc/{self.tgid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise WorkloadError(f"the workload's shared memory cannot be opened: {error.strerror}") from error

    def _map_control(self, control: dict[str, Any]) -> None:
        fd = self._open_shared(control["fd"])
        try:
            page = control["stop_offset"] // mmap.PAGESIZE * mmap.PAGESIZE
            memory = mmap.mmap(fd, mmap.PAGESIZE, offset=page)
        finally:
            os.close(fd)
        self._stop_word = np.frombuffer(memory, "<i8", 1, control["stop_offset"] - page)

    def _death(self) -> WorkloadError:
        code = self._process.wait()
        said = _tail_of(self._stderr)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = f"it said: {said}" if said else "nothing was saved; see dmesg if the kernel ran out of memory"
        return WorkloadError(f"the workload {how} before it was done", hint)


class Reporter:
    """A workload's side of the protocol."""

    def __init__(self, command_fd: int, report_fd: int) -> None:
        self._commands: IO[bytes] = os.fdopen(command_fd, "rb", buffering=0)
        self._report_fd = report_fd

    def receive(self, command: str) -> dict[str, Any] | None:
        """Wait for a command; None when the observer is gone or sends another one ("exit")."""
        line = self._commands.readline()
        message: dict[str, Any] = json.loads(line) if line else {"command": "exit"}
        return message if message["command"] == command else None

    def report(self, event: str, **fields: Any) -> None:
        """Send one event to the observer."""
        os.write(self._report_fd, json.dumps({"event": event, **fields}).encode() + b"\n")

    def note(self, text: str) -> None:
        """Tell what the user should know, now and later."""
        self.report("note", text=text)

    def progress(self, text: str) -> None:
        """Tell what is being done."""
        self.report("progress", text=text)


def serve(carry_out: Callable[[Reporter], None]) -> int:
    """The main function of a workload's process, started with COMMAND_FD REPORT_FD PARENT_TGID; its exit code.

    ``carry_out`` receives the commands and reports the events. An error of sysmeter's that it raises is reported.
    """
    command_fd, report_fd, parent_tgid = (int(word) for word in sys.argv[1:4])
    die_with_parent()
    if os.getppid() != parent_tgid:
        return EXIT_ERROR  # the parent died before the kernel was told
    reporter = Reporter(command_fd, report_fd)
    try:
        carry_out(reporter)
    except SysmeterError as error:
        with contextlib.suppress(OSError):
            reporter.report("error", message=error.message, hint=error.hint, exit_code=error.exit_code)
    return 0


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def own_python(module: str) -> list[str]:
    """The command that runs ``module`` with this very Python, as isolated from the user's paths as it is itself."""
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", module]


def _tail_of(file: IO[bytes], n_bytes: int = 2000) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - n_bytes))
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
