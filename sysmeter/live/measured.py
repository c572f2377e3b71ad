"""One live run: memory, the cache, the collector's policy, the threads, and the order in which things happen."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import host, records
from sysmeter.clock import now_ns
from sysmeter.errors import WorkloadError
from sysmeter.gcpolicy import OFF
from sysmeter.gcwatch import GcWatch
from sysmeter.hist import LatencyHistogram
from sysmeter.live.collector import NAME as COLLECTOR
from sysmeter.live.collector import Collector
from sysmeter.live.edges import Witnesses, resident_bytes
from sysmeter.live.loop import Outcome, work_through
from sysmeter.live.orders import OrderCache, build_message, parse_fields, split_message
from sysmeter.live.others import ORDERS_A_SECOND, OtherThreads
from sysmeter.live.plan import Plan, check_memory, make_plan
from sysmeter.live.store import Store
from sysmeter.schedule import intended_ns
from sysmeter.sharedmemory import SharedMemory
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

# So many orders tell what one of them takes.
_SAMPLE_ORDERS = 2_000
# A rehearsal passes so many messages: the interpreter specialises its instructions after a few turns.
_REHEARSAL_MESSAGES = 500

_PR_SET_NAME = 15
_COMM = b"sysmeter-worker"  # 15 bytes, the most there may be


class MeasuredRun:
    """Prepares and carries out one run. ``settings`` are those of the Recording, see sysmeter.session."""

    def __init__(self, settings: dict[str, Any], note: Callable[[str], None]) -> None:
        self._settings = settings
        self._note = note
        self._plan = make_plan(settings)
        self._go = threading.Event()
        self._ready = threading.Event()
        self._outcome = Outcome()
        self._failure: str | None = None
        self._tid = 0

    def prepare(self) -> dict[str, Any]:
        """Everything that belongs before the loop; returns the fields of the "ready" event.

        Raises:
            SysmeterError: too little memory, or a CPU that cannot be pinned to.
        """
        settings, plan = self._settings, self._plan
        try:
            self._store = Store(plan.n_messages)
        except OSError as error:
            raise WorkloadError(
                f"the memory for {plan.n_messages:,} messages cannot be had: {error.strerror}",
                "ask for fewer --seconds or a lower --rate",
            ) from error
        if settings["housekeeping_cpus"]:
            os.sched_setaffinity(0, settings["housekeeping_cpus"])
        bytes_per_order = self._fill_cache()
        self._histograms = self._new_histograms()
        self._gc_watch = GcWatch(
            self._store.memory.array("collections"), self._store.memory.array("collections_header")
        )
        self._others = OtherThreads(settings["threads"], lambda: self._store.stop[0] != 0)
        self._others.start()
        self._collector = Collector() if settings.get("takes_commands") else None
        if self._collector is not None:
            self._collector.start()
        self._worker = threading.Thread(target=self._measured_thread, name="worker", daemon=True)
        self._worker.start()
        self._ready.wait()
        if self._failure is not None:
            raise WorkloadError(self._failure, "choose another --cpu")
        gc.collect()
        plan.policy.apply()
        return {
            "tgid": os.getpid(),
            "threads": {records.LIVE.worker: {"tid": self._tid, "cpu": settings["cpus"][0]}},
            "control": {"fd": self._store.memory.fd, "stop_offset": self._store.memory.describe()["stop"]["offset"]},
            "recording_bytes": plan.n_messages * (records.BATCH.itemsize + 16) + (64 << 20),
            "expected_ns": plan.expected_ns if plan.is_paced else plan.n_messages * self._ns_per_order,
            "settings": {"bytes_per_order": bytes_per_order},
            **({} if self._collector is None else {"commands": self._collector.describe()}),
        }

    def go(self) -> dict[str, Any]:
        """Run the loop; returns the fields of the "done" event."""
        self._gc_watch.start()
        self._others.go()
        if self._collector is not None:
            self._collector.begin(time.monotonic_ns())
        self._go.set()
        self._worker.join()
        if self._collector is not None:
            self._collector.join()
        self._gc_watch.stop()
        was_stopped = self._store.stop[0] != 0
        self._store.stop[0] = 1
        self._others.join()
        if self._failure is not None:
            raise WorkloadError(self._failure)
        opened, closed = self._outcome.edges
        names = {self._tid: "worker", **self._others.names, threading.get_native_id(): "main"}
        if self._collector is not None:
            names[self._collector.tid] = COLLECTOR
        return {
            "run": self._describe_run(was_stopped),
            "histograms": {
                name: _describe_histogram(histogram)
                for name, histogram in zip(records.LIVE.histograms, self._histograms, strict=True)
            },
            "edges": {records.LIVE.worker: {"open": opened, "close": closed}},
            "process": {
                "gc_collections_lost": int(self._store.memory.array("collections_header")[1]),
                "gc_collections_before": opened and opened["gc_collections"],
                "gc_collections_after": closed and closed["gc_collections"],
                "gc_thresholds": list(gc.get_threshold()),
                "gc_frozen": gc.get_freeze_count(),
                "gc_enabled": gc.isenabled(),
                "thread_names": {str(tid): name for tid, name in names.items()},
                # A build of CPython without the lock has nothing to wait for.
                "has_interpreter_lock": getattr(sys, "_is_gil_enabled", lambda: True)(),
                "switch_interval_ns": round(sys.getswitchinterval() * NS_PER_S),
            },
            "arrays": self._locate_arrays(),
        }

    def _fill_cache(self) -> int:
        """Fill the cache and find out what an order takes: bytes and container objects, without collections."""
        settings, plan = self._settings, self._plan
        gc.collect()
        gc.disable()
        before, containers_before = resident_bytes(), gc.get_count()[0]
        sample = OrderCache(_SAMPLE_ORDERS)
        t_begin_ns = now_ns()
        for number in range(_SAMPLE_ORDERS):
            _work(sample, number)
        self._ns_per_order = (now_ns() - t_begin_ns) // _SAMPLE_ORDERS
        after, containers = resident_bytes(), (gc.get_count()[0] - containers_before) / _SAMPLE_ORDERS
        bytes_per_order = 0 if before is None or after is None else max(0, after - before) // _SAMPLE_ORDERS
        n_garbage = plan.n_uncollected(settings["orders"], containers)
        if plan.policy.kind == OFF:
            n_garbage += round(settings["threads"] * ORDERS_A_SECOND * settings["seconds"])
        check_memory(
            (settings["orders"] + n_garbage) * bytes_per_order,
            host.available_memory_bytes(),
            f"a cache of {settings['orders']:,} orders and up to {n_garbage:,} more that nobody collects"
            f" (--gc {settings['gc']})",
        )
        self._cache = OrderCache(settings["orders"])
        for number in range(settings["orders"]):
            _work(self._cache, number)
        del sample
        gc.enable()
        return bytes_per_order

    def _new_histograms(self) -> tuple[LatencyHistogram, LatencyHistogram]:
        bits = self._settings["precision_bits"]
        return LatencyHistogram(bits), LatencyHistogram(bits)

    def _measured_thread(self) -> None:
        cpu = self._settings["cpus"][0]
        try:
            ctypes.CDLL(None).prctl(_PR_SET_NAME, _COMM)
            os.sched_setaffinity(0, {cpu})
            self._tid = threading.get_native_id()
            witnesses = Witnesses()
            self._rehearse(witnesses)
        except Exception as error:
            self._failure = f"the worker thread cannot be prepared on CPU {cpu}: {error!r}"
            self._ready.set()
            return
        self._ready.set()
        self._go.wait()
        try:
            work_through(
                self._plan,
                self._settings["gap_threshold_ns"],
                self._cache,
                self._store,
                self._histograms,
                witnesses,
                self._outcome,
            )
        except Exception as error:
            self._failure = f"the worker thread failed: {error!r}"
        finally:
            witnesses.close()

    def _rehearse(self, witnesses: Witnesses) -> None:
        """Pass a few messages, so that the loop meets nothing for the first time."""
        n_messages = min(_REHEARSAL_MESSAGES, self._plan.n_messages)
        plan = Plan(n_messages, n_messages // 2, self._plan.rate_hz, False, self._plan.policy)
        threshold_ns = self._settings["gap_threshold_ns"]
        work_through(plan, threshold_ns, self._cache, self._store, self._new_histograms(), witnesses, Outcome())
        self._store.forget()

    def _describe_run(self, was_stopped: bool) -> dict[str, Any]:
        plan, outcome, store = self._plan, self._outcome, self._store
        n_window = max(0, outcome.n_done - plan.n_warmup)
        t_first = store.begins[plan.n_warmup] if n_window else None
        t_end = store.ends[outcome.n_done - 1] if outcome.n_done else None
        t_window = None
        if n_window:
            t_window = outcome.t_start_ns + plan.n_warmup * NS_PER_S // plan.rate_hz if plan.is_paced else t_first
        return {
            "t_start_ns": outcome.t_start_ns,
            "t_window_ns": t_window,
            "t_end_ns": t_end,
            "elapsed_ns": t_end - t_first if t_first is not None and t_end is not None else 0,
            "n_planned": plan.n_messages,
            "n_warmup": plan.n_warmup,
            "n_done": outcome.n_done,
            "n_window_messages": n_window,
            "n_window_batches": n_window,
            "storage": "full",
            "tail_floor_ns": 0,
            "gaps_lost": {records.LIVE.worker: store.n_gaps_lost},
            "gap_floor_ns": {records.LIVE.worker: store.longest_lost_ns},
            "stopped_by": "interrupt" if was_stopped else None,
        }

    def _locate_arrays(self) -> dict[str, dict[str, Any]]:
        """Where each array of the Recording lies: all of them made here from what the loop left."""
        store, n = self._store, self._outcome.n_done
        batches = np.zeros(n, records.BATCH)
        numbers = np.arange(n, dtype=np.int64)
        batches["t_popped_ns"] = store.memory.array("begins")[:n]
        batches["t_decided_ns"] = store.memory.array("ends")[:n]
        batches["n_messages"] = 1
        for name in ("first_message", "first_seq", "last_seq"):
            batches[name] = numbers
        releases = batches["t_popped_ns"]
        if self._plan.is_paced:
            releases = intended_ns(self._outcome.t_start_ns, self._plan.rate_hz, numbers)
        n_collections = int(store.memory.array("collections_header")[0])
        arrays = {
            "batches": batches,
            "releases": np.ascontiguousarray(releases, np.int64),
            "release_offsets": numbers,
            f"gaps_{records.LIVE.worker}": store.gaps(),
            "collections": store.memory.array("collections")[:n_collections],
            **{
                f"{name}_counts": histogram.counts
                for name, histogram in zip(records.LIVE.histograms, self._histograms, strict=True)
            },
        }
        self._results = SharedMemory()  # kept, so that its descriptor stays open for the observer
        for name, array in arrays.items():
            self._results.add(name, array.dtype, len(array))
        self._results.create()
        for name, array in arrays.items():
            self._results.array(name)[:] = array
        return {name: {"fd": self._results.fd, **where} for name, where in self._results.describe().items()}


def _work(cache: OrderCache, number: int) -> None:
    cache.store(parse_fields(split_message(build_message(number))))


def _describe_histogram(histogram: LatencyHistogram) -> dict[str, int]:
    return {
        "sub_bits": histogram.sub_bits,
        "count": histogram.count,
        "min_ns": histogram.min or 0,
        "max_ns": histogram.max or 0,
        "sum_ns": histogram.sum,
        "n_negative": histogram.n_negative,
    }
