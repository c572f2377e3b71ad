"""Files of histograms against what was written into them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysmeter import histfiles
from sysmeter.hist import MAX_VALUE, LatencyHistogram
from sysmeter.histfiles import HistogramFile, Interval

pytest.importorskip("hdrh")

VALUES = st.lists(st.integers(-2, 2**63) | st.integers(0, 10**9), max_size=40)
TIMES = st.integers(0, 2 * 10**18)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=10)
TAGS = st.none() | TEXT.filter(lambda tag: tag and "," not in tag)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    histogram = LatencyHistogram(draw(st.integers(1, 12)))
    histogram.record_many(draw(VALUES))
    return Interval(histogram, draw(TAGS), draw(TIMES), draw(TIMES))


@given(st.lists(intervals(), max_size=4), st.lists(TEXT.map(lambda text: f"c {text}"), max_size=3))
def test_a_log_is_read_back_as_it_was_written(written: list[Interval], comments: list[str]) -> None:
    start_ns = min((one.t_start_ns or 0 for one in written), default=0)
    file = HistogramFile(histfiles.LOG, written, comments, start_ns, start_ns)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.hlog"
        histfiles.write(path, histfiles.LOG, file)
        assert histfiles.read(path) == file


@given(VALUES, st.integers(1, 7))
def test_a_distribution_keeps_count_and_maximum_and_is_never_too_low(values: list[int], sub_bits: int) -> None:
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(values)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.hgrm"
        histfiles.write(path, histfiles.DISTRIBUTION, HistogramFile(histfiles.DISTRIBUTION, [Interval(histogram)]))
        found = histfiles.read(path).intervals[0].histogram
    assert (found.count, found.max) == (histogram.count, histogram.max)
    counted = [value for value in values if 0 <= value <= MAX_VALUE]
    for p in (0, 1, 25, 50, 90, 99, 100) if counted else ():
        exact, read = histogram.percentile(p), found.percentile(p)
        assert exact is not None
        assert read is not None
        assert exact <= read
    if counted:
        # Printed with digits that do, and kept where minimum and maximum, which come from the rows, leave it.
        mean = min(max(sum(counted) / len(counted), found.min or 0), found.max or 0)
        assert abs((found.mean or 0) - mean) <= 0.05 + mean * 1e-15
