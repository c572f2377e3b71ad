"""``sysmeter decisions`` and ``run --decisions`` as commands: outcomes, exit codes and words."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from capstone import feedfile, generator
from sysmeter import decisions, host, records, session
from sysmeter.cli.decisions import decisions as command
from sysmeter.cli.main import main
from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_ERROR, EXIT_NOT_PROVEN, EXIT_OK, EXIT_USAGE, RecordingError
from sysmeter.recording import Recording, RecordingWriter
from sysmeter.report.decisions import render_decisions
from sysmeter.report.layout import cells
from sysmeter.workload import own_python
from tests.support.decisions import HEADER, some_decisions
from tests.support.runs import Run, build

N = 1_000


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str, np.ndarray[Any, Any]], Path]:
    def save_as(name: str, found: np.ndarray[Any, Any]) -> Path:
        decisions.write_csv(tmp_path / name, found)
        return tmp_path / name

    return save_as


def a_recording(tmp_path: Path, name: str, found: np.ndarray[Any, Any], **options: Any) -> Path:
    recording = build(Run(**options))
    recording.arrays["decisions"] = found
    with RecordingWriter(tmp_path / name) as writer:
        return writer.commit(recording)


def other_at(index: int) -> np.ndarray[Any, Any]:
    found = some_decisions(N)
    found["ask_quantity"][index] += 1
    return found


def test_equal_wherever_both_decided(save, capsys) -> None:
    whole = some_decisions(N)
    a, b = save("a", whole[::2]), save("b", whole[::3])
    assert main(["decisions", str(a), str(b)]) == EXIT_OK
    out = capsys.readouterr().out
    assert "EQUAL" in out
    assert "167 (100 %)" in out
    assert "only in A  333" in out
    assert "only in B  167" in out


def test_a_difference(save, capsys) -> None:
    a, b = save("a", some_decisions(N)), save("b", other_at(700)[1:])
    assert main(["decisions", str(a), str(b)]) == EXIT_CLAIM_FAILED
    out = capsys.readouterr().out
    for path, line, name in ((a, 702, "A"), (b, 701, "B")):
        assert f"{name}, line {line}: {path.read_text().splitlines()[line - 1]}" in out
    assert "in ask_quantity:" in out
    assert "different feeds" in out


def test_nothing_in_common(save, capsys) -> None:
    whole = some_decisions(N)
    a, b, empty = save("a", whole[::2]), save("b", whole[1::2]), save("empty", whole[:0])
    assert main(["decisions", str(a), str(b)]) == EXIT_NOT_PROVEN
    assert "NOTHING IN COMMON: the runs decided at no common" in capsys.readouterr().out
    assert main(["decisions", str(a), str(empty)]) == EXIT_NOT_PROVEN
    assert "B holds no decision" in capsys.readouterr().out
    assert main(["decisions", str(empty), str(empty)]) == EXIT_NOT_PROVEN
    assert "A holds no decision and B holds no decision" in capsys.readouterr().out


def test_json(save, capsys) -> None:
    a, b = save("a", some_decisions(N)), save("b", other_at(0))
    assert main(["decisions", "--json", str(a), str(b)]) == EXIT_CLAIM_FAILED
    result = json.loads(capsys.readouterr().out)
    first = some_decisions(N)[0]
    assert result["schema"] == "sysmeter.decisions/1"
    assert (result["common"], result["equal"], result["different"]) == (N, N - 1, 1)
    assert (result["only_in_a"], result["only_in_b"], result["verdict"]) == (0, 0, "different")
    assert result["a"]["path"] == str(a)
    assert (result["a"]["n_decisions"], result["a"]["first_seq"]) == (N, int(first["seq"]))
    assert (result["first_difference"]["seq"], result["first_difference"]["a"]["line"]) == (int(first["seq"]), 2)

    empty = save("empty", some_decisions(0))
    assert main(["decisions", "--json", str(a), str(empty)]) == EXIT_NOT_PROVEN
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "nothing in common"
    assert result["b"] == {"path": str(empty), "n_decisions": 0, "first_seq": None, "last_seq": None}


def test_recordings_and_files_are_the_same_to_it(tmp_path: Path, save, capsys) -> None:
    recording = a_recording(tmp_path, "r", some_decisions(N))
    same, other = save("same", some_decisions(N)), save("other", other_at(3))
    assert (recording / "decisions.csv").read_bytes() == same.read_bytes()
    for b in (same, recording, recording / "decisions.csv"):
        assert main(["decisions", str(recording), str(b)]) == EXIT_OK
    assert main(["decisions", str(recording), str(other)]) == EXIT_CLAIM_FAILED
    assert "A, line 5: " in capsys.readouterr().out


def test_a_run_that_keeps_no_decisions_says_so(tmp_path: Path, save, capsys) -> None:
    recording = a_recording(tmp_path, "r", some_decisions(0), tail_batches=10)
    assert not (recording / "decisions.csv").exists()
    assert main(["decisions", str(recording), str(save("b", some_decisions(N)))]) == EXIT_ERROR
    assert "holds no decisions: a run of 3,000 messages keeps only its slowest batches" in capsys.readouterr().err
    assert main(["report", str(recording)]) == EXIT_OK
    assert "decisions   not kept: a run of 3,000 messages" in capsys.readouterr().out
    assert main(["report", "--json", str(recording)]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["decisions"]["count"] is None


def test_a_run_without_a_decision_has_a_file_with_its_header(tmp_path: Path, capsys) -> None:
    recording = a_recording(tmp_path, "r", some_decisions(0))
    assert (recording / "decisions.csv").read_text() == HEADER + "\n"
    assert main(["report", str(recording)]) == EXIT_OK
    assert "decisions   0, in decisions.csv" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["first", "second"])
def test_bad_input_is_one_message_with_a_hint(tmp_path: Path, save, capsys, which: str) -> None:
    good, bad = save("good", some_decisions(3)), tmp_path / "bad.csv"
    (tmp_path / "directory").mkdir()
    bad.write_text(f"{HEADER}\n1,2,3\n")
    for path, words in (
        (bad, f"{bad}: line 2: has 3 fields"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "directory", "is not a Recording"),
    ):
        paths = (path, good) if which == "first" else (good, path)
        assert main(["decisions", *map(str, paths)]) == EXIT_ERROR
        out, err = capsys.readouterr()
        assert words in err
        assert out == ""


def test_a_recording_out_of_order_is_refused(tmp_path: Path, save, capsys) -> None:
    recording = a_recording(tmp_path, "r", some_decisions(N)[::-1].copy())
    assert main(["decisions", str(recording), str(save("b", some_decisions(N)))]) == EXIT_ERROR
    assert "line 3: the sequence number" in capsys.readouterr().err


def test_usage_and_help() -> None:
    assert CliRunner().invoke(command, ["one"]).exit_code == EXIT_USAGE
    told = CliRunner().invoke(command, ["--help"], prog_name="sysmeter decisions")
    assert told.exit_code == EXIT_OK
    assert "4 nothing in" in told.output


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; import sysmeter.cli.decisions; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_too_wide(width: int) -> None:
    side = {"path": "/" + "目" * 120, "n_decisions": 10**12, "first_seq": -(2**63), "last_seq": 2**63 - 1}
    found = decisions.compare(some_decisions(N), other_at(5))
    for found["different"] in (0, 1, 10**12):
        text = render_decisions({"a": side, "b": side, **found}, width)
        assert all(cells(line) <= width for line in text.split("\n"))


@pytest.mark.slow
def test_two_files_of_a_million_lines_take_less_than_two_seconds(tmp_path: Path) -> None:
    found = some_decisions(1_000_000)
    for name in ("a", "b"):
        decisions.write_csv(tmp_path / name, found)
    seconds = []
    # CPU time, and of several attempts the least: on a busy host the wall's time is not the program's.
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*own_python("sysmeter"), "decisions", "a", "b"], cwd=tmp_path, stdout=subprocess.DEVNULL, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == EXIT_OK
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 2


# ── run --decisions: the run itself is replaced, what is around it is not ─────────────────────────


@pytest.fixture
def a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``sysmeter run`` on a small message file, its session replaced by a stored outcome."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(host, "choose_cpus", lambda _: (0, 1))
    feedfile.write(tmp_path / "feed", generator.generate(100), 64)

    def run_it(*words: str, error: Exception | None = None) -> int:
        def instead(_settings: session.RunSettings, out: Path, _listener: session.RunListener) -> Recording:
            recording = build(Run())
            recording.arrays["decisions"] = some_decisions(N)
            if isinstance(error, RecordingError):
                raise session.UnsavedRecording(error, recording)
            assert error is None, "must be refused before the run"
            recording.path = out
            return recording

        monkeypatch.setattr(session, "run", instead)
        return main(["run", "--feed", "feed", "--warmup", "0", "--out", "r", *words])

    return run_it


MUST_NOT_RUN = AssertionError()


def test_run_writes_the_file_after_the_result(a_run, tmp_path: Path, capsys) -> None:
    assert a_run("--decisions", "d.csv") == EXIT_OK
    assert np.array_equal(decisions.read(tmp_path / "d.csv"), some_decisions(N))
    out, err = capsys.readouterr()
    assert "decisions   1,000, in decisions.csv" in out
    assert "decisions: 1,000 in d.csv" in err


@pytest.mark.parametrize(
    ("words", "exit_code", "told"),
    [
        (("--decisions", "feed"), EXIT_ERROR, "feed exists already"),
        (("--decisions", "none/d.csv"), EXIT_ERROR, "No such file"),
        (("--decisions", "r"), EXIT_USAGE, "both name r"),
        (("--decisions", "d.csv", "--loop", "--seconds", "41"), EXIT_USAGE, "4,100,000 messages keeps no decisions"),
        (("--decisions", "d.csv", "--seconds", "1"), EXIT_USAGE, "repeat the file with --loop"),
    ],
)
def test_run_refuses_before_it_starts(a_run, tmp_path: Path, capsys, words, exit_code: int, told: str) -> None:
    assert a_run(*words, error=MUST_NOT_RUN) == exit_code
    assert told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["feed"]


def test_run_prints_its_result_when_the_file_cannot_be_written(a_run, tmp_path: Path, capsys) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        exit_code = a_run("--json", "--decisions", "d.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    out, err = capsys.readouterr()
    assert exit_code == EXIT_ERROR
    assert json.loads(out)["decisions"] == {"count": N, "reason": None}
    assert "cannot write the decisions file d.csv: File too large" in err
    assert [path.name for path in tmp_path.iterdir()] == ["feed"]


def test_run_tells_both_failures(a_run, tmp_path: Path, capsys) -> None:
    full = RecordingError("cannot save the Recording", "free some space")
    assert a_run("--decisions", "d.csv", error=full) == EXIT_ERROR
    assert "cannot save the Recording" in capsys.readouterr().err
    assert len(decisions.read(tmp_path / "d.csv")) == N

    (tmp_path / "d.csv").unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        assert a_run("--decisions", "d.csv", error=full) == EXIT_ERROR
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot save the Recording; cannot write the decisions file d.csv" in capsys.readouterr().err


def test_decisions_of_the_records_are_the_columns() -> None:
    assert len(decisions.COLUMNS) == len(records.DECISION.names or ())
