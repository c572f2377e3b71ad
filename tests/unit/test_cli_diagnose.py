"""``sysmeter diagnose`` as a command: outcomes, exit codes and words."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sysmeter.analysis import causes
from sysmeter.cli.diagnose import diagnose as command
from sysmeter.cli.main import main
from sysmeter.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from sysmeter.recording import RecordingWriter
from sysmeter.report.layout import cells
from sysmeter.workload import own_python
from tests.support.diagnosed import check_conservation
from tests.support.runs import T_START, Away, Run, build

MS = 1_000_000
WINDOW = T_START + 5 * MS
N_EPISODES = 7


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    away = [
        Away(
            "strategy" if k % 2 else "feed",
            WINDOW + k * 3 * MS,
            MS + k * 50_000,
            [(99, b"bash", MS + k * 50_000 - 2_000)],
        )
        for k in range(N_EPISODES)
    ]
    with RecordingWriter(tmp_path / "run") as writer:
        return writer.commit(build(Run(away=away)))


def words_of(text: str) -> str:
    return " ".join(text.split())


def test_the_text_of_a_recording(saved: Path, capsys) -> None:
    assert main(["diagnose", str(saved), "--above", "100us"]) == EXIT_OK
    out, err = capsys.readouterr()
    assert err == ""
    assert all(cells(line) <= 80 for line in out.split("\n"))
    assert out.startswith("Tail: responses of at least 100 µs, as asked for")
    assert "strategy preempted: bash/99 [witnessed]" in words_of(out)
    assert "feed preempted: bash/99 [witnessed]" in words_of(out)
    assert out.count(" long, peak ") == 5


def test_json_is_one_object_and_nothing_else(saved: Path, capsys) -> None:
    assert main(["diagnose", "--json", "--above", "100us", str(saved)]) == EXIT_OK
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert result["schema"] == "sysmeter.diagnose/1"
    assert result["recording"] == str(saved)
    assert result["tail"]["threshold_ns"] == 100_000
    check_conservation(result)


@pytest.mark.parametrize(("top", "n_listed"), [(0, 0), (1, 1), (3, 3), (1_000, N_EPISODES)])
def test_top_lists_so_many_of_the_slowest_episodes(saved: Path, capsys, top: int, n_listed: int) -> None:
    arguments = ["diagnose", str(saved), "--above", "100us", "--top", str(top)]
    assert main(arguments) == EXIT_OK
    assert capsys.readouterr().out.count(" long, peak ") == n_listed
    assert main([*arguments, "--json"]) == EXIT_OK
    result = json.loads(capsys.readouterr().out)
    assert len(result["episodes"]) == n_listed
    assert result["episodes_not_listed"] == result["tail"]["n_episodes"] - n_listed
    peaks = [episode["peak_ns"] for episode in result["episodes"]]
    assert peaks == sorted(peaks, reverse=True)


def test_above_selects_the_samples(saved: Path, capsys) -> None:
    samples = []
    for words in ([], ["--above", "1ns"], ["--above", "1.2ms"], ["--above", "10s"]):
        assert main(["diagnose", "--json", *words, str(saved)]) == EXIT_OK
        tail = json.loads(capsys.readouterr().out)["tail"]
        samples.append(tail["samples"])
        assert tail["threshold_source"] == ("--above" if words else "p99.9")
    assert samples[0] == 3
    assert samples[1] == 2_500
    assert 0 < samples[2] < samples[1]
    assert samples[3] == 0


def test_above_takes_a_percentile(saved: Path, capsys) -> None:
    counts = {}
    for limit in ("p50", "p90", "p99.9"):
        assert main(["diagnose", str(saved), "--json", "--above", limit]) == EXIT_OK
        tail = json.loads(capsys.readouterr().out)["tail"]
        assert tail["threshold_source"] == limit
        counts[limit] = tail["samples"]
    assert counts["p50"] > counts["p90"] > counts["p99.9"] > 0


def test_above_below_the_storage_floor_says_what_it_took_instead(tmp_path: Path, capsys) -> None:
    away = [Away("strategy", WINDOW + k * 3 * MS, MS) for k in (1, 2)]
    with RecordingWriter(tmp_path / "run") as writer:
        writer.commit(build(Run(away=away, tail_batches=1)))
    assert main(["diagnose", str(tmp_path / "run"), "--above", "1us"]) == EXIT_OK
    assert "above the slowest batch that was not kept" in words_of(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no Recording is named"),
        (["--above", "50"], "--above"),
        (["--above", "0ns"], "not above 0"),
        (["--above", "p100"], "no percentile below 100"),
        (["--above", "-3us"], ""),
        (["--top", "-1"], "--top"),
        (["--top", "many"], "--top"),
        (["one", "two"], "unexpected extra argument"),
        (["--explain", "gremlins"], "there is no cause 'gremlins'"),
        (["--explain", ""], "there is no cause ''"),
        (["--explain", "gap"], "there is no cause 'gap'"),
        (["run", "--explain", "softirq"], "not a Recording"),
    ],
)
def test_usage_errors(words: list[str], told: str, capsys) -> None:
    assert main(["diagnose", *words]) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert "hint: " in err


def test_an_unknown_cause_lists_the_known_ones(capsys) -> None:
    assert main(["diagnose", "--explain", "gremlins"]) == EXIT_USAGE
    err = words_of(capsys.readouterr().err)
    assert all(cause in err for cause in causes.ALL_CAUSES)


@pytest.mark.parametrize("cause", causes.ALL_CAUSES)
def test_explain(cause: str, capsys) -> None:
    for words in (cause, cause.upper(), cause.replace(" ", "-"), f" {cause.replace(' ', '_')} "):
        assert main(["diagnose", "--explain", words]) == EXIT_OK
        assert capsys.readouterr().out.split("\n")[0] == cause


def remove_key(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        meta = json.loads((path / "meta.json").read_text())
        del meta["run"][name]
        (path / "meta.json").write_text(json.dumps(meta))

    return damage


def cut_releases(path: Path) -> None:
    np.save(path / "releases.npy", np.load(path / "releases.npy")[:-500])


def wrong_offsets(path: Path) -> None:
    offsets = np.load(path / "release_offsets.npy")
    offsets[-1] = -7
    np.save(path / "release_offsets.npy", offsets)


@pytest.mark.parametrize(
    "damage",
    [
        shutil.rmtree,
        lambda path: (path / "meta.json").unlink(),
        lambda path: (path / "meta.json").write_text("{"),
        lambda path: (path / "gaps_feed.npy").write_bytes(b"\x93NUMPY"),
        lambda path: np.save(path / "batches.npy", np.zeros(3)),
        remove_key("n_warmup"),
        remove_key("storage"),
        cut_releases,
        wrong_offsets,
    ],
)
def test_a_damaged_recording_is_one_message(saved: Path, capsys, damage: Callable[[Path], object]) -> None:
    damage(saved)
    assert main(["diagnose", str(saved)]) == EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sysmeter: error: ")
    assert "sysmeter itself failed" not in err
    assert str(saved) in err or "the Recording is damaged" in err


def test_help() -> None:
    told = CliRunner().invoke(command, ["--help"], prog_name="sysmeter diagnose")
    assert told.exit_code == EXIT_OK
    for word in ("--top", "--above", "--explain", "--json", "RECORDING"):
        assert word in told.output
    assert all(cells(line) <= 80 for line in told.output.split("\n"))


def test_it_is_listed(capsys) -> None:
    assert main(["--help"]) == EXIT_OK
    assert re.search(r"^  diagnose ", capsys.readouterr().out, re.MULTILINE)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; import sysmeter.cli.diagnose; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reader_that_goes_away_is_no_error(saved: Path) -> None:
    """As in ``sysmeter diagnose run | head -1``."""
    arguments = [*own_python("sysmeter"), "diagnose", str(saved), "--json", "--above", "1ns", "--top", "1000"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("{")
        process.stdout.close()
        err = process.stderr.read()
    assert err == ""
    assert process.returncode in (0, EXIT_ERROR, 128 + signal.SIGPIPE)  # click itself makes it 1
