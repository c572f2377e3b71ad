"""One measured run, from Python's side: memory, threads, pinning, and the reading of what they left."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capstone import combination, feedfile, gaps, keep_largest, layout, tail_store
from capstone.witnesses import close_witnesses, decode_edge, heap_in_use_bytes, open_witnesses
from sysmeter import hist, records
from sysmeter.errors import UsageError, WorkloadError
from sysmeter.gcwatch import GcWatch, collections_by_generation
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

# Up to this many messages every batch, release and decision is kept (88 bytes a message, 352 MB); above it
# the slowest batches and the histograms only, in memory that no longer grows.
FULL_STORAGE_MESSAGES = 4_000_000

# Releases that a run with bounded storage holds at a time: what waits in the queue, with much to spare.
_RELEASE_SLOTS = 1 << 20
_MIN_TIME_BUCKET_NS = NS_PER_S
_MAX_TIME_BUCKETS = 3_600
_MAX_COLLECTIONS = 4_096
_NEVER_NS = 1 << 62

# A rehearsal passes this many messages, fewer than the queue holds, so that one thread can play both parts.
_REHEARSAL_MESSAGES = 256

_MCL_CURRENT_AND_FUTURE = 3
_PR_SET_NAME = 15
_THREAD_NAMES = {"feed": b"sysmeter-feed", "strategy": b"sysmeter-strat"}


class MeasuredRun:
    """Prepares and carries out one run. ``settings`` are those of the Recording, see sysmeter.session."""

    def __init__(self, settings: dict[str, Any], note: Callable[[str], None]) -> None:
        self._settings = settings
        self._note = note
        self._memory = layout.SharedMemory()
        self._results = layout.SharedMemory()
        self._go = threading.Event()
        self._failures: list[str] = []
        self._threads: dict[str, threading.Thread] = {}

    def prepare(self) -> dict[str, Any]:
        """Everything that may allocate, fault or compile; returns the fields of the "ready" event.

        Raises:
            SysmeterError: an unsound message file, settings that do not fit it, too little memory, a CPU
                that cannot be pinned to.
        """
        settings = self._settings
        combination.choose({slot: settings[slot] for slot in combination.DEFAULTS})
        feed = feedfile.read(Path(settings["feed"]))
        n_planned, n_warmup = plan_messages(settings, feed)
        self._lock_memory()
        self._allocate(feed, n_planned)
        if settings["housekeeping_cpus"]:
            os.sched_setaffinity(0, settings["housekeeping_cpus"])
        from capstone import feed_thread, strategy_thread

        self._loops = {"feed": feed_thread.run_feed, "strategy": strategy_thread.run_strategy}
        self._load_feed(feed)
        self._rehearse(feed, n_warmup)
        self._reset(feed, n_planned, n_warmup)
        threads = self._start_threads()
        self._gc_watch = GcWatch(self._memory.array("collections"), self._memory.array("collections_header"))
        gc.collect()
        return {
            "tgid": os.getpid(),
            "threads": threads,
            "control": {"fd": self._memory.fd, "stop_offset": layout.STOP * 8},
            "recording_bytes": self._memory.n_bytes - feed.messages.nbytes,
            "expected_seconds": n_planned / settings["rate_hz"] if settings["mode"] == "paced" else 0.0,
        }

    def go(self) -> dict[str, Any]:
        """Run the window; returns the fields of the "done" event."""
        from numba.core.runtime import rtsys

        self._gc_watch.start()
        collections_before = collections_by_generation()
        allocations_before = rtsys.get_allocation_stats()
        self._go.set()
        for thread in self._threads.values():
            thread.join()
        allocations_after = rtsys.get_allocation_stats()
        collections_after = collections_by_generation()
        self._gc_watch.stop()
        if self._failures:
            raise WorkloadError(self._failures[0])
        edges = self._edges()
        opened, closed = edges[layout.STRATEGY_OPEN], edges[layout.STRATEGY_CLOSE]
        heap_is_known = bool(opened[layout.EDGE_MALLOC + 7]) and bool(closed[layout.EDGE_TAKEN])
        process = {
            "allocations": allocations_after.alloc - allocations_before.alloc,
            "allocations_interval": "the whole loop, warm-up included",
            "allocations_reason": None,
            "heap_delta_bytes": heap_in_use_bytes(closed) - heap_in_use_bytes(opened) if heap_is_known else None,
            "gc_collections_before": collections_before,
            "gc_collections_after": collections_after,
        }
        return {"process": process, "edges": self._decoded_edges(), **self._outcome()}

    def _lock_memory(self) -> None:
        if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT_AND_FUTURE) != 0:
            reason = os.strerror(ctypes.get_errno())
            self._note(f"memory could not be locked (mlockall: {reason}); a page may be taken away in the window")

    def _allocate(self, feed: feedfile.FeedFile, n_planned: int) -> None:
        settings, memory = self._settings, self._memory
        self._is_full = n_planned <= FULL_STORAGE_MESSAGES
        self._sub_bits = settings["precision_bits"]
        price = feed.messages["price_ticks"]
        self._prices = (int(price.min()), int(price.max()))
        expected_ns = n_planned * NS_PER_S // settings["rate_hz"]
        self._bucket_ns = max(_MIN_TIME_BUCKET_NS, -(-expected_ns // _MAX_TIME_BUCKETS))
        n_time_buckets = 0 if self._is_full else expected_ns // self._bucket_ns + 1
        n_slots = n_planned if self._is_full else 0
        word = np.dtype("<i8")
        for name, length in (
            ("parameters", layout.N_PARAMETERS),
            ("edges", 4 * layout.EDGE_WORDS),
            ("queue", combination.component("queue").n_words()),
            ("book", combination.component("book").n_words(*self._prices)),
            ("feed_words", feed.count * layout.MESSAGE_WORDS),
            ("release_slots", n_planned if self._is_full else _RELEASE_SLOTS),
            ("batch_words", (n_slots + 1) * layout.BATCH_WORDS),
            ("decision_words", n_slots * layout.DECISION_WORDS),
            ("think_counts", hist.n_buckets(self._sub_bits)),
            ("total_counts", hist.n_buckets(self._sub_bits)),
            ("think_stats", layout.N_STATS),
            ("total_stats", layout.N_STATS),
            ("time_bucket_words", n_time_buckets * layout.BUCKET_WORDS),
            ("gap_words_feed", gaps.n_words()),
            ("gap_words_strategy", gaps.n_words()),
            ("tail", tail_store.n_words()),
            ("collections_header", 2),
        ):
            memory.add(name, word, length)
        memory.add("collections", records.COLLECTION, _MAX_COLLECTIONS)
        try:
            memory.create()
        except OSError as error:
            raise WorkloadError(
                f"{memory.n_bytes >> 20} MiB of locked memory for the run cannot be had: {error.strerror}",
                "ask for fewer --seconds or a lower --rate",
            ) from error

    def _load_feed(self, feed: feedfile.FeedFile) -> None:
        self._memory.array("feed_words")[:] = feed.messages.view("<i8")

    def _reset(self, feed: feedfile.FeedFile, n_planned: int, n_warmup: int) -> None:
        """Bring all memory to its state before a run; every page is touched here."""
        memory, settings = self._memory, self._settings
        for name in (
            *("parameters", "edges", "release_slots", "batch_words", "decision_words", "think_counts"),
            *("total_counts", "think_stats", "total_stats", "time_bucket_words", "collections_header"),
        ):
            memory.array(name)[:] = 0
        memory.array("collections").view("<i8")[:] = 0
        combination.component("queue").initialize(memory.array("queue"))
        combination.component("book").initialize(memory.array("book"), *self._prices)
        for name in ("gap_words_feed", "gap_words_strategy"):
            memory.array(name)[:] = 0
            keep_largest.initialize(memory.array(name)[: keep_largest.n_words(gaps.CAPACITY)], gaps.CAPACITY)
        tail_store.initialize(memory.array("tail"))
        for name in ("think_stats", "total_stats"):
            memory.array(name)[layout.STAT_MIN] = _NEVER_NS
        seq = feed.messages["seq"]
        values = {
            "PACED": settings["mode"] == "paced",
            "RATE_HZ": settings["rate_hz"],
            "N_FILE": feed.count,
            "N_PLANNED": n_planned,
            "N_WARMUP": n_warmup,
            "SEQ_SPAN": int(seq[-1]) - int(seq[0]) + 1,
            "N_INSTRUMENTS": feed.n_instruments,
            "INSTRUMENT": settings["instrument"],
            "GAP_THRESHOLD_NS": settings["gap_threshold_ns"],
            "STOP_ABOVE_NS": settings["stop_above_ns"] if settings["stop_above_ns"] is not None else _NEVER_NS,
            "FULL_STORAGE": self._is_full,
            "SUB_BITS": self._sub_bits,
            "TIME_BUCKET_NS": self._bucket_ns,
            "N_TIME_BUCKETS": len(memory.array("time_bucket_words")) // layout.BUCKET_WORDS,
            "RELEASE_MASK": _NEVER_NS - 1 if self._is_full else _RELEASE_SLOTS - 1,
            "N_RELEASE_SLOTS": len(memory.array("release_slots")),
            "N_BATCH_SLOTS": n_planned if self._is_full else 0,
            "N_HISTOGRAM_BUCKETS": hist.n_buckets(self._sub_bits),
        }
        places = {
            "FEED_AT": "feed_words",
            "QUEUE_AT": "queue",
            "BOOK_AT": "book",
            "RELEASES_AT": "release_slots",
            "BATCHES_AT": "batch_words",
            "DECISIONS_AT": "decision_words",
            "THINK_AT": "think_counts",
            "TOTAL_AT": "total_counts",
            "THINK_STATS_AT": "think_stats",
            "TOTAL_STATS_AT": "total_stats",
            "TIME_BUCKETS_AT": "time_bucket_words",
            "GAPS_FEED_AT": "gap_words_feed",
            "GAPS_STRATEGY_AT": "gap_words_strategy",
            "TAIL_AT": "tail",
            "EDGES_AT": "edges",
        }
        values.update({key: memory.address(name) for key, name in places.items()})
        for key, value in values.items():
            self._parameters()[getattr(layout, key)] = value

    def _rehearse(self, feed: feedfile.FeedFile, n_warmup: int) -> None:
        """Compile, link and run both loops once, so that the window meets nothing for the first time."""
        n_messages = min(_REHEARSAL_MESSAGES, feed.count)
        self._reset(feed, n_messages, min(n_warmup, n_messages - 1))
        self._parameters()[layout.REHEARSAL] = 1
        self._parameters()[layout.PACED] = 0
        edges = self._edges()
        edges[:, [layout.EDGE_PERF_FD, layout.EDGE_SCHEDSTAT_FD, layout.EDGE_SCHED_FD]] = -1
        for loop in self._loops.values():
            loop(self._memory.address("parameters"))

    def _start_threads(self) -> dict[str, dict[str, int]]:
        ready = threading.Barrier(len(self._loops) + 1)
        threads: dict[str, dict[str, int]] = {}
        for (name, loop), cpu, first_edge in zip(
            self._loops.items(), self._settings["cpus"], (layout.FEED_OPEN, layout.STRATEGY_OPEN), strict=True
        ):
            thread = threading.Thread(
                target=self._measured_thread, args=(name, loop, cpu, first_edge, ready, threads), name=name, daemon=True
            )
            self._threads[name] = thread
            thread.start()
        ready.wait()
        if self._failures:
            raise WorkloadError(self._failures[0], "choose other --cpus")
        return threads

    def _measured_thread(
        self,
        name: str,
        loop: Callable[[int], None],
        cpu: int,
        first_edge: int,
        ready: threading.Barrier,
        threads: dict[str, dict[str, int]],
    ) -> None:
        parameters_at = self._memory.address("parameters")
        edges = self._edges()[first_edge : first_edge + 2]
        try:
            ctypes.CDLL(None).prctl(_PR_SET_NAME, _THREAD_NAMES[name])
            os.sched_setaffinity(0, {cpu})
            if os.sched_getaffinity(0) != {cpu}:
                raise OSError(f"its affinity reads back as {sorted(os.sched_getaffinity(0))}")
            open_witnesses(edges)
            threads[name] = {"tid": threading.get_native_id(), "cpu": cpu}
        except OSError as error:
            self._failures.append(f"the {name} thread cannot be pinned to CPU {cpu}: {error}")
        ready.wait()
        self._go.wait()
        try:
            loop(parameters_at)
        except BaseException as error:
            self._failures.append(f"the {name} thread failed: {error!r}")
            raise
        finally:
            close_witnesses(edges)

    def _outcome(self) -> dict[str, Any]:
        """Counts, histogram statistics and arrays of a finished run."""
        p = self._parameters()
        n_warmup = int(p[layout.N_WARMUP])
        n_released, n_popped = int(p[layout.N_RELEASED]), int(p[layout.N_POPPED])
        t_start_ns = int(p[layout.T_START])
        if n_released <= n_warmup:
            t_window_ns = None
        elif p[layout.PACED]:
            t_window_ns = t_start_ns + n_warmup * NS_PER_S // int(p[layout.RATE_HZ])
        else:
            t_window_ns = int(self._edges()[layout.FEED_OPEN][layout.EDGE_T_AFTER])
        t_end_ns = int(p[layout.T_LAST_DECISION]) or None
        is_timed = t_window_ns is not None and t_end_ns is not None
        heaps = {name: self._memory.array(f"gap_words_{name}") for name in records.THREADS}
        run = {
            "t_start_ns": t_start_ns,
            "t_window_ns": t_window_ns,
            "t_end_ns": t_end_ns,
            "elapsed_ns": max(0, t_end_ns - t_window_ns) if is_timed else 0,
            "n_planned": int(p[layout.N_PLANNED]),
            "n_warmup": n_warmup,
            "n_released": n_released,
            "n_popped": n_popped,
            "n_window_messages": max(0, n_popped - n_warmup),
            "n_batches": int(p[layout.N_BATCHES]),
            "n_window_batches": int(self._memory.array("think_stats")[layout.STAT_COUNT]),
            "ring_full_waits": int(p[layout.RING_FULL_WAITS]),
            "sequence_gaps": int(p[layout.SEQUENCE_GAPS]),
            "duplicates": int(p[layout.DUPLICATES]),
            "other_instruments": int(p[layout.OTHER_INSTRUMENTS]),
            "unknown_instruments": int(p[layout.UNKNOWN_INSTRUMENTS]),
            "live": int(p[layout.HANDLER_STATE]) == 1,
            "storage": "full" if self._is_full else "tail",
            "tail_floor_ns": max(0, int(self._memory.array("tail")[keep_largest.FLOOR])),
            "gaps_lost": {name: int(heap[keep_largest.N_DROPPED]) for name, heap in heaps.items()},
            "gap_floor_ns": {name: max(0, int(heap[keep_largest.FLOOR])) for name, heap in heaps.items()},
            "time_bucket_ns": None if self._is_full else self._bucket_ns,
            "stopped_by": "stop_above" if p[layout.STOPPED_ABOVE] else "interrupt" if p[layout.STOP] else None,
        }
        histograms = {name: self._histogram(name) for name in ("think", "total")}
        return {"run": run, "histograms": histograms, "arrays": self._arrays(run)}

    def _histogram(self, name: str) -> dict[str, int]:
        stats = self._memory.array(f"{name}_stats")
        count = int(stats[layout.STAT_COUNT])
        return {
            "sub_bits": self._sub_bits,
            "count": count,
            "min_ns": int(stats[layout.STAT_MIN]) if count else 0,
            "max_ns": int(stats[layout.STAT_MAX]),
            "sum_ns": int(stats[layout.STAT_SUM]),
            "n_negative": int(stats[layout.STAT_NEGATIVE]),
        }

    def _arrays(self, run: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Where each array of the Recording lies: the large ones in place, the rest in a memfd of their own."""
        memory = self._memory
        n_collections = min(int(memory.array("collections_header")[0]), _MAX_COLLECTIONS)
        small: dict[str, npt.NDArray[Any]] = {
            f"gaps_{name}": _as_records(gaps.kept(memory.array(f"gap_words_{name}")), records.GAP)
            for name in records.THREADS
        }
        in_place = {
            "think_counts": ("think_counts", None),
            "total_counts": ("total_counts", None),
        }
        if self._is_full:
            n_batches = run["n_batches"]
            in_place["releases"] = ("release_slots", run["n_released"])
            in_place["batches"] = ("batch_words", n_batches)
            in_place["decisions"] = ("decision_words", int(self._parameters()[layout.N_DECISIONS]))
            batches = memory.array("batch_words")[: n_batches * layout.BATCH_WORDS].reshape(-1, layout.BATCH_WORDS)
            small["release_offsets"] = batches[:, 2].copy()
            small["time_buckets"] = np.empty(0, records.TIME_BUCKET)
        else:
            kept_batches, small["releases"], small["release_offsets"] = tail_store.kept(memory.array("tail"))
            small["batches"] = _as_records(kept_batches, records.BATCH)
            small["decisions"] = np.empty(0, records.DECISION)
            words = memory.array("time_bucket_words").reshape(-1, layout.BUCKET_WORDS)
            small["time_buckets"] = _as_records(words, records.TIME_BUCKET)
        small["collections"] = memory.array("collections")[:n_collections]
        for name, array in small.items():
            self._results.add(name, array.dtype, len(array))
        self._results.create()
        described = {}
        for name, array in small.items():
            self._results.array(name)[:] = array
        for name, where in self._results.describe().items():
            described[name] = {"fd": self._results.fd, **where}
        places = memory.describe()
        for name, (place, length) in in_place.items():
            dtype = _IN_PLACE_DTYPES.get(name, np.dtype("<i8"))
            described[name] = {
                "fd": memory.fd,
                "offset": places[place]["offset"],
                "dtype": np.lib.format.dtype_to_descr(dtype),
                "length": places[place]["length"] if length is None else length,
            }
        return described

    def _parameters(self) -> npt.NDArray[np.int64]:
        return self._memory.array("parameters")

    def _edges(self) -> npt.NDArray[np.int64]:
        return self._memory.array("edges").reshape(4, layout.EDGE_WORDS)

    def _decoded_edges(self) -> dict[str, dict[str, Any]]:
        edges = self._edges()
        first = {"feed": layout.FEED_OPEN, "strategy": layout.STRATEGY_OPEN}
        return {
            name: {"open": decode_edge(edges[at], closing=False), "close": decode_edge(edges[at + 1], closing=True)}
            for name, at in first.items()
        }


_IN_PLACE_DTYPES = {"batches": records.BATCH, "decisions": records.DECISION}


def plan_messages(settings: dict[str, Any], feed: feedfile.FeedFile) -> tuple[int, int]:
    """(messages of the run, messages of the warm-up) for these settings and this file.

    Raises:
        UsageError: more than the file holds without ``loop``, or a warm-up that leaves no window.
    """
    rate_hz = settings["rate_hz"]
    n_warmup = round(settings["warmup_seconds"] * rate_hz)
    if settings["seconds"] is None:
        n_planned = feed.count
    else:
        n_planned = round(settings["seconds"] * rate_hz)
        if n_planned > feed.count and not settings["loop"]:
            raise UsageError(
                f"{settings['seconds']:g} s at {rate_hz:,}/s are {n_planned:,} messages, and {feed.path.name} holds"
                f" {feed.count:,}, which last {feed.count / rate_hz:g} s",
                "repeat the file with --loop, or ask for fewer --seconds",
            )
    if n_warmup >= n_planned:
        raise UsageError(
            f"a warm-up of {n_warmup:,} messages leaves nothing to measure of {n_planned:,}",
            "shorten --warmup, or lengthen the run with --seconds (which count the warm-up) and --loop",
        )
    return n_planned, n_warmup


def _as_records(rows: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows).view(dtype).reshape(-1)
