"""`sysmeter omission`: the figures of the specification, what they mean, and the picture of them."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from sysmeter.analysis.omission import Experiment, choose_unit, describe, simulate
from sysmeter.analysis.summary import summarize
from sysmeter.cli.main import main
from sysmeter.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE, UsageError
from sysmeter.report.layout import cells
from sysmeter.report.omission import render_omission
from sysmeter.report.plot import Curve, corners, percentile_label, plot_percentiles
from tests.golden.build import everything

THE_LINES = """\
naive      mean=    2.00 p50=    1.02 p90=    1.02 p99=    1.02 p99.9=    1.02 max= 1001.00 ms
corrected  mean=   57.06 p50=    1.02 p90=  102.76 p99=  922.75 p99.9= 1001.00 max= 1001.00 ms
"""
MS, S = 10**6, 10**9


def result_of(**parameters: int) -> dict[str, Any]:
    experiment = Experiment(**parameters)
    return describe(experiment, simulate(experiment))


def words_of(**parameters: int) -> str:
    """The text below the two lines, on one line."""
    return re.sub(r"\s+", " ", render_omission(result_of(**parameters)).split("\n\n", 1)[1])


def test_the_defaults_print_the_lines_of_the_specification_first(capsys) -> None:
    assert main(["omission"]) == EXIT_OK
    out = capsys.readouterr().out
    assert out.startswith(THE_LINES)
    assert "112 of 1,000 responses (11.2 %) took longer than the service" in out
    assert "naive p99 is low by a factor of 908, the naive mean is low by a factor of" in re.sub(r"\s+", " ", out)
    assert "28.5." in out
    assert all(cells(line) <= 80 for line in out.removeprefix(THE_LINES).split("\n"))


def test_every_parameter_is_an_option(capsys) -> None:
    line = "--interval 2ms --service 500us --stall 30ms --stall-at 10ms --requests 100 --json"
    assert main(["omission", *line.split()]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == {
        "interval_ns": 2 * MS,
        "service_ns": MS // 2,
        "stall_ns": 30 * MS,
        "stall_at_ns": 10 * MS,
    }
    assert found["requests"] == found["naive"]["count"] == found["corrected"]["count"] == 100
    assert found["stall"] == {"request": 5, "t_start_ns": 10 * MS}
    # Request 5 ends at 40.5 ms. Request i, due at 2i, begins at 40.5 + (i - 6) / 2 until that is no later: i = 25.
    assert found["delayed"] == 20
    assert found["corrected"]["max_ns"] == found["naive"]["max_ns"] == 30 * MS + MS // 2


def test_json_has_the_latency_keys_of_a_run(capsys) -> None:
    assert main(["omission", "--json"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["schema"] == "sysmeter.omission/1"
    of_a_run = summarize(everything())["latency"]["total"]
    for name in ("naive", "corrected"):
        assert not set(of_a_run) - set(found[name])
    assert found["naive"]["mean_ns"] == 2 * MS
    assert found["corrected"]["mean_ns"] == 57_056_000
    assert found["low_by"]["mean"] == pytest.approx(28.528)
    assert (found["delayed"], found["requests"]) == (112, 1_000)
    assert found["naive"]["p99_99_ns"] is None


def test_a_stall_that_nobody_meets_is_said_not_to_have_happened() -> None:
    words = words_of(stall_at_ns=20 * S)
    assert "stall NONE HAPPENED: it was to hit the first request that begins at 20.0 s" in words
    assert "the last one began at 9.99 s" in words
    assert "not low" in words
    assert "during the stall" not in words
    assert "none: its length is 0" in words_of(stall_ns=0)


def test_the_last_request_can_still_be_hit() -> None:
    found = result_of(stall_at_ns=9_990 * MS)
    assert found["stall"] == {"request": 999, "t_start_ns": 9_990 * MS}
    assert (found["delayed"], found["corrected"]["max_ns"]) == (1, 1_001 * MS)
    assert result_of(stall_at_ns=9_990 * MS + 1)["stall"] is None


def test_more_load_than_the_service_can_take_is_said_to_be_that() -> None:
    words = words_of(service_ns=20 * MS)
    assert "OVERLOADED" in words
    assert "each request begins 10.0 ms later than the one before it did" in words
    full = words_of(service_ns=10 * MS)
    assert "OVERLOADED" not in full
    assert "had not drained when the requests ended: the last one began 1.00 s late. It never would" in full
    assert "had not drained" not in words_of()
    assert "had not drained when the requests ended: the last one began 991 ms late." in words_of(requests=502)


def test_one_request_has_no_percentile_and_no_factor() -> None:
    words = words_of(requests=1, stall_at_ns=0)
    assert "n/a (few samples): p99 needs 100, p99.9 needs 1,000." in words
    assert "1 of 1 response (100 %)" in words
    found = result_of(requests=1)
    assert found["low_by"] == {"mean": 1, "p99": None}
    assert found["naive"]["summary"].count("n/a") == 4


def test_a_percentile_that_the_delayed_do_not_reach_is_the_same_in_both() -> None:
    words = words_of(requests=100_000, stall_ns=20 * MS)
    assert "naive mean is low by a factor of 1" in words
    assert "the p99 is the same in both" in words


@pytest.mark.parametrize(
    ("parameters", "unit"),
    [
        ({}, "ms"),
        ({"service_ns": 100_000}, "ms"),
        ({"service_ns": 99_999}, "us"),
        ({"service_ns": 100}, "us"),
        ({"service_ns": 99, "interval_ns": 1_000}, "ns"),
        ({"stall_ns": 200 * S}, "ms"),
        ({"stall_ns": 200 * S, "service_ns": S, "interval_ns": 2 * S}, "s"),
        ({"service_ns": S, "interval_ns": 2 * S}, "ms"),
    ],
)
def test_the_unit_keeps_the_digits(parameters: dict[str, int], unit: str) -> None:
    experiment = Experiment(**parameters)
    outcome = simulate(experiment)
    assert choose_unit(experiment, outcome) == unit
    line = describe(experiment, outcome)["naive"]["summary"]
    assert line.endswith(f" {unit}")
    assert "p50=    0.00" not in line


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_of_words_is_too_wide(width: int) -> None:
    for parameters in ({}, {"service_ns": 20 * MS}, {"requests": 1}, {"stall_at_ns": 10**18}, {"interval_ns": 10**15}):
        text = render_omission(result_of(**parameters), width).split("\n", 2)[2]
        assert all(cells(line) <= width for line in text.split("\n"))


def test_what_64_bits_do_not_hold_is_a_usage_error(capsys) -> None:
    for changed in ({"interval_ns": 2**63 // 1_000}, {"stall_at_ns": 2**63}, {"stall_ns": 2**63 - 1}):
        with pytest.raises(UsageError, match="292 years"):
            Experiment(**changed)
    outcome = simulate(Experiment(interval_ns=2**52, service_ns=2**52, stall_ns=2**62, stall_at_ns=2**61))
    assert (outcome.corrected.count, outcome.corrected.max) == (1_000, 2**62 + 2**52)
    assert outcome.t_last_begin_ns == 999 * 2**52 + 2**62
    assert main(["omission", "--interval", f"{10**30}s"]) == EXIT_USAGE
    assert "292 years" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--interval", "0s"),
        ("--service", "0ms"),
        ("--stall", "-1s"),
        ("--stall-at", "5"),
        ("--requests", "0"),
        ("--requests", "1e3"),
        ("--plot", "picture.pdf"),
        ("--plot", "picture"),
        ("more",),
    ],
)
def test_bad_words_are_a_usage_error_and_print_nothing(words, capsys) -> None:
    assert main(["omission", *words]) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "hint: " in err


# ── the picture ───────────────────────────────────────────────────────────────────────────────────


def test_a_picture_is_the_same_every_time_and_comes_with_the_text(tmp_path: Path, capsys) -> None:
    for name in ("a.svg", "b.svg"):
        assert main(["omission", "--plot", str(tmp_path / name)]) == EXIT_OK
    assert capsys.readouterr().out.startswith(THE_LINES)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert ElementTree.fromstring(first).tag == "{http://www.w3.org/2000/svg}svg"
    # Letters are drawn as outlines; matplotlib keeps each text beside them as a comment.
    for text in ("naive: from when", "corrected: from when", "99.9", "1.00 ms", "1.00 s", "percentile", "one stall of"):
        assert f"<!-- {text}".encode() in first or text.encode() in first


def test_a_png_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "picture.PNG"
    path.write_text("old")
    assert main(["omission", "--plot", str(path)]) == EXIT_OK
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture.PNG"]


def test_a_user_s_own_settings_do_not_change_the_picture(tmp_path: Path) -> None:
    import matplotlib as mpl

    curves = [Curve("a", [(1, 5), (9, 70)])]
    plot_percentiles(tmp_path / "a.svg", "title", curves)
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black", "svg.fonttype": "none"}):
        plot_percentiles(tmp_path / "b.svg", "title", curves)
        assert mpl.rcParams["axes.facecolor"] == "black"
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("points", [[(1, 0)], [(1, 7)], [(2, 0), (3, 0)], [(10**8, 2**62), (10**8 + 1, 2**63 - 1)]])
def test_odd_curves_can_be_drawn(tmp_path: Path, points: list[tuple[int, int]]) -> None:
    plot_percentiles(tmp_path / "a.svg", "one", [Curve("a", points), Curve("b", [(1, 1)])])
    assert b"nan" not in (tmp_path / "a.svg").read_bytes().lower().replace(b"nance", b"")


def test_a_curve_has_a_level_line_for_each_bucket() -> None:
    # 990 of 1,000 values of 5 ns: up to p99, which only 1 in 100 is beyond; the rest up to the last value.
    assert corners([(990, 5), (1_000, 70)]) == ([1, 100, 100, 1_000], [5, 5, 70, 70])
    assert corners([(1, 0)]) == ([1, 1], [1, 1])


@pytest.mark.parametrize(
    ("place", "label"), [(1, "0"), (2, "50"), (10, "90"), (100, "99"), (1_000, "99.9"), (10**7, "99.99999")]
)
def test_the_axis_names_its_percentiles(place: int, label: str) -> None:
    assert percentile_label(place) == label


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, capsys) -> None:
    (tmp_path / "directory.svg").mkdir()
    for path, words in ((tmp_path / "directory.svg", "Is a directory"), (tmp_path / "no/a.svg", "No such file")):
        assert main(["omission", "--plot", str(path)]) == EXIT_ERROR
        assert f"cannot write {path}: {words}" in capsys.readouterr().err
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        assert main(["omission", "--plot", str(tmp_path / "a.png")]) == EXIT_ERROR
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["directory.svg"]


def test_without_matplotlib_the_remedy_is_named_before_any_work(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["omission", "--plot", str(tmp_path / "a.svg")]) == EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install --require-hashes -r requirements-plot.lock" in err
    assert not list(tmp_path.iterdir())
    assert main(["omission"]) == EXIT_OK


def test_only_a_picture_imports_matplotlib_and_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; import sysmeter.cli.omission; heavy = 'numpy' in sys.modules;"
        "from sysmeter.cli.main import main; main(['omission']); sys.exit(heavy or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
