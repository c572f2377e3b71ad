"""How many messages a run has, and how they are kept: decided from the settings and the message file alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capstone import combination
from sysmeter.errors import UsageError
from sysmeter.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from capstone.feedfile import FeedFile

# Up to this many messages every batch, release and decision is kept (88 bytes a message, 352 MB); above it
# the slowest batches, time buckets and the histograms only, in memory that no longer grows.
FULL_STORAGE_MESSAGES = 4_000_000

# Releases that a run with bounded storage holds at a time: what waits in the queue, with much to spare.
BOUNDED_RELEASE_SLOTS = 1 << 20
# A queue without a bound may hold more. Paced, this is 160 s of backlog at 100,000 messages a second.
UNBOUNDED_QUEUE_RELEASE_SLOTS = 1 << 24

# The stalls of a run that are recorded; more are refused, as what is not recorded cannot be charged.
MAX_STALLS = 1 << 14

_EDGE_LEAD_NS = 2 * NS_PER_MS
_EDGE_LEAD_MESSAGES = 8_192

# The numbers of messages and of nanoseconds must fit the loop's 64-bit words with room to spare.
_MAX_MESSAGES = 1 << 50
_MAX_EXPECTED_NS = 1 << 61

_MIN_TIME_BUCKET_NS = NS_PER_S
_MAX_TIME_BUCKETS = 3_600


@dataclass(frozen=True)
class Plan:
    """The size of one run, warm-up included, and the storage that goes with it."""

    n_messages: int
    n_warmup: int
    rate_hz: int
    is_paced: bool
    queue_is_bounded: bool = True

    @property
    def is_full(self) -> bool:
        """Every batch is kept."""
        return self.n_messages <= FULL_STORAGE_MESSAGES

    @property
    def n_before_edges(self) -> int:
        """The threads read their witnesses before this message: so early that nothing waits for it in the window.

        An edge takes some 50 µs, in which messages of a paced run fall due. Two milliseconds' worth of them is
        time enough to catch up; a flat run has twice what the queue holds between the edge and the window.
        """
        lead = self.rate_hz * _EDGE_LEAD_NS // NS_PER_S if self.is_paced else _EDGE_LEAD_MESSAGES
        return max(0, self.n_warmup - lead)

    @property
    def n_batch_slots(self) -> int:
        """Batches and decisions that there is room for; no batch has less than one message."""
        return self.n_messages if self.is_full else 0

    @property
    def n_release_slots(self) -> int:
        """Releases that there is room for."""
        if self.is_full:
            return self.n_messages
        return BOUNDED_RELEASE_SLOTS if self.queue_is_bounded else UNBOUNDED_QUEUE_RELEASE_SLOTS

    @property
    def expected_ns(self) -> int:
        """How long the run lasts when it is paced."""
        return self.n_messages * NS_PER_S // self.rate_hz

    @property
    def time_bucket_ns(self) -> int:
        """Width of a time bucket: a second, or more where that would be too many buckets."""
        return max(_MIN_TIME_BUCKET_NS, -(-self.expected_ns // _MAX_TIME_BUCKETS))

    @property
    def n_time_buckets(self) -> int:
        """Time buckets, none where every batch is kept."""
        return 0 if self.is_full else self.expected_ns // self.time_bucket_ns + 1


def make_plan(settings: dict[str, Any], feed: FeedFile) -> Plan:
    """The plan for these settings and this file.

    Raises:
        UsageError: more than the file holds without ``loop``, or a warm-up that leaves no window.
    """
    rate_hz, seconds = settings["rate_hz"], settings["seconds"]
    n_warmup = round(settings["warmup_seconds"] * rate_hz)
    n_messages = feed.count if seconds is None else max(1, round(seconds * rate_hz))
    if n_messages > feed.count and not settings["loop"]:
        raise UsageError(
            f"{seconds:g} s at {rate_hz:,}/s are {n_messages:,} messages, and {feed.path.name} holds"
            f" {feed.count:,}, which last {feed.count / rate_hz:g} s",
            "repeat the file with --loop, or ask for fewer --seconds",
        )
    if n_warmup >= n_messages:
        raise UsageError(
            f"a warm-up of {n_warmup:,} messages leaves nothing to measure of {n_messages:,}",
            "shorten --warmup, or lengthen the run with --seconds (which count the warm-up) and --loop",
        )
    is_bounded = combination.is_bounded(settings["queue"])
    plan = Plan(n_messages, n_warmup, rate_hz, settings["mode"] == "paced", is_bounded)
    if not (plan.is_paced or plan.is_full or is_bounded):
        raise UsageError(
            f"the queue {settings['queue']} has no bound: a flat run of {n_messages:,} messages may fill the memory",
            f"pace it with --mode paced, or ask for {FULL_STORAGE_MESSAGES:,} messages at most",
        )
    every_ns = settings.get("stall_every_ns")
    if every_ns is not None and plan.expected_ns // every_ns > MAX_STALLS:
        raise UsageError(
            f"{plan.expected_ns // every_ns:,} stalls in one run are more than the {MAX_STALLS:,} that can be recorded",
            "make --stall-every longer, or the run shorter with --seconds",
        )
    if n_messages > _MAX_MESSAGES or plan.expected_ns > _MAX_EXPECTED_NS:
        raise UsageError(f"a run of {n_messages:,} messages is too long", "ask for fewer --seconds")
    return plan
