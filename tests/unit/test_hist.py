"""The public histogram: the stated vectors, what is refused, files, and the same arithmetic in compiled code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from sysmeter.errors import HistogramFileError
from sysmeter.hist import MAX_VALUE, LatencyHistogram, bucket_index, bucket_upper_bound
from tests.support.histograms import filled


def recorded(*values: int, sub_bits: int = 5) -> LatencyHistogram:
    histogram = LatencyHistogram(sub_bits)
    for value in values:
        histogram.record(value)
    return histogram


def test_one_slow_value_in_a_thousand_is_beyond_p99_9() -> None:
    histogram = recorded(*[100] * 999, 1_000_000)
    assert histogram.percentile(99.9) == bucket_upper_bound(bucket_index(100, 5), 5)
    assert histogram.percentile("99.91") == histogram.percentile(100) == 1_000_000


def test_the_rank_is_exact() -> None:
    histogram = recorded(1, 2, 2, 2, 2)
    assert (histogram.percentile(25), histogram.percentile(20)) == (2, 1)
    # 99.9 as a binary fraction lies below 999/1000, and a rank worked out in floats may lie one off.
    for p in (99.9, "99.9", np.float64(99.9), Fraction(999, 10)):
        assert recorded(*[1] * 999, 2).percentile(p) == 1


def test_an_empty_histogram_has_no_figures() -> None:
    empty = LatencyHistogram()
    assert (empty.count, empty.sum, empty.min, empty.max, empty.mean) == (0, 0, None, None, None)
    assert (empty.percentile(0), empty.percentile(50), empty.reportable_percentile(50)) == (None, None, None)
    assert empty.summary("empty", "us") == (
        "empty      mean=     n/a p50=     n/a p90=     n/a p99=     n/a p99.9=     n/a max=     n/a us"
    )


def test_the_line_says_na_where_too_few_samples_stand_behind() -> None:
    assert recorded(*range(1_000_000, 101_000_000, 1_000_000)).summary("a name too long", "ms") == (
        "a name too long mean=   50.50 p50=   50.33 p90=   90.18 p99=  100.00 p99.9=     n/a max=  100.00 ms"
    )
    assert recorded(1_500).summary("one", "us") == (
        "one        mean=    1.50 p50=     n/a p90=     n/a p99=     n/a p99.9=     n/a max=    1.50 us"
    )


def test_values_outside_are_counted_apart() -> None:
    histogram = recorded(-1, 0, MAX_VALUE, MAX_VALUE, MAX_VALUE + 1, -(2**70))
    assert (histogram.count, histogram.n_negative, histogram.n_overflow) == (2 + 1, 2, 1)
    assert (histogram.min, histogram.max, histogram.sum) == (0, MAX_VALUE, 2 * MAX_VALUE)
    assert (histogram.percentile(0), histogram.percentile(50)) == (0, MAX_VALUE)
    many = LatencyHistogram()
    many.record_many([-1, 0, MAX_VALUE, MAX_VALUE, MAX_VALUE + 1, -(2**70)])
    assert many == histogram


@pytest.mark.parametrize("value", [1.0, 2.5, "3", None, np.float64(4)])
def test_what_is_no_integer_is_refused_and_nothing_counted(value: object) -> None:
    histogram = recorded(1, 5)
    before = histogram.to_dict()
    with pytest.raises(TypeError, match="must be an integer"):
        histogram.record(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an integer"):
        histogram.record_corrected(1, value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        histogram.record_many([1, value])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="integer"):
        histogram.record_many(np.array([1, value]))
    assert histogram.to_dict() == before


def test_integers_of_numpys_and_nothing_at_all_are_taken() -> None:
    histogram = recorded(np.int32(70), np.uint64(2**63), np.int64(-3), True)  # type: ignore[arg-type]
    for nothing in ([], (), np.empty(0), np.empty((0, 3), np.int16), iter(())):
        histogram.record_many(nothing)
    histogram.record_many(x for x in (70, 1))
    assert (histogram.count, histogram.sum, histogram.n_negative, histogram.n_overflow) == (4, 142, 1, 1)


@pytest.mark.parametrize("sub_bits", [0, 13, -1])
def test_other_precisions_are_refused(sub_bits: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 12"):
        LatencyHistogram(sub_bits)


@pytest.mark.parametrize("p", [-0.1, 100.1, "101", float("nan"), float("inf"), "p50"])
def test_other_percentiles_are_refused(p: float | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        recorded(1).percentile(p)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="minutes"):
        recorded(1).summary("x", "minutes")


def test_correcting_an_hour_by_a_nanosecond_takes_no_hour() -> None:
    histogram = LatencyHistogram()
    hour_ns = 3_600 * 10**9
    histogram.record_corrected(hour_ns, 1)
    assert (histogram.count, histogram.min, histogram.max) == (hour_ns, 1, hour_ns)
    assert histogram.sum == hour_ns * (hour_ns + 1) // 2
    assert int(histogram.counts.sum()) == hour_ns
    assert histogram.percentile(50) == bucket_upper_bound(bucket_index(hour_ns // 2, 5), 5)


def test_more_values_than_can_be_counted_are_refused() -> None:
    histogram = LatencyHistogram()
    histogram.record_corrected(MAX_VALUE, 1)
    assert (histogram.count, histogram.sum) == (MAX_VALUE, MAX_VALUE * (MAX_VALUE + 1) // 2)
    before = histogram.to_dict()
    with pytest.raises(OverflowError):
        histogram.record_corrected(2, 1)
    with pytest.raises(OverflowError):
        histogram.merge(histogram)
    assert histogram.to_dict() == before


def test_saved_and_loaded(tmp_path) -> None:
    path = tmp_path / "saved.json"
    path.write_text("older")
    histogram = recorded(-1, 0, 5, 10**12, MAX_VALUE + 1, sub_bits=9)
    histogram.save(path)
    assert LatencyHistogram.load(path) == histogram
    assert json.loads(path.read_text())["schema"] == "sysmeter.hist/1"
    assert os.listdir(tmp_path) == ["saved.json"]


@pytest.mark.parametrize("place", ["", "missing/saved.json", "file/saved.json"])
def test_a_place_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, place) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HistogramFileError, match="cannot write") as caught:
        recorded(1).save(tmp_path / place)
    assert caught.value.hint
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_older_file(tmp_path) -> None:
    recorded(1).save(tmp_path / "saved.json")
    older = (tmp_path / "saved.json").read_bytes()
    program = (
        "import resource, signal, sys\n"
        "from sysmeter.errors import HistogramFileError\n"
        "from sysmeter.hist import LatencyHistogram\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"
        "try:\n"
        "    LatencyHistogram().save(sys.argv[1])\n"
        "except HistogramFileError as error:\n"
        "    print(error.message)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "saved.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot write the histogram file" in done.stdout
    assert os.listdir(tmp_path) == ["saved.json"]
    assert (tmp_path / "saved.json").read_bytes() == older


GOOD = recorded(3, 70, 70, 1_000).to_dict()
BROKEN = {
    "another schema": {"schema": "sysmeter.hist/2"},
    "a precision out of range": {"sub_bits": 0},
    "a precision that is no number": {"sub_bits": "5"},
    "too many samples": {"count": 5},
    "a bucket beyond the last": {"counts": [*GOOD["counts"], [10**6, 1]]},
    "buckets that do not ascend": {"counts": GOOD["counts"][::-1]},
    "a bucket twice": {"counts": [[3, 1], [3, 1], *GOOD["counts"][1:]]},
    "no samples in a bucket": {"counts": [[3, 0], *GOOD["counts"][1:]]},
    "a true for a number": {"counts": [[3, True], *GOOD["counts"][1:]]},
    "counts that are no list": {"counts": {"3": 1}},
    "a minimum elsewhere": {"min_ns": 4},
    "a maximum elsewhere": {"max_ns": 2_000},
    "a maximum missing": {"max_ns": None},
    "a sum too small": {"sum_ns": 11},
    "a sum too large": {"sum_ns": 4_001},
    "a fraction": {"n_negative": 0.5},
    "a number beyond 64 bits": {"n_overflow": 2**63},
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_description_that_contradicts_itself_is_refused(what: str) -> None:
    assert LatencyHistogram.from_dict(GOOD).to_dict() == GOOD
    with pytest.raises(ValueError, match=r"."):
        LatencyHistogram.from_dict({**GOOD, **BROKEN[what]})


@pytest.mark.parametrize("missing", GOOD)
def test_a_description_that_lacks_something_is_refused(missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        LatencyHistogram.from_dict({name: value for name, value in GOOD.items() if name != missing})


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"null", b"\xff\xfe", b"[" * 100_000, b'{"schema": "sysmeter.hist/1"}', b"1" * 5_000],
)
def test_a_damaged_file_is_an_error_with_a_remedy(tmp_path, content) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(HistogramFileError, match=r"x\.json") as caught:
        LatencyHistogram.load(tmp_path / "x.json")
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "missing.json"])
def test_a_file_that_is_not_there_is_an_error_with_a_remedy(tmp_path, name) -> None:
    with pytest.raises(HistogramFileError, match="cannot read") as caught:
        LatencyHistogram.load(tmp_path / name)
    assert caught.value.hint


def test_compiled_code_records_into_the_same_arrays() -> None:
    from capstone.compiled import compiled, record_value

    @compiled
    def record_all(counts, stats, values, sub_bits):  # type: ignore[no-untyped-def]
        for value in values:
            record_value(counts, stats, value, sub_bits)

    edges = [v for k in range(63) for v in (2**k - 1, 2**k, 2**k + 1)] + [MAX_VALUE, MAX_VALUE, MAX_VALUE - 1, -1, -5]
    for sub_bits in (1, 5, 12):
        histogram = LatencyHistogram(sub_bits)
        histogram.record(77)
        record_all(histogram.counts, histogram.stats, np.array(edges, np.int64), sub_bits)
        histogram.record(78)
        histogram.record(MAX_VALUE)
        record_all(histogram.counts, histogram.stats, np.array([0, 3], np.int64), sub_bits)
        assert histogram == filled([77, *edges, 78, MAX_VALUE, 0, 3], sub_bits)
        assert histogram.sum == 77 + sum(v for v in edges if v >= 0) + 78 + MAX_VALUE + 3


def test_the_plain_record_of_compiled_code_is_the_same() -> None:
    from sysmeter.hist import record_value

    histogram = LatencyHistogram(3)
    values = [5, MAX_VALUE, -3, MAX_VALUE, 0]
    for value in values:
        record_value(histogram.counts, histogram.stats, value, 3)
    assert histogram == filled(values, 3)


def test_compiled_code_allocates_nothing() -> None:
    program = (
        "import numba\n"
        "from numba.core.runtime import rtsys\n"
        "from capstone.compiled import record_value\n"
        "from sysmeter.hist import LatencyHistogram\n"
        "@numba.njit\n"
        "def record_all(counts, stats, n, sub_bits):\n"
        "    for value in range(n):\n"
        "        record_value(counts, stats, value * 1_000_003, sub_bits)\n"
        "numba.njit(lambda n: [n, n])(1)\n"  # starts the counting, and shows that it works
        "assert rtsys.get_allocation_stats().alloc > 0\n"
        "histogram = LatencyHistogram()\n"
        "found = []\n"
        "for n in (1, 1, 100_000):\n"
        "    before = rtsys.get_allocation_stats()\n"
        "    record_all(histogram.counts, histogram.stats, n, 5)\n"
        "    after = rtsys.get_allocation_stats()\n"
        "    found.append(after.alloc - before.alloc)\n"
        "assert histogram.count == 100_002\n"
        "print(found[2] - found[1])\n"  # handing over the arrays costs something, recording nothing
    )
    environment = {**os.environ, "NUMBA_NRT_STATS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["0"], done.stdout + done.stderr
