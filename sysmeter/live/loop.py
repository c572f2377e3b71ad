"""The worker's loop: waits for each message's intended instant by reading the clock, then works on it.

The clock is read at every turn of the wait and between the steps of the work; two consecutive reads further apart than
the threshold are a gap. ``time.monotonic_ns`` is CLOCK_MONOTONIC.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sysmeter.live.orders import OrderCache, build_message, parse_fields, split_message
from sysmeter.records import GAP_IN_BATCH, GAP_IN_SPIN
from sysmeter.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from sysmeter.hist import LatencyHistogram
    from sysmeter.live.edges import Witnesses
    from sysmeter.live.plan import Plan
    from sysmeter.live.store import Store

# The first message is intended this long after the loop is entered.
START_DELAY_NS = 5 * NS_PER_MS


@dataclass
class Outcome:
    """What one pass of the loop did; the edges are None where it did not get so far."""

    t_start_ns: int = 0
    n_done: int = 0
    edges: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None)


def work_through(
    plan: Plan,
    threshold_ns: int,
    cache: OrderCache,
    store: Store,
    histograms: tuple[LatencyHistogram, LatencyHistogram],
    witnesses: Witnesses,
    outcome: Outcome,
) -> None:
    """Work through the plan's messages, or up to the one at which the stop word is set.

    ``histograms`` are those of service and response times; the warm-up's messages are in neither, and without a
    schedule there is no response time.
    """
    now, build, split, parse, put = time.monotonic_ns, build_message, split_message, parse_fields, cache.store
    begins, ends, stop, keep_gap = store.begins, store.ends, store.stop, store.keep_gap
    record_service, record_response = (histogram.record for histogram in histograms)
    rate_hz, is_paced, n_warmup, n_before_edge = plan.rate_hz, plan.is_paced, plan.n_warmup, plan.n_before_edge
    first_order = cache.n_stored
    opened: dict[str, Any] | None = None
    outcome.t_start_ns = t_start_ns = now() + START_DELAY_NS
    t_intended = last = now()
    for number in range(plan.n_messages):
        if number == n_before_edge:
            opened = witnesses.read_edge(closing=False)
            outcome.edges = (opened, None)
            last = opened["t_after_ns"]
        t = now()
        if t - last > threshold_ns:
            keep_gap(last, t, GAP_IN_SPIN)
        if is_paced:
            t_intended = t_start_ns + number * NS_PER_S // rate_hz
            while t < t_intended and not stop[0]:
                last = t
                t = now()
                if t - last > threshold_ns:
                    keep_gap(last, t, GAP_IN_SPIN)
        if stop[0]:
            break
        begin = last = t
        text = build(first_order + number)
        t = now()
        if t - last > threshold_ns:
            keep_gap(last, t, GAP_IN_BATCH)
        parts = split(text)
        last = t
        t = now()
        if t - last > threshold_ns:
            keep_gap(last, t, GAP_IN_BATCH)
        fields = parse(parts)
        last = t
        t = now()
        if t - last > threshold_ns:
            keep_gap(last, t, GAP_IN_BATCH)
        put(fields)
        last = t
        t = now()
        if t - last > threshold_ns:
            keep_gap(last, t, GAP_IN_BATCH)
        begins[number] = begin
        ends[number] = last = t
        outcome.n_done = number + 1
        if number >= n_warmup:
            record_service(t - begin)
            if is_paced:
                record_response(t - t_intended)
    if opened is not None:
        outcome.edges = (opened, witnesses.read_edge(closing=True))
