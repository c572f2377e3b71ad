"""The shared memory of one run: what lies in it, and how it is brought to the state before a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from capstone import combination, gaps, layout, tail_store
from sysmeter import buckets, decisions, records
from sysmeter.errors import UsageError, WorkloadError
from sysmeter.sharedmemory import SharedMemory

if TYPE_CHECKING:
    import numpy.typing as npt

    from capstone.feedfile import FeedFile
    from capstone.plan import Plan

MAX_COLLECTIONS = 4_096
NEVER_NS = 1 << 62

# The parameter word that gives an array's address, and the array's name.
_ADDRESSES = {
    layout.FEED_AT: "feed_words",
    layout.QUEUE_AT: "queue",
    layout.BOOK_AT: "book",
    layout.RELEASES_AT: "release_slots",
    layout.BATCHES_AT: "batch_words",
    layout.DECISIONS_AT: "decision_words",
    layout.THINK_AT: "think_counts",
    layout.TOTAL_AT: "total_counts",
    layout.THINK_STATS_AT: "think_stats",
    layout.TOTAL_STATS_AT: "total_stats",
    layout.TIME_BUCKETS_AT: "time_bucket_words",
    layout.GAPS_FEED_AT: "gap_words_feed",
    layout.GAPS_STRATEGY_AT: "gap_words_strategy",
    layout.TAIL_AT: "tail",
    layout.EDGES_AT: "edges",
    layout.STALL_AT: "stall",
}


class RunMemory(SharedMemory):
    """All arrays of one run, touched and filled.

    Raises:
        WorkloadError: there is too little memory.
    """

    def __init__(self, settings: dict[str, Any], feed: FeedFile, plan: Plan) -> None:
        super().__init__()
        self._settings = settings
        self._feed = feed
        price, seq = feed.messages["price_ticks"], feed.messages["seq"]
        # The next lap's numbers go on where the highest of this one ends, whatever order they came in.
        self._seq_span = int(seq.max()) - int(seq[0]) + 1
        if int(seq[0]) + -(-plan.n_messages // feed.count) * self._seq_span >= 1 << 63:
            raise UsageError("so many laps of this file pass the highest sequence number", "ask for fewer --seconds")
        self._prices = (int(price.min()), int(price.max()))
        n_histogram_buckets = buckets.n_buckets(settings["precision_bits"])
        word = np.dtype("<i8")
        for name, length in (
            ("parameters", layout.N_PARAMETERS),
            ("edges", 4 * layout.EDGE_WORDS),
            ("queue", combination.component("queue").n_words()),
            ("book", combination.component("book").n_words(*self._prices)),
            ("feed_words", feed.count * layout.MESSAGE_WORDS),
            ("release_slots", plan.n_release_slots),
            # One more than there are: with bounded storage a batch is put together in the first.
            ("batch_words", (plan.n_batch_slots + 1) * layout.BATCH_WORDS),
            ("decision_words", plan.n_batch_slots * layout.DECISION_WORDS),
            ("think_counts", n_histogram_buckets),
            ("total_counts", n_histogram_buckets),
            ("think_stats", buckets.N_STATS),
            ("total_stats", buckets.N_STATS),
            ("time_bucket_words", plan.n_time_buckets * layout.BUCKET_WORDS),
            ("gap_words_feed", gaps.n_words()),
            ("gap_words_strategy", gaps.n_words()),
            ("tail", tail_store.n_words()),
            ("stall", combination.component("stall").n_words(settings)),
            ("collections_header", 2),
        ):
            self.add(name, word, length)
        self.add("collections", records.COLLECTION, MAX_COLLECTIONS)
        try:
            self.create()
        except OSError as error:
            raise WorkloadError(
                f"{self.n_bytes >> 20} MiB of memory for the run cannot be had: {error.strerror}",
                "ask for fewer --seconds or a lower --rate",
            ) from error
        self.array("feed_words")[:] = feed.messages.view("<i8")

    @property
    def parameters(self) -> npt.NDArray[np.int64]:
        """The parameter words, see capstone.layout."""
        return self.array("parameters")

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The edges of the windows, shape (4, EDGE_WORDS)."""
        return self.array("edges").reshape(4, layout.EDGE_WORDS)

    @property
    def recording_bytes(self) -> int:
        """What a Recording of this run takes at most, the kernel's events aside."""
        decisions_file_bytes = len(self.array("decision_words")) // layout.DECISION_WORDS * decisions.MAX_LINE_BYTES
        return self.n_bytes - self._feed.messages.nbytes + decisions_file_bytes

    def reset(self, plan: Plan) -> None:
        """Bring all memory to its state before a run of this plan; every page is touched here."""
        for name in (
            *("parameters", "edges", "release_slots", "batch_words", "decision_words", "think_counts"),
            *("total_counts", "think_stats", "total_stats", "time_bucket_words", "collections_header"),
        ):
            self.array(name)[:] = 0
        self.array("collections").view("<i8")[:] = 0
        combination.component("queue").initialize(self.array("queue"))
        combination.component("book").initialize(self.array("book"), *self._prices)
        for name in ("gap_words_feed", "gap_words_strategy"):
            gaps.initialize(self.array(name))
        tail_store.initialize(self.array("tail"))
        combination.component("stall").initialize(self.array("stall"), self._settings)
        for name in ("think_stats", "total_stats"):
            buckets.empty_stats(self.array(name))
        settings = self._settings
        parameters = {
            layout.PACED: settings["mode"] == "paced",
            layout.RATE_HZ: plan.rate_hz,
            layout.N_FILE: self._feed.count,
            layout.N_PLANNED: plan.n_messages,
            layout.N_WARMUP: plan.n_warmup,
            layout.N_BEFORE_EDGES: plan.n_before_edges,
            layout.SEQ_SPAN: self._seq_span,
            layout.N_INSTRUMENTS: self._feed.n_instruments,
            layout.INSTRUMENT: settings["instrument"],
            layout.GAP_THRESHOLD_NS: settings["gap_threshold_ns"],
            layout.STOP_ABOVE_NS: NEVER_NS if settings["stop_above_ns"] is None else settings["stop_above_ns"],
            layout.FULL_STORAGE: plan.is_full,
            layout.SUB_BITS: settings["precision_bits"],
            layout.TIME_BUCKET_NS: plan.time_bucket_ns,
            layout.N_TIME_BUCKETS: plan.n_time_buckets,
            layout.RELEASE_MASK: NEVER_NS - 1 if plan.is_full else plan.n_release_slots - 1,
            layout.N_RELEASE_SLOTS: plan.n_release_slots,
            layout.N_BATCH_SLOTS: plan.n_batch_slots,
            layout.N_STALL_WORDS: len(self.array("stall")),
            layout.N_HISTOGRAM_BUCKETS: buckets.n_buckets(settings["precision_bits"]),
        }
        parameters.update({word: self.address(name) for word, name in _ADDRESSES.items()})
        for word, value in parameters.items():
            self.parameters[word] = value
