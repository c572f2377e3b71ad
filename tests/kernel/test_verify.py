"""`sysmeter verify` and `--claims` end to end. The host is what it is: no verdict on a move is asked for."""

from __future__ import annotations

import json
import signal

import pytest

from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOT_PROVEN, EXIT_OK, EXIT_USAGE
from tests.support.commands import as_nobody, run_json, start, sysmeter

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

SHORT = ("--seconds", "1", "--warmup", "0.25")
BY_VERDICT = {"as predicted": EXIT_OK, "not as predicted": EXIT_CLAIM_FAILED, "not proven": EXIT_NOT_PROVEN}
NAMES = ["default", "tree", "channel", "mutex", "stall"]

CLAIMS = """
sequence_gaps = 0
[combination.tree]
allocations = "> 0"
"""


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """(exit code, result, the directory of its Recordings, what was said)."""
    directory = tmp_path_factory.mktemp("verify")
    (directory / "claims.toml").write_text(CLAIMS)
    arguments = ("--rounds", "2", *SHORT, "--out", "runs", "--claims", "claims.toml", "--json")
    done = sysmeter("verify", *arguments, cwd=directory)
    assert done.returncode in BY_VERDICT.values(), done.stderr
    return done.returncode, json.loads(done.stdout), directory / "runs", done.stderr


def entry(verified, name):
    return next(row for row in verified[1]["swaps"] if row["name"] == name)


def test_the_default_is_first_and_the_stall_last(verified):
    assert verified[1]["schema"] == "sysmeter.verify/1"
    assert [row["name"] for row in verified[1]["swaps"]] == NAMES


def test_the_exit_code_is_the_verdicts(verified):
    code, result, _, _ = verified
    claims = {row["verdict"] for row in result["claims"]}
    if claims == {"holds"}:
        assert code == BY_VERDICT[result["verdict"]]


def test_a_swap_changes_no_decision(verified):
    for name in NAMES:
        found = entry(verified, name)["decisions"]
        assert found["common"] == found["equal"] > 0, name
        assert found["first_difference"] is None


def test_only_a_move_can_be_spoiled_by_the_host(verified):
    assert entry(verified, "default")["verdict"] != "not as predicted", entry(verified, "default")["reason"]
    for name in NAMES[1:]:
        row = entry(verified, name)
        if row["verdict"] == "not as predicted":
            assert "move" in row["reason"], row["reason"]
            assert "differ" not in row["reason"]
            assert "stayed 0" not in row["reason"]


@pytest.mark.parametrize("name", ["tree", "channel"])
def test_an_allocating_swap_breaks_its_zero(verified, name):
    found = entry(verified, name)["observed"]["counters"]["allocations"]
    assert found["value"] > 0
    assert "libc" in found["source"]


def test_the_default_allocates_nothing_by_both_sources(verified):
    found = entry(verified, "default")["observed"]["counters"]["allocations"]
    assert (found["value"], found["witness"]["value"], found["agrees"]) == (0, 0, True)


def test_the_stall_makes_the_messages_of_its_instants_wait(verified):
    settings, row = verified[1]["settings"], entry(verified, "stall")
    stalled = [run["levels_ns"]["stall"] for run in verified[1]["runs"] if run["combination"] == "stall"]
    # They come evenly, and whatever the host adds makes them wait longer still.
    assert min(stalled) > 0.4 * settings["stall_for_ns"]
    assert row["predicts"] == {
        "breaks": None,
        "histogram": "total",
        "by_ns": settings["stall_for_ns"] / 2,
        "figure": "stall",
        "one_in": None,
        "stays": "think",
    }


def test_the_pieces_were_measured_alone(verified):
    for name in ("tree", "channel", "mutex"):
        assert entry(verified, name)["predicts"]["by_ns"] > 0


def test_one_line_a_run_and_every_recording_is_kept(verified):
    _, result, runs, said = verified
    assert len(result["runs"]) == len(list(runs.iterdir())) == 22
    assert said.count("run ") >= 22
    names = [run["combination"] for run in result["runs"] if not run["audit"]]
    assert names[:8] == ["default", "tree", "default", "channel", "default", "mutex", "default", "stall"]


def test_claims_are_checked_in_each_combination(verified):
    found = {(row["combination"], row["key"]): row["verdict"] for row in verified[1]["claims"]}
    assert {found[name, "sequence_gaps"] for name in NAMES} == {"holds"}
    assert found["tree", "allocations"] in ("holds", "not proven")
    assert len(found) == len(NAMES) + 1


def test_without_root_nothing_is_proven_and_the_reason_is_named(public_directory):
    arguments = ("--rounds", "2", *SHORT, "--swap", "tree", "--json")
    done = sysmeter("verify", *arguments, cwd=public_directory, **as_nobody(public_directory))
    result = json.loads(done.stdout)
    assert [row["name"] for row in result["swaps"]] == ["default", "tree"]
    assert result["swaps"][0]["verdict"] == "not proven"
    assert all("root" in row["reason"] for row in result["swaps"])
    assert not any(run["audit"] for run in result["runs"])
    assert all(row["decisions"]["common"] == row["decisions"]["equal"] > 0 for row in result["swaps"])
    assert done.returncode == BY_VERDICT[result["verdict"]]


def test_an_interrupt_leaves_nothing(tmp_path):
    process = start("verify", *SHORT, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if "run 1 of" in line:
            break
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in stderr
    assert stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--swap", "trie"), EXIT_USAGE, "tree, channel, mutex, stall"),
        (("--rounds", "0"), EXIT_USAGE, "--rounds"),
        (("--seconds", "1000"), EXIT_USAGE, "--rounds"),
        (("--seconds", "1", "--warmup", "2"), EXIT_USAGE, "--warmup"),
        (("--out", "."), EXIT_ERROR, "exists"),
        (("--claims", "none.toml"), EXIT_ERROR, "none.toml"),
    ],
)
def test_wrong_words(tmp_path, arguments, exit_code, words):
    done = sysmeter("verify", *arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [
        ("sequence_gaps = 0\nmessages = 75000", EXIT_OK),
        ('total.max_ns = "< 1ns"\nfeed.allocations = 0', EXIT_CLAIM_FAILED),
        ("feed.allocations = 0\nsequence_gaps = 0", EXIT_NOT_PROVEN),
    ],
)
def test_claims_on_a_run(tmp_path, text, exit_code):
    (tmp_path / "claims.toml").write_text(text)
    run = run_json(*SHORT, "--claims", "claims.toml", "--out", "r", cwd=tmp_path, exit_code=exit_code)
    assert len(run["claims"]) == 2


def test_an_unknown_claim_is_an_error_before_the_run(tmp_path):
    (tmp_path / "claims.toml").write_text("voluntary_switchs = 0")
    done = sysmeter("run", *SHORT, "--claims", "claims.toml", "--out", "r", cwd=tmp_path)
    assert done.returncode == EXIT_ERROR
    assert "'voluntary_switches'" in done.stderr
    assert not (tmp_path / "r").exists()
