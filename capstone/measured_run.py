"""One measured run, from Python's side: memory, threads, pinning, and the order in which things happen."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capstone import combination, feedfile, layout, outcome
from capstone.plan import make_plan
from capstone.run_memory import RunMemory
from capstone.witnesses import close_witnesses, open_witnesses
from sysmeter.errors import WorkloadError
from sysmeter.gcwatch import GcWatch, collections_by_generation
from sysmeter.sharedmemory import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable

# A rehearsal passes this many messages, fewer than the queue holds, so that one thread can play both parts.
_REHEARSAL_MESSAGES = 256

_MCL_CURRENT_AND_FUTURE = 3
_PR_SET_NAME = 15
_COMM = {"feed": b"sysmeter-feed", "strategy": b"sysmeter-strat"}  # at most 15 bytes
_FIRST_EDGE = {"feed": layout.FEED_OPEN, "strategy": layout.STRATEGY_OPEN}


class MeasuredRun:
    """Prepares and carries out one run. ``settings`` are those of the Recording, see sysmeter.session."""

    def __init__(self, settings: dict[str, Any], note: Callable[[str], None]) -> None:
        self._settings = settings
        self._note = note
        self._go = threading.Event()
        self._failures: list[str] = []
        self._tids: dict[str, int] = {}

    def prepare(self) -> dict[str, Any]:
        """Everything that may allocate, fault or compile; returns the fields of the "ready" event.

        Raises:
            SysmeterError: an unsound message file, settings that do not fit it, too little memory, a CPU
                that cannot be pinned to.
        """
        settings = self._settings
        combination.choose({slot: settings[slot] for slot in combination.DEFAULTS})
        feed = feedfile.read(Path(settings["feed"]))
        self._plan = make_plan(settings, feed)
        self._lock_memory()
        self._memory = RunMemory(settings, feed, self._plan)
        if settings["housekeeping_cpus"]:
            os.sched_setaffinity(0, settings["housekeeping_cpus"])
        # Imported here: they take their component's functions as globals, so the choice comes first.
        from capstone import feed_thread, strategy_thread

        self._loops = {"feed": feed_thread.run_feed, "strategy": strategy_thread.run_strategy}
        self._rehearse(feed.count)
        self._memory.reset(self._plan)
        self._start_threads()
        self._gc_watch = GcWatch(self._memory.array("collections"), self._memory.array("collections_header"))
        gc.collect()
        cpus = dict(zip(self._loops, settings["cpus"], strict=True))
        commands = {}
        if getattr(combination.component("stall"), "TAKES_COMMANDS", False):
            commands["commands"] = {"fd": self._memory.fd, **self._memory.describe()["stall"]}
        return {
            **commands,
            "tgid": os.getpid(),
            "threads": {name: {"tid": self._tids[name], "cpu": cpus[name]} for name in self._loops},
            "control": {"fd": self._memory.fd, "stop_offset": layout.STOP * 8},
            "recording_bytes": self._memory.recording_bytes,
            "settings": {"feed_sha256": feedfile.sha256(feed.path)},
            "expected_ns": self._plan.expected_ns if settings["mode"] == "paced" else 0,
        }

    def go(self) -> dict[str, Any]:
        """Run the window; returns the fields of the "done" event."""
        from numba.core.runtime import rtsys

        self._gc_watch.start()
        collections_before = collections_by_generation()
        allocations_before = rtsys.get_allocation_stats()
        self._go.set()
        for thread in self._threads:
            thread.join()
        allocations_after = rtsys.get_allocation_stats()
        collections_after = collections_by_generation()
        self._gc_watch.stop()
        if self._failures:
            raise WorkloadError(self._failures[0])
        memory, plan = self._memory, self._plan
        self._results = SharedMemory()  # kept, so that its descriptor stays open for the observer
        return {
            "run": outcome.describe_run(memory, plan),
            "histograms": outcome.describe_histograms(memory, self._settings["precision_bits"]),
            "edges": outcome.describe_edges(memory),
            "process": {
                "allocations": allocations_after.alloc - allocations_before.alloc,
                "allocations_interval": "the whole loop, warm-up included",
                "allocations_reason": None,
                "allocation_sources": ["numba"],
                "loop_ns": outcome.loop_ns(memory),
                "heap_delta_bytes": outcome.heap_delta_bytes(memory),
                "gc_collections_lost": int(memory.array("collections_header")[1]),
                "gc_collections_before": collections_before,
                "gc_collections_after": collections_after,
            },
            "arrays": outcome.locate_arrays(memory, plan, self._results),
        }

    def _lock_memory(self) -> None:
        if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT_AND_FUTURE) != 0:
            reason = os.strerror(ctypes.get_errno())
            self._note(f"memory could not be locked (mlockall: {reason}); a page may be taken away in the window")

    def _rehearse(self, n_file: int) -> None:
        """Compile, link and run both loops once, so that the window meets nothing for the first time."""
        self._memory.reset(self._plan)
        n_messages = min(_REHEARSAL_MESSAGES, n_file)
        parameters = self._memory.parameters
        parameters[layout.N_PLANNED] = n_messages
        parameters[layout.N_WARMUP] = min(self._plan.n_warmup, n_messages - 1)
        parameters[layout.N_BEFORE_EDGES] = min(self._plan.n_before_edges, n_messages - 1)
        parameters[layout.PACED] = 0
        parameters[layout.REHEARSAL] = 1
        self._memory.edges[:, [layout.EDGE_PERF_FD, layout.EDGE_SCHEDSTAT_FD, layout.EDGE_SCHED_FD]] = -1
        for loop in self._loops.values():
            loop(self._memory.address("parameters"))

    def _start_threads(self) -> None:
        ready = threading.Barrier(len(self._loops) + 1)
        self._threads = [
            threading.Thread(target=self._measured_thread, args=(name, loop, cpu, ready), name=name, daemon=True)
            for (name, loop), cpu in zip(self._loops.items(), self._settings["cpus"], strict=True)
        ]
        for thread in self._threads:
            thread.start()
        ready.wait()
        if self._failures:
            raise WorkloadError(self._failures[0], "choose other --cpus")

    def _measured_thread(self, name: str, loop: Callable[[int], None], cpu: int, ready: threading.Barrier) -> None:
        parameters_at = self._memory.address("parameters")
        edges = self._memory.edges[_FIRST_EDGE[name] : _FIRST_EDGE[name] + 2]
        try:
            ctypes.CDLL(None).prctl(_PR_SET_NAME, _COMM[name])
            os.sched_setaffinity(0, {cpu})
            if os.sched_getaffinity(0) != {cpu}:
                raise OSError(f"its affinity reads back as {sorted(os.sched_getaffinity(0))}")
            open_witnesses(edges)
            self._tids[name] = threading.get_native_id()
        except OSError as error:
            self._failures.append(f"the {name} thread cannot be pinned to CPU {cpu}: {error}")
        except Exception as error:
            self._failures.append(f"the {name} thread cannot be prepared: {error!r}")
        ready.wait()
        self._go.wait()
        try:
            loop(parameters_at)
        except Exception as error:
            # Compiled code raises nothing by design; a fault in it must not look like a finished run.
            self._failures.append(f"the {name} thread failed: {error!r}")
            # The other thread waits for these words; without them it would spin for ever.
            parameters = self._memory.parameters
            for word in (layout.STOP, layout.FEED_READY, layout.FEED_DONE, layout.STRATEGY_READY, layout.STRATEGY_DONE):
                parameters[word] = 1
        finally:
            close_witnesses(edges)
