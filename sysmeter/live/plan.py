"""How many messages a live run has, and whether its memory is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sysmeter.errors import UsageError
from sysmeter.gcpolicy import OFF, GcPolicy, parse_policy
from sysmeter.units import NS_PER_MS, NS_PER_S

# Begin and end of each message are kept, in the workload (16 bytes) and in the Recording (64 bytes a message).
MAX_MESSAGES = 4_000_000

# The worker reads its witnesses so long before the window, some 0.2 ms of work, that nothing is late because of it.
_EDGE_LEAD_NS = 5 * NS_PER_MS

# A collection of a generation after so many of the one below it, CPython's own numbers for the older two. A full one
# also waits until what is new to the oldest generation is a quarter of what is in it (Modules/gcmodule.c, 3.11).
_COLLECTIONS_PER_FULL_ONE = 11 * 11
_FULL_WHEN_GROWN_BY = 4

# What is left to the rest of the host.
_MEMORY_PART = 0.8


@dataclass(frozen=True)
class Plan:
    """The size of one run, warm-up included."""

    n_messages: int
    n_warmup: int
    rate_hz: int
    is_paced: bool
    policy: GcPolicy

    @property
    def n_before_edge(self) -> int:
        """The worker reads its witnesses before this message, so early that it has caught up when the window begins."""
        if not self.is_paced:
            return self.n_warmup
        return max(0, self.n_warmup - max(1, self.rate_hz * _EDGE_LEAD_NS // NS_PER_S))

    @property
    def expected_ns(self) -> int:
        """How long the run lasts when it is paced."""
        return self.n_messages * NS_PER_S // self.rate_hz

    def n_uncollected(self, orders: int, containers_per_order: float) -> int:
        """The most orders that are garbage at a time, before a full collection frees them."""
        if self.policy.kind == OFF:
            return self.n_messages
        threshold = self.policy.threshold or 1_000
        allocated = threshold * _COLLECTIONS_PER_FULL_ONE / max(containers_per_order, 1)
        return min(self.n_messages, round(max(allocated, orders / _FULL_WHEN_GROWN_BY)))


def make_plan(settings: dict[str, Any]) -> Plan:
    """The plan for these settings, see sysmeter.session.

    Raises:
        UsageError: more messages than are kept, or a warm-up that leaves no window.
    """
    rate_hz = settings["rate_hz"]
    n_messages, n_warmup = round(settings["seconds"] * rate_hz), round(settings["warmup_seconds"] * rate_hz)
    if n_messages > MAX_MESSAGES:
        raise UsageError(
            f"{settings['seconds']:g} s at {rate_hz:,}/s are {n_messages:,} messages, and every one is kept, up to"
            f" {MAX_MESSAGES:,}",
            "ask for fewer --seconds or a lower --rate",
        )
    if n_warmup >= n_messages:
        raise UsageError(
            f"a warm-up of {n_warmup:,} messages leaves nothing to measure of {n_messages:,}",
            "shorten --warmup, or lengthen the run with --seconds, which count the warm-up",
        )
    return Plan(n_messages, n_warmup, rate_hz, settings["mode"] == "paced", parse_policy(settings["gc"]))


def check_memory(needed_bytes: int, available_bytes: int | None, what: str) -> None:
    """Refuse what would fill the memory of the host.

    Raises:
        UsageError: more is needed than may be taken.
    """
    if available_bytes is not None and needed_bytes > available_bytes * _MEMORY_PART:
        raise UsageError(
            f"{what} would take some {needed_bytes >> 20:,} MiB, and {available_bytes >> 20:,} MiB are available",
            "ask for fewer --seconds, a lower --rate or fewer --orders, or let the collector run (--gc default)",
        )
