"""The experiment in closed form against the same told request by request."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from sysmeter.analysis import omission
from sysmeter.analysis.omission import Experiment, percentile_curve, simulate
from sysmeter.hist import percentile_rank
from tests.support.histograms import filled

LENGTHS = st.integers(1, 40) | st.integers(1, 10**12)
EXPERIMENTS = st.builds(
    Experiment,
    interval_ns=LENGTHS,
    service_ns=st.integers(0, 40) | LENGTHS,
    stall_ns=st.integers(0, 400) | LENGTHS,
    stall_at_ns=st.integers(0, 2_000) | st.integers(0, 10**13),
    requests=st.integers(1, 90),
)


def told(experiment: Experiment) -> tuple[list[int], list[int], int | None]:
    """Both measurements of each request, and which one was hit, with the server as a loop."""
    naive, corrected, hit = [], [], None
    t_free_ns = 0
    for request in range(experiment.requests):
        t_due_ns = request * experiment.interval_ns
        t_begin_ns = max(t_due_ns, t_free_ns)
        t_free_ns = t_begin_ns + experiment.service_ns
        if hit is None and experiment.stall_ns and t_begin_ns >= experiment.stall_at_ns:
            hit = request
            t_free_ns += experiment.stall_ns
        naive.append(t_free_ns - t_begin_ns)
        corrected.append(t_free_ns - t_due_ns)
    return naive, corrected, hit


@given(EXPERIMENTS, st.sampled_from([1, 7, 1 << 20]))
def test_both_measurements_are_those_of_the_loop(experiment: Experiment, chunk: int) -> None:
    naive, corrected, hit = told(experiment)
    with patch.object(omission, "_CHUNK", chunk):
        outcome = simulate(experiment)
    assert outcome.naive == filled(naive, 5)
    assert outcome.corrected == filled(corrected, 5)
    assert outcome.stalled_request == hit
    assert outcome.delayed == sum(value > experiment.service_ns for value in corrected)
    t_begin_ns = corrected[-1] - naive[-1] + (experiment.requests - 1) * experiment.interval_ns
    assert outcome.t_last_begin_ns == t_begin_ns
    assert outcome.late_at_end_ns == corrected[-1] - naive[-1]


@given(EXPERIMENTS)
def test_the_corrected_measurement_is_never_the_better_one(experiment: Experiment) -> None:
    outcome = simulate(experiment)
    for percentile in (0, 50, 90, 99, 99.9, 100):
        assert outcome.corrected.percentile(percentile) >= outcome.naive.percentile(percentile)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_the_curve_is_every_percentile_of_the_histogram(values: list[int]) -> None:
    histogram = filled(values, 5)
    points = percentile_curve(histogram)
    assert points[-1] == (len(values), max(values))
    for percentile in ("0", "1", "50", "90", "99.9", "100"):
        rank = percentile_rank(percentile, len(values))
        assert next(value for n, value in points if n >= rank) == histogram.percentile(percentile)
