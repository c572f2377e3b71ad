"""The selected probes as one BPF program: composed, compiled, attached, read, detached."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sysmeter.errors import KernelError
from sysmeter.kernel import bpfsys, progstats, source, uprobe
from sysmeter.kernel.bccload import LoadedProgram, ProbeLoadError
from sysmeter.kernel.catalogue import CATALOGUE, PROBE_NAMES, Hook, spread_unavailability, with_required
from sysmeter.kernel.ring import RingReader
from sysmeter.kernel.tracefs import ensure_tracefs, has_tracepoint


class Program:
    """All that is loaded in the kernel for one set of probes.

    ``unavailable`` maps a probe to the reason why it is not attached; ``notes`` holds sentences for the user.
    """

    def __init__(
        self, names: Iterable[str], ring_bytes: int, syscall_ring_bytes: int, allocation_ring_bytes: int
    ) -> None:
        """Compile, load and attach.

        Args:
            names: probes wanted; what they require is added. ring_bytes, syscall_ring_bytes, allocation_ring_bytes: at
            least this much for each ring, rounded up to what the kernel allows.

        Raises:
            KernelError: tracefs cannot be reached, bcc or the kernel refused, or no probe could be attached.
        """
        self.notes: list[str] = []
        self.unavailable: dict[str, str] = {}
        self.hook_fds: dict[Hook, int] = {}
        self.rings: list[RingReader] = []
        self._uprobe_fds: list[int] = []
        self._absent: set[Hook] = set()
        tracefs, note = ensure_tracefs()
        if note:
            self.notes.append(note)
        wanted = with_required(names)
        for name in wanted:
            tracepoints = [hook for hook in CATALOGUE[name].hooks if not hook.uprobe]
            absent = [hook for hook in tracepoints if not has_tracepoint(tracefs, hook.category, hook.event)]
            needed = [hook for hook in absent if not hook.optional]
            if needed:
                self.unavailable[name] = f"this kernel has no tracepoint {needed[0]}"
            self._absent.update(absent)
        spread_unavailability(self.unavailable, wanted)
        self.attached = tuple(name for name in wanted if name not in self.unavailable)
        if not self.attached:
            raise KernelError("no probe can be attached: " + "; ".join(self.unavailable.values()))
        self.n_cpus = bpfsys.n_possible_cpus()
        ring_pages = source.ring_pages(ring_bytes, mmap.PAGESIZE)
        syscall_pages = source.ring_pages(syscall_ring_bytes, mmap.PAGESIZE) if "syscalls" in self.attached else 1
        allocation_pages = source.ring_pages(allocation_ring_bytes, mmap.PAGESIZE)
        text = source.compose(
            self.attached,
            n_cpus=self.n_cpus,
            event_ring_pages=ring_pages,
            syscall_ring_pages=syscall_pages,
            allocation_ring_pages=allocation_pages,
        )
        self._loaded = LoadedProgram(text, {"PAGE_SIZE": mmap.PAGESIZE})
        try:
            self._attach_all()
            spread_unavailability(self.unavailable, wanted)
            self.attached = tuple(name for name in wanted if name not in self.unavailable)
            if not self.attached:
                raise ProbeLoadError(
                    "no probe can be attached: " + "; ".join(self.unavailable.values()), detail=self._details
                )
            for ring, pages in (
                ("event_ring", ring_pages),
                ("syscall_ring", syscall_pages),
                ("allocation_ring", allocation_pages),
            ):
                map_fd = self._loaded.map_fd(ring)
                if map_fd >= 0:
                    self.rings.append(RingReader(map_fd, pages * mmap.PAGESIZE))
            self._look_fd = self._loaded.load_raw("take_look")
        except BaseException:
            self.close()
            raise

    def _attach_all(self) -> None:
        self._details = ""
        for name in self.attached:
            for hook in CATALOGUE[name].hooks:
                if hook in self._absent:
                    continue
                try:
                    if hook.uprobe:
                        self.hook_fds[hook] = self._loaded.load_uprobe(hook.function)
                    else:
                        self.hook_fds[hook] = self._loaded.attach(hook.function, hook.category, hook.event, hook.raw)
                except ProbeLoadError as error:
                    if "refused" in error.message:
                        raise
                    self.unavailable[name] = f"{hook}: {error.message}"
                    self._details += error.detail + "\n"

    def attach_process(self, tgid: int, names: Iterable[str]) -> None:
        """Attach the uprobes of ``names`` to process ``tgid``, in place of the one they were attached to before.

        Raises:
            KernelError: the process has no such functions, or the kernel refused; none is attached then.
        """
        self.detach_process()
        hooks = [hook for name in names for hook in CATALOGUE[name].hooks if hook.uprobe]
        if hooks:
            self._uprobe_fds = uprobe.attach_to_process(tgid, {hook.event: self.hook_fds[hook] for hook in hooks})

    def detach_process(self) -> None:
        """Undo :meth:`attach_process`; harmless before it."""
        attached, self._uprobe_fds = self._uprobe_fds, []
        uprobe.detach(attached)

    def watch(self, tid: int, names: Iterable[str]) -> None:
        """Let events of thread ``tid``, as BPF numbers it, through for ``names``. Raises KernelError."""
        mask = sum(1 << PROBE_NAMES.index(name) for name in names)
        entry = np.zeros((), dtype=source.WATCHED_THREAD)
        entry["probes"] = mask
        try:
            bpfsys.map_update(self._loaded.map_fd("watched"), struct.pack("=I", tid), entry.tobytes())
        except OSError as error:
            raise KernelError(
                f"thread {tid} cannot be added to the kernel's filter: {error.strerror}",
                f"at most {source.MAX_WATCHED} threads can be watched at once",
            ) from error

    def unwatch(self, tids: Iterable[int]) -> None:
        """Close the filter for ``tids`` and wait until no program still works for one of them."""
        for tid in tids:
            bpfsys.map_delete(self._loaded.map_fd("watched"), struct.pack("=I", tid))
        bpfsys.wait_for_running_programs()
        away = self._loaded.map_fd("away")
        if away >= 0:
            for cpu in range(self.n_cpus):
                bpfsys.map_update(away, struct.pack("=I", cpu), bytes(source.AWAY_COUNT.itemsize))

    def counters(self) -> npt.NDArray[np.uint64]:
        """Sums over CPUs since the last reset: shape (probes of the catalogue, COUNTERS_PER_PROBE)."""
        map_fd = self._loaded.map_fd("counters")
        n_rows = len(PROBE_NAMES) * source.COUNTERS_PER_PROBE
        totals = np.zeros(n_rows, dtype=np.uint64)
        for row in range(n_rows):
            values = bpfsys.map_lookup(map_fd, struct.pack("=I", row), 8 * self.n_cpus)
            assert values is not None  # every index of an array map exists
            totals[row] = np.frombuffer(values, dtype="<u8").sum()
        return totals.reshape(len(PROBE_NAMES), source.COUNTERS_PER_PROBE)

    def reset_counters(self) -> None:
        """All counters to zero. Only while no thread is watched."""
        map_fd = self._loaded.map_fd("counters")
        for row in range(len(PROBE_NAMES) * source.COUNTERS_PER_PROBE):
            bpfsys.map_update(map_fd, struct.pack("=I", row), bytes(8 * self.n_cpus))

    def misses(self) -> dict[Hook, int | None]:
        """Skips of each attached program since it was loaded; None where this kernel does not count them."""
        version = progstats.kernel_version()
        return {
            hook: None
            if progstats.why_misses_unknown(version, hook.raw, hook.uprobe)
            else progstats.recursion_misses(fd)
            for hook, fd in self.hook_fds.items()
        }

    def runs(self) -> dict[Hook, progstats.Runs]:
        """The timed runs of each attached program since it was loaded; see :func:`progstats.timed_runs`."""
        return {hook: progstats.runs(fd) for hook, fd in self.hook_fds.items()}

    def look(self) -> tuple[int, int, int]:
        """(t_ns, tgid, tid) as BPF sees them, for the calling thread, now.

        Raises:
            OSError: this kernel cannot run a program on demand (before Linux 5.10).
        """
        bpfsys.test_run(self._look_fd)
        value = bpfsys.map_lookup(self._loaded.map_fd("looks"), struct.pack("=I", 0), source.LOOK.itemsize)
        assert value is not None
        look = np.frombuffer(value, dtype=source.LOOK)[0]
        both = int(look["tgid_and_tid"])
        return int(look["t_ns"]), both >> 32, both & 0xFFFFFFFF

    def close(self) -> None:
        """Detach everything. May be called again."""
        try:
            self.detach_process()
            for ring in self.rings:
                ring.close()
        finally:
            self._loaded.close()
