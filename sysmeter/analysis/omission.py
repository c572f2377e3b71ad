"""What a tester that waits for each response leaves out: one experiment in virtual time, measured in two ways.

One client plans a request every ``interval_ns``. One server answers one request at a time, each in ``service_ns``,
but the first one that begins at ``stall_at_ns`` or later takes ``stall_ns`` more. A request begins when it is due or,
later, when the one before it is answered. Its response is measured from its begin (naive: what a tester that waits
for each response sees) and from the instant at which it was due (corrected: what a client on a schedule of its own
sees). Nothing waits or sleeps, and nothing is random.

The term coordinated omission is Gil Tene's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.summary import PERCENTILES
from sysmeter.errors import UsageError
from sysmeter.hist import MAX_VALUE, LatencyHistogram, bucket_upper_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

SCHEMA = "sysmeter.omission/1"

_CHUNK = 1 << 20  # requests worked out at once: a few MiB, however many there are

_INTERVALS = {
    "naive": "request begun -> response (what a tester that waits for each response measures)",
    "corrected": "request due -> response (what a client on its own schedule experiences)",
}


@dataclass(frozen=True)
class Experiment:
    """The parameters; lengths in ns, ``stall_at_ns`` after the instant at which the first request is due.

    Raises:
        UsageError: the experiment would last longer than 2**63 - 1 ns (292 years).
    """

    interval_ns: int = 10_000_000
    service_ns: int = 1_000_000
    stall_ns: int = 1_000_000_000
    stall_at_ns: int = 5_000_000_000
    requests: int = 1_000

    def __post_init__(self) -> None:
        least = {"interval_ns": 1, "service_ns": 0, "stall_ns": 0, "stall_at_ns": 0, "requests": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}, less than {minimum}")
        # Also more than what instants of a request beyond the last one come to, and the figures' int64 arithmetic.
        end_ns = (self.requests + 1) * max(self.interval_ns, self.service_ns) + self.service_ns + self.stall_ns
        if max(end_ns, self.stall_at_ns) > MAX_VALUE:
            raise UsageError(
                "the experiment would last longer than 292 years, which 64 bits of nanoseconds do not hold",
                "shorten the durations, or make fewer requests",
            )


@dataclass(frozen=True)
class Outcome:
    """Both measurements. ``stalled_request`` is None where no request was hit: all began before, or its length is 0."""

    naive: LatencyHistogram
    corrected: LatencyHistogram
    delayed: int  # responses that took longer than the service, counted from when they were due
    stalled_request: int | None  # its number, from 0
    t_stalled_ns: int | None
    t_last_begin_ns: int
    late_at_end_ns: int  # how late the last request began


def begins_ns(experiment: Experiment, stalled_request: int | None, request: npt.NDArray[np.int64]) -> Any:
    """When each of the requests numbered ``request`` begins (int64 of the same shape).

    Without a stall request i begins at i times the longer of interval and service. After the stalled one the requests
    follow each other at once until one is due later than that, and from then on as if nothing had been: the later of
    the two is when each begins.
    """
    step_ns = max(experiment.interval_ns, experiment.service_ns)
    plain = request * step_ns
    if stalled_request is None:
        return plain
    t_freed_ns = stalled_request * step_ns + experiment.service_ns + experiment.stall_ns
    back_to_back = t_freed_ns + (request - stalled_request - 1) * experiment.service_ns
    return np.where(request > stalled_request, np.maximum(plain, back_to_back), plain)


def simulate(experiment: Experiment) -> Outcome:
    """Carry the experiment out; 10 million requests take about a second."""
    step_ns = max(experiment.interval_ns, experiment.service_ns)
    first_after = -(-experiment.stall_at_ns // step_ns)
    stalled = first_after if experiment.stall_ns and first_after < experiment.requests else None
    naive, corrected, delayed = LatencyHistogram(), LatencyHistogram(), 0
    t_begin = np.zeros(1, np.int64)
    request = t_begin
    for request in _chunks(experiment.requests):
        t_begin = begins_ns(experiment, stalled, request)
        cost = np.full(len(request), experiment.service_ns, np.int64)
        if stalled is not None:
            cost[request == stalled] += experiment.stall_ns
        response = t_begin + cost - request * experiment.interval_ns
        naive.record_many(cost)
        corrected.record_many(response)
        delayed += int(np.count_nonzero(response > experiment.service_ns))
    t_last_ns = int(t_begin[-1])
    return Outcome(
        naive=naive,
        corrected=corrected,
        delayed=delayed,
        stalled_request=stalled,
        t_stalled_ns=None if stalled is None else stalled * step_ns,
        t_last_begin_ns=t_last_ns,
        late_at_end_ns=t_last_ns - int(request[-1]) * experiment.interval_ns,
    )


def _chunks(n_requests: int) -> Iterator[npt.NDArray[np.int64]]:
    for first in range(0, n_requests, _CHUNK):
        yield np.arange(first, min(first + _CHUNK, n_requests), dtype=np.int64)


def describe(experiment: Experiment, outcome: Outcome) -> dict[str, Any]:
    """The result, schema ``sysmeter.omission/1``: JSON-ready, integer ns, null for what has no value.

    ``naive`` and ``corrected`` have the keys of a latency of ``sysmeter.run/1`` and ``summary``, their line of text.
    ``low_by`` says how many times as large the corrected figure is. ``overloaded``: the server cannot keep up with the
    plan even without a stall.
    """
    unit = choose_unit(experiment, outcome)
    measured = {"naive": outcome.naive, "corrected": outcome.corrected}
    rows = {name: _row(name, histogram, unit) for name, histogram in measured.items()}
    stall = None
    if outcome.stalled_request is not None:
        stall = {"request": outcome.stalled_request, "t_start_ns": outcome.t_stalled_ns}
    return {
        "schema": SCHEMA,
        "parameters": {
            "interval_ns": experiment.interval_ns,
            "service_ns": experiment.service_ns,
            "stall_ns": experiment.stall_ns,
            "stall_at_ns": experiment.stall_at_ns,
        },
        "requests": experiment.requests,
        **rows,
        "delayed": outcome.delayed,
        "low_by": {
            "mean": _ratio(rows["corrected"]["mean_ns"], rows["naive"]["mean_ns"]),
            "p99": _ratio(rows["corrected"]["p99_ns"], rows["naive"]["p99_ns"]),
        },
        "stall": stall,
        "overloaded": experiment.service_ns > experiment.interval_ns,
        "t_last_begin_ns": outcome.t_last_begin_ns,
        "late_at_end_ns": outcome.late_at_end_ns,
    }


def _row(name: str, histogram: LatencyHistogram, unit: str) -> dict[str, Any]:
    return {
        "interval": _INTERVALS[name],
        "count": histogram.count,
        "min_ns": histogram.min,
        "mean_ns": histogram.mean,
        **{key: histogram.reportable_percentile(percentile) for key, percentile in PERCENTILES},
        "max_ns": histogram.max,
        "n_negative": histogram.n_negative,
        "sub_bits": histogram.sub_bits,
        "summary": histogram.summary(name, unit),
    }


def _ratio(corrected: float | None, naive: float | None) -> float | None:
    return None if corrected is None or not naive else corrected / naive


def choose_unit(experiment: Experiment, outcome: Outcome) -> str:
    """The unit of both lines: ms, unless that leaves the shortest figure too few digits, or the longest too many.

    The lines have two decimals and room for 8 characters, so for 99,999.99 of the unit.
    """
    least_ns, most_ns = experiment.service_ns, outcome.corrected.max or 0
    if least_ns >= 100_000 or not least_ns:
        # Seconds only where that costs no digit that milliseconds show.
        return "s" if most_ns >= 100_000_000_000 and least_ns >= 100_000_000 else "ms"
    return "us" if least_ns >= 100 else "ns"


def percentile_curve(histogram: LatencyHistogram) -> list[tuple[int, int]]:
    """The whole distribution, shortest first: (how many values lie at or below it, its upper bound in ns) by bucket.

    The last bucket's value is the exact maximum, as for every percentile.
    """
    filled = np.flatnonzero(histogram.counts)
    at_or_below = np.cumsum(histogram.counts[filled])
    maximum = histogram.max or 0
    return [
        (n, min(bucket_upper_bound(index, histogram.sub_bits), maximum))
        for index, n in zip(filled.tolist(), at_or_below.tolist(), strict=True)
    ]
