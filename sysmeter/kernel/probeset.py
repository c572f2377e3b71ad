"""The probes of one run: open, test, aim at threads, drain, close. What the rest of sysmeter knows of BPF."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from sysmeter import clock
from sysmeter.errors import KernelError
from sysmeter.kernel import progstats, source
from sysmeter.kernel.catalogue import CATALOGUE, DEFAULT_PROBES, Hook, probe_number, with_required
from sysmeter.kernel.cost import ProbeCost, measure_costs
from sysmeter.kernel.privileges import require_privileges
from sysmeter.kernel.program import Program
from sysmeter.kernel.progstats import Runs
from sysmeter.kernel.selftest import SelfTestOutcome, compare_clocks, run_self_test
from sysmeter.records import KERNEL_EVENT

DEFAULT_RING_BYTES = 16 << 20
DEFAULT_SYSCALL_RING_BYTES = 4 << 20
DEFAULT_ALLOCATION_RING_BYTES = 64 << 20

# More events than these are not kept, so that a run of any length has a bound: 352 MB.
MAX_EVENTS = 4_000_000

Events = npt.NDArray[np.void]


class ProbeStatus(TypedDict):
    """State of one probe. The four numbers are None where it is not ``ok``.

    ``events``: records received. ``lost``: records that found no room in a ring, or whose follow-up failed.
    ``missed``: times the kernel skipped one of its programs, for any thread of the host, while threads were
    watched; None on a kernel that does not count them. ``broken_links``: switches on a watched thread's CPU
    that no BPF program saw; None where it has no meaning. Losses of a required probe are in the numbers of
    the one that requires it.
    """

    status: str
    reason: str | None
    events: int | None
    lost: int | None
    missed: int | None
    broken_links: int | None


@dataclass(frozen=True)
class ProbeResult:
    """What the probes saw.

    ``events``: shape (n,), dtype ``records.KERNEL_EVENT``, by time. ``statuses``: one a probe asked for. ``runs``:
    per probe and tracepoint, as text, the runs of its program while threads were watched, for whatever thread and on
    whatever CPU; empty unless the kernel timed them all the while (see :func:`progstats.timed_runs`).
    ``watched_ns``: how long threads were watched.
    """

    events: Events
    statuses: dict[str, ProbeStatus]
    notes: list[str] = field(default_factory=list)
    runs: dict[str, dict[str, Runs]] = field(default_factory=dict)
    watched_ns: int = 0


class ProbeSet:
    """Attached probes. Watches nothing until :meth:`watch`. A context manager that closes itself.

    ``notes`` holds sentences for the user (a tracefs that had to be mounted, for one). Methods may be
    called from different threads. Nothing stays attached after :meth:`close`, nor after the death of the
    process.
    """

    def __init__(self, names: tuple[str, ...], program: Program) -> None:
        self._names = names
        self._program = program
        self._unavailable = dict(program.unavailable)
        self.notes = list(program.notes)
        self._watched: dict[int, str] = {}
        self._process: int | None = None
        self._chunks: list[Events] = []
        self._missed: dict[Hook, int | None] = dict.fromkeys(program.hook_fds, 0)
        self._misses_before: dict[Hook, int | None] = {}
        self._runs = dict.fromkeys(program.hook_fds, Runs(0, 0))
        self._runs_before: dict[Hook, Runs] = {}
        self._t_watched_ns = 0
        self._watched_ns = 0
        self._result: ProbeResult | None = None
        self._is_full = False
        self._lock = threading.RLock()
        version = progstats.kernel_version()
        unknown = {progstats.why_misses_unknown(version, hook.raw, hook.uprobe) for hook in program.hook_fds} - {None}
        self.notes += [f"missed events cannot be counted: {reason}" for reason in sorted(filter(None, unknown))]

    @classmethod
    def open(
        cls,
        names: Iterable[str] = DEFAULT_PROBES,
        ring_bytes: int = DEFAULT_RING_BYTES,
        syscall_ring_bytes: int = DEFAULT_SYSCALL_RING_BYTES,
        allocation_ring_bytes: int = DEFAULT_ALLOCATION_RING_BYTES,
    ) -> ProbeSet:
        """Compile, load and attach the probes ``names``.

        Args:
            names: probes of the catalogue. One that this kernel cannot have becomes ``unavailable``.
            ring_bytes: room for events between two drains, 88 bytes each, in all but the two below.
            syscall_ring_bytes: the same for system calls.
            allocation_ring_bytes: the same for allocations, where that probe is asked for.

        Raises:
            KernelError: not root, a capability or bcc missing, tracefs out of reach, BPF refused, or no
            probe usable.
        """
        chosen = tuple(dict.fromkeys(names))
        with_required(chosen)
        require_privileges()
        return cls(chosen, Program(chosen, ring_bytes, syscall_ring_bytes, allocation_ring_bytes))

    @property
    def unavailable(self) -> dict[str, str]:
        """Probes that cannot be used, with the reason of each."""
        return {name: reason for name, reason in self._unavailable.items() if name in self._names}

    def self_test(self) -> SelfTestOutcome:
        """Provoke one event for each probe; see :mod:`sysmeter.kernel.selftest`.

        A probe that fails becomes ``unavailable``. No event and no count of the test stays behind.

        Raises:
            KernelError: a thread is being watched already, or the kernel refused.
        """
        with self._lock:
            self._require_open()
            if self._watched:
                raise KernelError("the self-test must come before the first watched thread")
            usable = [name for name in self._program.attached if name not in self._unavailable]
            outcome = run_self_test(self._program, usable, self._take)
            self._unavailable.update(outcome.unavailable)
            self._program.reset_counters()
            return outcome

    def measure_costs(self) -> dict[str, ProbeCost]:
        """What an event of each usable probe costs; see :mod:`sysmeter.kernel.cost`. After the self-test.

        No event and no count of the measurement stays behind.

        Raises:
            KernelError: a thread is being watched already, or this kernel does not time programs.
        """
        with self._lock:
            self._require_open()
            if self._watched:
                raise KernelError("the probes' costs must be measured before the first watched thread")
            usable = [name for name in self._program.attached if name not in self._unavailable]
            try:
                return measure_costs(self._program, usable, self._take)
            finally:
                self._program.reset_counters()

    def check_clock(self) -> tuple[bool, str | None]:
        """(True, None) if BPF's clock lies between two reads of CLOCK_MONOTONIC here, else (False, reason).

        Touches neither events nor counters, and may be called while threads are watched.
        """
        with self._lock:
            self._require_open()
            return compare_clocks(self._program)

    def attach_process(self, tgid: int) -> None:
        """Attach the probes of functions to process ``tgid``, whose threads alone they can see. Before :meth:`watch`.

        A process that they cannot be attached to makes them ``unavailable``. Probes of tracepoints need no
        such step, and without others this does nothing.

        Raises:
            KernelError: a thread is being watched already.
        """
        with self._lock:
            self._require_open()
            if self._watched:
                raise KernelError("the probes are attached to a process before its first thread is watched")
            names = self._usable_at_functions()
            try:
                self._program.attach_process(tgid, names)
            except KernelError as error:
                self._unavailable.update(dict.fromkeys(names, error.message))
            else:
                self._process = tgid

    def watch(self, threads: Mapping[int, str]) -> None:
        """Add threads to the filter: tid (in the host's pid namespace) → name.

        A thread of another process than the probes of functions are attached to makes these ``unavailable``:
        a count that leaves out its calls would be no count.

        Raises:
            KernelError: no such thread, or the filter is full.
        """
        with self._lock:
            self._require_open()
            if any(not Path(f"/proc/{self._process}/task/{tid}").exists() for tid in threads):
                blind = "it is not attached to the process of each watched thread"
                self._unavailable.update(dict.fromkeys(self._usable_at_functions(), blind))
            usable = [name for name in self._program.attached if name not in self._unavailable]
            for tid, name in threads.items():
                if tid <= 0 or not Path(f"/proc/{tid}").exists():
                    raise KernelError(f"there is no thread {tid} ({name}) to watch")
            if not self._watched:
                self._misses_before = self._program.misses()
                self._runs_before = self._program.runs()
                self._t_watched_ns = clock.now_ns()
            for tid, name in threads.items():
                self._watched[tid] = name
                if usable:
                    self._program.watch(tid, usable)

    def unwatch_all(self) -> None:
        """Close the filter. On return no program is still at work on an event of a thread watched before."""
        with self._lock:
            self._require_open()
            if not self._watched:
                return
            self._program.unwatch(self._watched)
            self._watched.clear()
            for hook, after in self._program.misses().items():
                before, so_far = self._misses_before[hook], self._missed[hook]
                known = after is not None and before is not None and so_far is not None
                self._missed[hook] = so_far + after - before if known else None  # type: ignore[operator]
            self._watched_ns += clock.now_ns() - self._t_watched_ns
            for hook, runs in self._program.runs().items():
                self._runs[hook] = self._runs[hook].plus(runs - self._runs_before[hook])

    def drain(self) -> int:
        """Move what the rings hold into memory, so that they have room again; the number of events moved."""
        with self._lock:
            self._require_open()
            events = self._take()
            if events.size:
                self._keep(events)
            return int(events.size)

    def close(self) -> ProbeResult:
        """Stop watching, drain, read the counters, detach everything. Later calls give the same result.

        Raises:
            KernelError: the counters or a ring could not be read; all is detached even so.
        """
        with self._lock:
            if self._result is None:
                failed = dict.fromkeys(self._names, "its events and counters could not be read at the end")
                result = ProbeResult(
                    np.zeros(0, dtype=KERNEL_EVENT),
                    {name: _not_ok(why) for name, why in failed.items()},
                    self.notes,
                )
                try:
                    self.unwatch_all()
                    self.drain()
                    result = self._collect()
                except OSError as error:
                    raise KernelError(f"the probes' counters cannot be read: {error.strerror}") from error
                finally:
                    self._result = result
                    self._program.close()
            return self._result

    def __enter__(self) -> ProbeSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _usable_at_functions(self) -> list[str]:
        usable = [name for name in self._program.attached if name not in self._unavailable]
        return [name for name in usable if any(hook.uprobe for hook in CATALOGUE[name].hooks)]

    def _require_open(self) -> None:
        if self._result is not None:
            raise KernelError("the probes are closed")

    def _keep(self, events: Events) -> None:
        """Hold events up to :data:`MAX_EVENTS`; what is beyond counts as lost, as the difference to the counters."""
        room = MAX_EVENTS - sum(chunk.size for chunk in self._chunks)
        if events.size > room and not self._is_full:
            self._is_full = True
            self.notes.append(
                f"more than {MAX_EVENTS:,} kernel events: those after {int(events['t_ns'][room]):,} ns on the"
                " monotonic clock were not kept and count as lost"
            )
        self._chunks.append(events[:room])

    def _take(self) -> Events:
        return np.concatenate([ring.drain() for ring in self._program.rings])

    def _collect(self) -> ProbeResult:
        events = np.concatenate([np.zeros(0, dtype=KERNEL_EVENT), *self._chunks])
        self._chunks.clear()
        events = events[np.argsort(events["t_ns"], kind="stable")]
        counters = self._program.counters()
        statuses = {name: self._status(name, events, counters) for name in self._names}
        return ProbeResult(events, statuses, self.notes, self._timed(counters), self._watched_ns)

    def _timed(self, counters: npt.NDArray[np.uint64]) -> dict[str, dict[str, Runs]]:
        runs = {
            name: {str(hook): self._runs[hook] for hook in CATALOGUE[name].hooks if hook in self._runs}
            for name in self._program.attached
        }
        for name, by_hook in runs.items():
            # Another process may have had all programs timed for a moment of ours; then events outnumber the runs.
            n_emitted = int(counters[probe_number(name), source.COUNTER_EVENTS])
            if sum(part.n for part in by_hook.values()) < CATALOGUE[name].n_programs * n_emitted:
                return {}
        return runs

    def _status(self, name: str, events: Events, counters: npt.NDArray[np.uint64]) -> ProbeStatus:
        if name in self._unavailable:
            return _not_ok(self._unavailable[name])
        lost = 0
        missed: int | None = 0
        for part in with_required([name]):
            row = counters[probe_number(part)]
            received = int(np.count_nonzero(events["kind"] == CATALOGUE[part].kind))
            emitted = int(row[source.COUNTER_EVENTS])
            # A record counted but not received should not exist; if it does, it is lost, not forgotten.
            lost += int(row[source.COUNTER_LOST]) + int(row[source.COUNTER_FAILED]) + max(0, emitted - received)
            for hook in CATALOGUE[part].hooks:
                skips = self._missed.get(hook, 0)  # an optional one need not be there
                missed = None if missed is None or skips is None else missed + skips
        chain = counters[probe_number("context_switch"), source.COUNTER_BROKEN_LINKS]
        return ProbeStatus(
            status="ok",
            reason=None,
            events=int(np.count_nonzero(events["kind"] == CATALOGUE[name].kind)),
            lost=lost,
            missed=missed,
            broken_links=int(chain) if CATALOGUE[name].chained else None,
        )


def _not_ok(reason: str) -> ProbeStatus:
    return ProbeStatus(status="unavailable", reason=reason, events=None, lost=None, missed=None, broken_links=None)
