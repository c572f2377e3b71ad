"""HdrHistogram's files: lossless with ourselves, understood by the package, strict with what others wrote."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import histfiles
from sysmeter.errors import HistogramFileError
from sysmeter.hist import MAX_VALUE, LatencyHistogram, n_buckets
from sysmeter.histfiles import HistogramFile, Interval
from sysmeter.units import NS_PER_MS, NS_PER_S

HdrHistogram = pytest.importorskip("hdrh.histogram").HdrHistogram
HistogramLogReader = pytest.importorskip("hdrh.log").HistogramLogReader

START_NS = 1_441_812_279_474 * NS_PER_MS
VALUES = [0, 1, 70, 1_234, 99_999, 10**6 + 1, 10**6 + 2, 3_599_000_000_123]
# Of these, the package's rank, which is rounded to the nearest, and ours, which is exact, are the same for VALUES.
PERCENTILES = (12.5, 50, 75, 87.5, 100)


def recorded(values: list[int], sub_bits: int = 5) -> LatencyHistogram:
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(values)
    return histogram


def a_log() -> HistogramFile:
    return HistogramFile(
        histfiles.LOG,
        [
            Interval(recorded([*VALUES, -3, MAX_VALUE + 1]), "think", START_NS + 127 * NS_PER_MS, 1_007 * NS_PER_MS),
            Interval(recorded([MAX_VALUE, MAX_VALUE, 5], 12), "total", START_NS + NS_PER_S + 1, 1),
            Interval(recorded([]), None, START_NS + 2 * NS_PER_S, 0),
        ],
        ["first of all", "[with, brackets] and µ"],
        START_NS,
        START_NS,
    )


def encoded(values: list[int], digits: int = 3, lowest: int = 1, highest: int = 3_600 * 10**9) -> str:
    hdr = HdrHistogram(lowest, highest, digits)
    for value in values:
        assert hdr.record_value(value)
    text: bytes = hdr.encode()
    return text.decode()


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def foreign(path: Path, *values: int, **options: Any) -> Path:
    return write_lines(path, '"StartTimestamp","Interval_Length"', f"0.1,1.0,3.0,{encoded(list(values), **options)}")


def test_a_log_is_read_back_without_loss(tmp_path) -> None:
    path = tmp_path / "a.hlog"
    written = a_log()
    histfiles.write(path, histfiles.LOG, written)
    found = histfiles.read(path)
    assert [interval.histogram for interval in found.intervals] == [one.histogram for one in written.intervals]
    assert found == written


def test_the_package_reads_what_is_written(tmp_path) -> None:
    path = tmp_path / "a.hlog"
    written = a_log()
    histfiles.write(path, histfiles.LOG, written)
    reader = HistogramLogReader(str(path), HdrHistogram(1, 10**12, 2))
    for interval in written.intervals:
        found = reader.get_next_interval_histogram()
        ours = interval.histogram
        assert (found.get_tag(), found.get_total_count()) == (interval.tag, ours.count)
        assert found.get_start_time_stamp() == pytest.approx((interval.t_start_ns or 0) / NS_PER_MS)
        for p in PERCENTILES if ours.count else ():
            value = ours.percentile(p)
            assert found.values_are_equivalent(found.get_value_at_percentile(p), value)
    assert reader.get_next_interval_histogram() is None


@pytest.mark.parametrize("digits", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("lowest", [1, 1_000])
def test_percentiles_of_a_foreign_log_are_the_packages(tmp_path, digits, lowest) -> None:
    highest = 3_600 * 10**9
    path = foreign(tmp_path / "a.hlog", *VALUES * 3, digits=digits, lowest=lowest, highest=highest)
    (found,) = histfiles.read(path).intervals
    hdr = HdrHistogram(lowest, highest, digits)
    assert (found.histogram.count, found.bucketed) == (24, ("min", "mean", "max"))
    assert (found.histogram.min or 0) <= hdr.get_highest_equivalent_value(min(VALUES))
    for p in PERCENTILES:
        theirs, ours = hdr.get_highest_equivalent_value(VALUES[int(p * 8 / 100) - 1]), found.histogram.percentile(p)
        # Up to 3 digits the buckets are the same; of finer ones, and of lowest values, ours hold several or a part.
        assert ours == theirs if digits <= 3 and lowest == 1 else theirs <= (ours or 0) <= theirs * (1 + 2**-10)
    assert found.histogram.mean == pytest.approx(sum(VALUES) / len(VALUES), rel=10**-digits)


def test_times_count_from_the_stated_base_else_from_what_hdrhistogram_takes(tmp_path) -> None:
    line = f"127.5,1.0,3.0,{encoded([5])}"
    absolute = f"1441812280.5,1.0,3.0,{encoded([5])}"
    start = "#[StartTime: 1441812279.474 (seconds since epoch), Wed Sep 09 08:24:39 PDT 2015]"
    base = "#[BaseTime: 1441812000.000 (seconds since epoch)]"
    for lines, t_start_ns in (
        ((start, line), START_NS + 127_500 * NS_PER_MS),
        ((start, absolute), 1_441_812_280_500 * NS_PER_MS),
        ((start, base, line), 1_441_812_127_500 * NS_PER_MS),
        ((line,), 127_500 * NS_PER_MS),
    ):
        file = histfiles.read(write_lines(tmp_path / "a.hlog", *lines))
        assert [interval.t_start_ns for interval in file.intervals] == [t_start_ns]


def test_a_second_log_in_a_file_has_times_of_its_own(tmp_path) -> None:
    start, later = (f"#[StartTime: {at}.0 (seconds since epoch), x]" for at in (1_441_812_279, 1_441_900_000))
    line = f"1.0,1.0,3.0,{encoded([5])}"
    file = histfiles.read(write_lines(tmp_path / "a.hlog", start, line, later, line))
    assert [interval.t_start_ns for interval in file.intervals] == [1_441_812_280 * NS_PER_S, 1_441_900_001 * NS_PER_S]
    assert file.start_time_ns == 1_441_812_279 * NS_PER_S


def test_values_in_another_unit(tmp_path) -> None:
    path = foreign(tmp_path / "a.hlog", 5, 1_000, 10**12)
    assert histfiles.read(path, "us").intervals[0].histogram.percentile(34) == pytest.approx(10**6, rel=2e-3)
    in_seconds = histfiles.read(path, "s").intervals[0].histogram
    assert (in_seconds.count, in_seconds.n_overflow) == (2, 1)
    histfiles.write(tmp_path / "own.hlog", histfiles.LOG, a_log())
    assert histfiles.read(tmp_path / "own.hlog", "ms") == a_log()


GOOD = encoded(VALUES)
RAW = base64.b64decode(GOOD)
OWN = "#[sysmeter sub_bits=5 count={} min_ns=0 max_ns=3599000000123 sum_ns=3599002101428 n_negative=0 n_overflow=0]"
BROKEN = {
    "words": ("some words",),
    "no histogram": ("0.1,1.0,3.0,",),
    "a field missing": (f"1.0,3.0,{GOOD}",),
    "a tag without a name": (f"Tag=,0.1,1.0,3.0,{GOOD}",),
    "a time that is no number": (f"0.1x,1.0,3.0,{GOOD}",),
    "decimal commas": (f"0,1,1,0,3,0,{GOOD}",),
    "a histogram cut off": (f"0.1,1.0,3.0,{GOOD[:-20]}",),
    "a histogram cut off at a group": (f"0.1,1.0,3.0,{GOOD[:40]}",),
    "a character that is none of base64": (f"0.1,1.0,3.0,{GOOD[:30]}~{GOOD[30:]}",),
    "a character changed": (f"0.1,1.0,3.0,{GOOD[:60]}{'A' if GOOD[60] != 'A' else 'B'}{GOOD[61:]}",),
    "another encoding": (f"0.1,1.0,3.0,{base64.b64encode(bytes([RAW[0] ^ 1]) + RAW[1:]).decode()}",),
    "rubbish": ("0.1,1.0,3.0,AAAA",),
    "a start time that is none": ("#[StartTime: yesterday]", f"0.1,1.0,3.0,{GOOD}"),
    "a base time that is none": ("#[BaseTime: (seconds since epoch)]", f"0.1,1.0,3.0,{GOOD}"),
    "another version": ("#[Histogram log format version 2.0]", f"0.1,1.0,3.0,{GOOD}"),
    "figures that are none": ("#[sysmeter sub_bits=five]", f"0.1,1.0,3.0,{GOOD}"),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_broken_line_is_named_by_its_number(tmp_path, what, n_before) -> None:
    before = ["#comment", f"Tag=a,0.1,1.0,3.0,{GOOD}"][:n_before]
    path = write_lines(tmp_path / "a.hlog", *before, *BROKEN[what], f"9.0,1.0,3.0,{GOOD}")
    with pytest.raises(HistogramFileError, match=rf"a\.hlog: line {n_before + 1}: ") as caught:
        histfiles.read(path)
    assert caught.value.hint


@pytest.mark.parametrize(
    "figures", [OWN.format(9), OWN.format(8).replace("max_ns=3", "max_ns=2"), "#[sysmeter count=8]"]
)
def test_figures_that_do_not_fit_the_histogram_are_a_broken_line(tmp_path, figures) -> None:
    histfiles.read(write_lines(tmp_path / "a.hlog", OWN.format(8), f"0.1,1.0,3.0,{encoded(VALUES, 2)}"))
    path = write_lines(tmp_path / "a.hlog", figures, f"0.1,1.0,3.0,{encoded(VALUES, 2)}")
    with pytest.raises(HistogramFileError, match="line 2: it does not fit the figures"):
        histfiles.read(path)


def test_a_line_that_is_no_text_is_named_by_its_number(tmp_path) -> None:
    (tmp_path / "a.hlog").write_bytes(b"#fine\n#\xff\n")
    with pytest.raises(HistogramFileError, match="line 2: not text"):
        histfiles.read(tmp_path / "a.hlog")


@pytest.mark.parametrize("name", ["a.hlog", "a.hgrm", "a.json", "a"])
def test_an_empty_file_is_no_file_without_histograms(tmp_path, name) -> None:
    (tmp_path / name).touch()
    with pytest.raises(HistogramFileError, match=r"empty|not a histogram file"):
        histfiles.read(tmp_path / name)
    with pytest.raises(HistogramFileError, match="cannot read"):
        histfiles.read(tmp_path / f"missing-{name}")


def test_a_log_may_be_empty_or_end_without_a_line_feed_or_have_crlf(tmp_path) -> None:
    path = tmp_path / "a.hlog"
    path.write_text("#[Histogram log format version 1.3]")
    assert histfiles.read(path).intervals == []
    path.write_bytes(f"#c\r\n\r\nTag=a,0.1,1.0,3.0,{GOOD}".encode())
    file = histfiles.read(path)
    assert (file.comments, [one.tag for one in file.intervals]) == (["c"], ["a"])


def test_a_payload_that_unpacks_to_far_too_much_is_refused(tmp_path) -> None:
    import zlib

    packed = zlib.compress(bytes(100 << 20))
    content = RAW[:4] + len(packed).to_bytes(4, "big") + packed
    path = write_lines(tmp_path / "a.hlog", f"0.1,1.0,3.0,{base64.b64encode(content).decode()}")
    with pytest.raises(HistogramFileError, match=r"line 1: .*much too large"):
        histfiles.read(path)


@pytest.mark.parametrize(
    ("field", "at", "size"), [("offset", 8, 4), ("digits", 12, 4), ("lowest", 16, 8), ("highest", 24, 8)]
)
def test_an_impossible_header_is_refused(tmp_path, field, at, size) -> None:
    import zlib

    payload = bytearray(zlib.decompress(RAW[8:]))
    payload[at : at + size] = b"\xff" * size
    packed = zlib.compress(bytes(payload))
    content = RAW[:4] + len(packed).to_bytes(4, "big") + packed
    path = write_lines(tmp_path / "a.hlog", f"0.1,1.0,3.0,{base64.b64encode(content).decode()}")
    with pytest.raises(HistogramFileError, match=r"line 1: .*cannot be read"):
        histfiles.read(path)


def test_more_samples_than_the_package_can_encode_are_an_error(tmp_path) -> None:
    counts = np.zeros(n_buckets(5), np.int64)
    counts[7] = 2**62
    histogram = LatencyHistogram.from_parts(counts, 5, 2**62, 7, 7, 7 * 2**62)
    with pytest.raises(HistogramFileError, match="more than a log"):
        histfiles.write(tmp_path / "a.hlog", histfiles.LOG, HistogramFile(histfiles.LOG, [Interval(histogram)]))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("tag", ["", "a,b", "a b", "a\nb"])
def test_a_tag_that_would_break_the_line_is_refused(tmp_path, tag) -> None:
    file = HistogramFile(histfiles.LOG, [Interval(recorded([1]), tag)])
    with pytest.raises(ValueError, match="tag"):
        histfiles.write(tmp_path / "a.hlog", histfiles.LOG, file)


@pytest.mark.parametrize("kind", histfiles.KINDS)
def test_nothing_is_overwritten_unless_asked(tmp_path, kind) -> None:
    path = tmp_path / f"a.{kind}"
    histfiles.write(path, kind, a_log())
    before = path.read_bytes()
    with pytest.raises(HistogramFileError, match="File exists"):
        histfiles.write(path, kind, HistogramFile(kind, []))
    assert path.read_bytes() == before
    histfiles.write(path, kind, HistogramFile(kind, [Interval(recorded([7]))]), replace=True)
    assert [one.histogram.count for one in histfiles.read(path).intervals] == [1]
    assert os.listdir(tmp_path) == [path.name]


# ── .hgrm ──


def test_a_distribution_keeps_count_maximum_mean_and_its_rows(tmp_path) -> None:
    histogram = recorded([(k * k + 7) * 13 for k in range(5_000)], 7)
    path = tmp_path / "a.hgrm"
    histfiles.write(path, histfiles.DISTRIBUTION, HistogramFile(histfiles.DISTRIBUTION, [Interval(histogram)]))
    lines = path.read_text().splitlines()
    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    assert f"{histogram.max}.00, TotalCount     =      5000.00]" in lines[-2]
    assert f"{histogram.mean:.2f}" in lines[-3]
    (found,) = histfiles.read(path).intervals
    again = found.histogram
    assert (again.count, again.max, again.sub_bits) == (histogram.count, histogram.max, 7)
    assert again.mean == pytest.approx(histogram.mean, abs=0.01)
    for row in lines[2:-3]:
        value, level, n_up_to = row.split()[:3]
        assert again.percentile(float(level) * 100) == int(float(value))
        assert int(n_up_to) >= float(level) * 5_000 - 1e-6


def test_an_empty_distribution(tmp_path) -> None:
    path = tmp_path / "a.hgrm"
    histfiles.write(path, histfiles.DISTRIBUTION, HistogramFile(histfiles.DISTRIBUTION, []))
    assert histfiles.read(path).intervals[0].histogram.count == 0


def test_the_largest_values_do_not_pass_through_floats(tmp_path) -> None:
    path = tmp_path / "a.hgrm"
    file = HistogramFile(histfiles.DISTRIBUTION, [Interval(recorded([MAX_VALUE - 3, 5]))])
    histfiles.write(path, histfiles.DISTRIBUTION, file)
    (found,) = histfiles.read(path).intervals
    assert (found.histogram.max, found.histogram.count) == (MAX_VALUE - 3, 2)


GRM = """\
       Value     Percentile TotalCount 1/(1-Percentile)

       1.003 0.000000000000          1           1.00
       4.500 0.500000000000          3           2.00
       9.007 1.000000000000          4
#[Mean    =        4.750, StdDeviation   =        2.900]
#[Max     =        9.007, TotalCount     =            4]
#[Buckets =           35, SubBuckets     =         2048]
"""


def test_a_foreign_distribution_in_milliseconds(tmp_path) -> None:
    (tmp_path / "a.hgrm").write_text(GRM)
    found = histfiles.read(tmp_path / "a.hgrm", "ms").intervals[0].histogram
    assert (found.count, found.max, found.sub_bits, found.mean) == (4, 9_007_000, 10, 4_750_000)
    assert found.percentile(50) == pytest.approx(4_500_000, rel=1e-3)
    with pytest.raises(HistogramFileError, match=r"line 3: 1\.003 is finer than a nanosecond.*--unit"):
        histfiles.read(tmp_path / "a.hgrm")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("Value     Perc", "Valve     Perc", 1),
        ("0.500000000000          3", "0.500000000000          0", 4),
        ("4.500", "0.500", 4),
        ("4.500", "4,500", 4),
        ("0.500000000000", "1.500000000000", 4),
        ("1.000000000000          4", "0.900000000000          4   10.0", 5),
        ("StdDeviation", "Deviation", 6),
        ("TotalCount     =            4", "TotalCount     =            5", 7),
        ("#[Buckets =           35, SubBuckets     =         2048]\n", "", 8),
        ("#[Max", "#[Buckets", 7),
        ("2048]\n", "2048]\nmore\n", 9),
        (GRM[200:], "", 5),
    ],
)
def test_a_broken_distribution_is_named_by_its_line(tmp_path, old, new, line) -> None:
    assert old in GRM
    (tmp_path / "a.hgrm").write_text(GRM.replace(old, new, 1))
    with pytest.raises(HistogramFileError, match=rf"a\.hgrm: line {line}: "):
        histfiles.read(tmp_path / "a.hgrm", "ms")


def test_without_the_package_only_its_files_are_out_of_reach(tmp_path) -> None:
    (tmp_path / "a.hgrm").write_text(GRM)
    histfiles.write(tmp_path / "a.hlog", histfiles.LOG, a_log())
    recorded([5]).save(tmp_path / "a.json")
    program = (
        "import sys\nsys.modules['hdrh'] = None\nfrom sysmeter.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    outcomes = {}
    for name in ("a.hgrm", "a.json", "a.hlog"):
        command = [sys.executable, "-c", program, "hist", "show", "--unit", "ms", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        outcomes[name] = (done.returncode, done.stderr)
    assert [code for code, _ in outcomes.values()] == [0, 0, 1]
    assert "hdrhistogram is missing" in outcomes["a.hlog"][1]
    assert "pip install hdrhistogram" in outcomes["a.hlog"][1]
