"""A Recording: the directory that one run leaves, and all that reports and analyses read.

Layout of the directory (format ``sysmeter.recording/1``), for the workload ``capstone``::

    meta.json            settings, host, clock, probes, edges of the window, counts; see below
    batches.npy          records.BATCH, in the order of the run, warm-up included
    releases.npy         int64 release instants. storage "full": one a message, by message number;
                         "tail": those of the kept batches, one after the other
    release_offsets.npy  int64 per batch: where its first message's release stands in releases.npy
    decisions.npy        records.DECISION (empty with storage "tail")
    decisions.csv        the same as text, see sysmeter.decisions; not there with storage "tail". Never read back:
                         it is for `sysmeter decisions` and other programs
    gaps_feed.npy        records.GAP, by time
    gaps_strategy.npy    records.GAP, by time
    kernel_events.npy    records.KERNEL_EVENT, by time; raw, so that a better analysis can be run on it later
    collections.npy      records.COLLECTION
    think_counts.npy     int64 bucket counts of the histogram "think"
    total_counts.npy     int64 bucket counts of the histogram "total"
    time_buckets.npy     records.TIME_BUCKET (empty with storage "full")
    stalls.npy           records.STALL, the injected ones, by time

A Recording of the workload ``live`` says so in meta.json's ``workload`` and has no decisions, time_buckets and stalls.
Its one thread is called ``worker`` (gaps_worker.npy) and its histograms ``service`` and ``response``; every batch is
one message, and its release is the instant at which it was intended, or without a schedule at which it was begun.

It is written under a temporary name beside its place and renamed when complete, so a directory with the
final name is always whole. A temporary one that nobody holds any more is removed at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import decisions, hist, records
from sysmeter.errors import RecordingError
from sysmeter.records import WorkloadKind, workload_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

FORMAT = "sysmeter.recording/1"

_INT64 = np.dtype("<i8")
_CAPSTONE_ONLY: dict[str, np.dtype[Any]] = {
    "decisions": records.DECISION,
    "time_buckets": records.TIME_BUCKET,
    "stalls": records.STALL,
}


def array_dtypes(kind: WorkloadKind) -> dict[str, np.dtype[Any]]:
    """The arrays of a Recording of this kind of workload: name → dtype."""
    return {
        "batches": records.BATCH,
        "releases": _INT64,
        "release_offsets": _INT64,
        **{f"gaps_{thread}": records.GAP for thread in kind.threads},
        "kernel_events": records.KERNEL_EVENT,
        "collections": records.COLLECTION,
        **{f"{name}_counts": _INT64 for name in kind.histograms},
        **(_CAPSTONE_ONLY if kind is records.CAPSTONE else {}),
    }


ARRAYS = array_dtypes(records.CAPSTONE)

# Arrays of Recordings made before a field was named: the same bytes under another name.
_FORMER_DTYPES = {
    "kernel_events": np.dtype(
        [
            ("reserved" if name == "detail" else name, records.KERNEL_EVENT[name])
            for name in records.KERNEL_EVENT.names or ()
        ]
    )
}

DECISIONS_FILE = "decisions.csv"

_META_KEYS = (
    "format",
    "sysmeter_version",
    "created",
    "settings",
    "host",
    "clock",
    "threads",
    "probes",
    "edges",
    "run",
    "histograms",
    "process",
    "interrupted",
    "notes",
)
# And, where known:
#   "workload"          see records.WORKLOADS; the capstone without it
#   "syscall_names"     number as text → name
#   "interrupt_names"   number of a device's interrupt as text → name
#   "steal_ns"          CPU as text → time that the hypervisor reports as taken from it over the loop
#   "throttled_periods" control groups that used up a CPU quota over the loop → in how many periods; null: not known
#   "interpreter_lock"  where the lock lies that a workload in Python holds: {"address", "n_bytes", "reason"}
#   "observer"          {"tgid", "tids"} of sysmeter itself
#   "workload_tids"     tid as text → comm: all threads of the workload's process
#   "observation"       what observing costs: {"costs": probe → kernel.ProbeCost, "reason", "observer_cpu_ns",
#                       "watched_ns", "programs": tracepoint → {"probe", "n", "time_ns"} where the kernel timed them}

_TEMPORARY_PREFIX = ".sysmeter-unfinished-"


@dataclass
class Recording:
    """One run's evidence, in memory. ``arrays`` holds one array for each name of :func:`array_dtypes`."""

    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    path: Path | None = None
    was_signalled: bool = False  # somebody asked for an end when the window was over already

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.arrays[name]

    @property
    def kind(self) -> WorkloadKind:
        """The kind of workload that was measured."""
        return workload_kind(self.meta)


class RecordingWriter:
    """Reserves the place of a Recording before the run and fills it after it.

    Use as a context manager: leaving it without :meth:`commit` removes every trace.

    Raises:
        RecordingError: the place exists, cannot be written, or the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if os.path.lexists(self.path):
            raise RecordingError(f"{path} exists already", "name another directory with --out, or remove this one")
        parent = self.path.parent
        self._temporary = parent / f"{_TEMPORARY_PREFIX}{os.getpid()}-{self.path.name}"
        try:
            remove_stale(parent)
            # No other start may take the directory for a stale one before it is locked.
            with _locked(parent):
                os.mkdir(self._temporary, 0o755)
                # mkdir's mode passes through the umask; others must be able to read what root recorded.
                os.chmod(self._temporary, 0o755)
                # The lock, held by this process as long as it lives, tells a live writer from a stale one.
                self._lock_fd = os.open(self._temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise RecordingError(
                f"cannot write a Recording in {parent}: {error.strerror}",
                "name a directory that can be written with --out",
            ) from error
        self._open = True

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.discard()

    def commit(self, recording: Recording) -> Path:
        """Write everything, flush it to the disk and give the directory its final name."""
        try:
            for name, dtype in array_dtypes(recording.kind).items():
                array = np.ascontiguousarray(recording.arrays.get(name, np.empty(0, dtype)))
                if array.dtype != dtype:
                    raise RecordingError(f"{name} has dtype {array.dtype}, not {dtype}")
                self._write(f"{name}.npy", array)
            if keeps_decisions(recording.meta):
                self._write(DECISIONS_FILE, recording.arrays.get("decisions", np.empty(0, records.DECISION)))
            self._write("meta.json", recording.meta)
            os.fsync(self._lock_fd)
            if os.path.lexists(self.path):
                raise RecordingError(f"{self.path} appeared while the run was going on", "name another with --out")
            os.rename(self._temporary, self.path)
        except OSError as error:
            self.discard()
            raise RecordingError(
                f"cannot save the Recording in {self.path.parent}: {error.strerror}",
                "free some space there, or name another place with --out; nothing half-written was left",
            ) from error
        self._open = False
        os.close(self._lock_fd)
        recording.path = self.path
        return self.path

    def discard(self) -> None:
        """Remove what was written so far; harmless after :meth:`commit`."""
        if self._open:
            self._open = False
            shutil.rmtree(self._temporary, ignore_errors=True)
            os.close(self._lock_fd)

    def _write(self, name: str, content: npt.NDArray[Any] | dict[str, Any]) -> None:
        path = self._temporary / name
        with open(path, "xb") as file:
            if isinstance(content, dict):
                file.write(json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")
            elif name == DECISIONS_FILE:
                decisions.write_lines(file, content)
            else:
                # np.save reports a full disk without its errno; this writes the same bytes.
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(content))
                file.write(content.view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)


def keeps_decisions(meta: dict[str, Any]) -> bool:
    """Whether a run kept its decisions: no file, unlike an empty one, never means that there was none."""
    return workload_kind(meta) is records.CAPSTONE and (meta["run"] or {}).get("storage") != "tail"


def remove_stale(parent: Path) -> list[Path]:
    """Remove the temporary Recordings in ``parent`` whose writers are gone; returns what was removed."""
    removed = []
    with _locked(parent):
        for path in parent.glob(f"{_TEMPORARY_PREFIX}*"):
            with contextlib.suppress(OSError):
                lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                    removed.append(path)
                finally:
                    os.close(lock_fd)
    return removed


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def load(path: Path) -> Recording:
    """Read and validate a Recording; arrays are memory-mapped where they are not empty.

    Raises:
        RecordingError: not a Recording, of another format, or damaged.
    """
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise RecordingError(f"{path} {what}", "name the directory that `sysmeter run` or `live` saved")
    try:
        meta = json.loads((path / "meta.json").read_text())
    except OSError as error:
        raise RecordingError(
            f"{path} is not a Recording, or cannot be read: meta.json: {error.strerror}",
            "name the directory that `sysmeter run` or `live` saved",
        ) from error
    except ValueError as error:
        raise RecordingError(f"{path} is damaged: meta.json: {error}") from error
    found = meta.get("format") if isinstance(meta, dict) else None
    if found != FORMAT:
        raise RecordingError(
            f"{path} has format {found!r}, and this sysmeter reads {FORMAT!r}", "use the sysmeter that recorded it"
        )
    missing = [key for key in _META_KEYS if key not in meta]
    if missing:
        raise RecordingError(f"{path} is damaged: meta.json lacks {', '.join(missing)}")
    workload = meta.get("workload", records.CAPSTONE.name)
    if not isinstance(workload, str) or workload not in records.WORKLOADS:
        raise RecordingError(
            f"{path} is of a workload {workload!r}, which this sysmeter does not know",
            "use the sysmeter that recorded it",
        )
    kind = workload_kind(meta)
    arrays = {name: _load_array(path / f"{name}.npy", dtype) for name, dtype in array_dtypes(kind).items()}
    if len(arrays["release_offsets"]) != len(arrays["batches"]):
        raise RecordingError(f"{path} is damaged: release_offsets and batches differ in length")
    _check_histograms(path, kind, meta["histograms"], arrays)
    return Recording(meta, arrays, path)


def _check_histograms(path: Path, kind: WorkloadKind, described: Any, arrays: dict[str, npt.NDArray[Any]]) -> None:
    for name in kind.histograms:
        counts = arrays[f"{name}_counts"]
        try:
            sub_bits, count = int(described[name]["sub_bits"]), int(described[name]["count"])
            is_sound = len(counts) == hist.n_buckets(sub_bits) and int(counts.sum()) == count
        except (KeyError, TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise RecordingError(f"{path} is damaged: the histogram {name} and its description disagree")


def _load_array(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        # mmap cannot map an empty array, and a truncated file fails here rather than at its first use.
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a whole array"
            raise RecordingError(f"{path.parent} cannot be read or is damaged: {path.name}: {reason}") from error
    if path.stem in _FORMER_DTYPES and array.dtype == _FORMER_DTYPES[path.stem]:
        array = array.view(dtype)
    if array.dtype != dtype or array.ndim != 1:
        raise RecordingError(f"{path.parent} is damaged: {path.name} holds {array.dtype}, not {dtype}")
    return array
