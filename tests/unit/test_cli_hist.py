"""``sysmeter hist`` as a command: what it prints, merges and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysmeter import histfiles
from sysmeter.analysis.histograms import describe
from sysmeter.cli.main import main
from sysmeter.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from sysmeter.hist import MAX_VALUE, LatencyHistogram
from sysmeter.histfiles import HistogramFile, Interval
from sysmeter.recording import RecordingWriter
from sysmeter.report.hist import render_histograms
from sysmeter.report.layout import cells
from tests.support.runs import Run, build

pytest.importorskip("hdrh")

START_NS = 1_441_812_279_474_000_000


def recorded(*values: int, sub_bits: int = 5) -> LatencyHistogram:
    histogram = LatencyHistogram(sub_bits)
    histogram.record_many(values)
    return histogram


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a.hlog"
    intervals = [
        Interval(recorded(*range(1_000, 2_000)), "think", START_NS, 10**9),
        Interval(recorded(*range(2_000, 3_000), -1, sub_bits=9), "think", START_NS + 2 * 10**9, 10**9),
        Interval(recorded(7), "total", START_NS + 10**9, 10**9),
    ]
    file = HistogramFile(histfiles.LOG, intervals, ["a comment"], START_NS, START_NS)
    histfiles.write(path, histfiles.LOG, file)
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    with RecordingWriter(tmp_path / "run") as writer:
        return writer.commit(build(Run()))


def test_show_prints_intervals_and_the_whole_table_of_each_tag(log, capsys) -> None:
    assert main(["hist", "show", str(log)]) == EXIT_OK
    out = capsys.readouterr().out
    flat = " ".join(out.split())
    for words in (
        "HdrHistogram log, values in ns",
        "started   2015-09-09 15:24:39.474 UTC",
        "comment   a comment",
        "think: 2,000 values in 2 intervals",
        "2015-09-09 15:24:41.474 UTC    1.00 s          1,000    3.00 µs",
        "1 value negative, in none of the figures",
        "count, min, mean, max are exact",
        "total: 1 value in 1 interval",
    ):
        assert " ".join(words.split()) in flat
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("50 ", "99.9 ", "99.95 ", "100 "))]
    assert rows[0] == ["50", "2.02", "µs", "1,016", "984"]
    assert [row[0] for row in rows] == ["50", "99.9", "99.95", "100", "100"]


def test_show_json_names_the_figures_as_a_run_does(log, recording, capsys) -> None:
    assert main(["hist", "show", "--json", str(log), str(recording)]) == EXIT_OK
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "sysmeter.histogram/1"
    of_log, of_run = result["files"]
    assert (of_log["kind"], of_run["kind"], of_log["unit"]) == ("hlog", "recording", "ns")
    think = of_log["histograms"][0]
    assert (think["tag"], think["count"], think["min_ns"], think["max_ns"]) == ("think", 2_000, 1_000, 2_999)
    assert (think["mean_ns"], think["p50_ns"], think["p99_99_ns"]) == (1_999.5, 2_015, None)
    assert (think["n_negative"], think["sub_bits"], think["bucketed"]) == (1, 5, [])
    assert think["intervals"][1] == {
        "t_start_ns": START_NS + 2 * 10**9,
        "length_ns": 10**9,
        "count": 1_000,
        "max_ns": 2_999,
    }
    assert think["percentiles"][0] == {"percentile": "0", "value_ns": 1_007, "n_up_to": 8}
    assert think["percentiles"][-1] == {"percentile": "100", "value_ns": 2_999, "n_up_to": 2_000}
    main(["report", "--json", str(recording)])
    latency = json.loads(capsys.readouterr().out)["latency"]
    for found in of_run["histograms"]:
        expected = {name: value for name, value in latency[found["tag"]].items() if name != "interval"}
        assert expected == {name: found[name] for name in expected}


def test_merge_keeps_tags_apart_in_a_log(log, recording, tmp_path, capsys) -> None:
    out = tmp_path / "out.hlog"
    assert main(["hist", "merge", str(log), str(recording), "-o", str(out)]) == EXIT_OK
    text = capsys.readouterr().out
    assert "think" in text
    assert "1 histogram came finer" in text or "histograms came finer" in text
    found = histfiles.read(out)
    runs = {one["tag"]: one["count"] for one in describe([recording], "ns")["files"][0]["histograms"]}
    assert {one.tag: one.histogram.count for one in found.intervals} == {
        "think": 2_000 + runs["think"],
        "total": 1 + runs["total"],
    }
    assert (found.comments, found.start_time_ns) == (["a comment"], START_NS)
    assert [(one.t_start_ns, one.length_ns) for one in found.intervals] == [
        (START_NS, 3 * 10**9),
        (START_NS + 10**9, 10**9),
    ]


@pytest.mark.parametrize("suffix", ["hlog", "hgrm", "json"])
def test_merge_of_one_tag_writes_what_the_suffix_says(log, tmp_path, capsys, suffix) -> None:
    out = tmp_path / f"out.{suffix}"
    arguments = ["hist", "merge", str(log), str(log), "--tag", "think", "-o", str(out)]
    assert main(arguments) == EXIT_OK
    assert "think: 4,000 values from 4 histograms of 2 files, precision 5 bits" in " ".join(
        capsys.readouterr().out.split()
    )
    (found,) = histfiles.read(out).intervals
    assert (found.histogram.count, found.histogram.max) == (4_000, 2_999)
    assert found.histogram.n_negative == (0 if suffix == "hgrm" else 2)
    assert main(arguments) == EXIT_ERROR
    assert "File exists" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == EXIT_OK


def test_what_a_distribution_loses_is_said(log, tmp_path, capsys) -> None:
    out = str(tmp_path / "out.hgrm")
    assert main(["hist", "merge", str(log), "--tag", "think", "-o", out]) == EXIT_OK
    assert "1 value outside 0 to 2^63-1 ns lost" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "out.txt"], "no suffix"),
        (["-o", "out.json"], "several tags: think, total"),
        (["-o", "out.hgrm"], "several tags: think, total"),
        (["-o", "out.json", "--tag", "other"], "no histogram has the tag other"),
        ([], "Missing option"),
        (["-o", "out.json", "--unit", "minutes"], "minutes"),
    ],
)
def test_what_cannot_be_merged_is_a_usage_error(log, tmp_path, monkeypatch, capsys, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["hist", "merge", str(log), *arguments]) == EXIT_USAGE
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_a_broken_line_ends_in_an_error_and_nothing_is_written(log, tmp_path, capsys) -> None:
    with log.open("a") as file:
        file.write("Tag=think,3.0,1.0,0.1,HISTF\n")
    n_lines = len(log.read_text().splitlines())
    for command in (["show"], ["merge", "-o", str(tmp_path / "out.hlog")]):
        assert main(["hist", command[0], str(log), *command[1:]]) == EXIT_ERROR
        captured = capsys.readouterr()
        assert f"a.hlog: line {n_lines}: " in captured.err
        assert captured.out == ""
    assert not (tmp_path / "out.hlog").exists()


def test_a_directory_that_is_no_recording_and_a_file_that_is_missing(tmp_path, capsys) -> None:
    (tmp_path / "dir").mkdir()
    for name in ("dir", "missing.hlog"):
        assert main(["hist", "show", str(tmp_path / name)]) == EXIT_ERROR
        assert name in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 57, 80])
def test_no_line_is_too_wide(tmp_path, width) -> None:
    intervals = [
        Interval(recorded(0, MAX_VALUE, MAX_VALUE, -1, MAX_VALUE + 1, sub_bits=12), "t" * 90, 3 * 10**18, MAX_VALUE),
        Interval(recorded(*range(3_000)), None, 5, 5),
        Interval(recorded(), "none", 5, 0),
    ]
    path = tmp_path / ("long-" * 30 + ".hlog")
    histfiles.write(path, histfiles.LOG, HistogramFile(histfiles.LOG, intervals, ["c" * 200, "\x1b[31mred"], 5, 5))
    text = render_histograms(describe([path], "ns"), width)
    assert "\x1b" not in text
    assert max(map(cells, text.splitlines())) <= width
