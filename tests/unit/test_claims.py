"""A user's file of claims: what it may say, what is refused and how, and the verdicts."""

from __future__ import annotations

import pytest

from sysmeter.analysis import claims
from sysmeter.analysis.claims import Claim
from sysmeter.analysis.counters import counter, not_measured
from sysmeter.analysis.summary import summarize
from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_NOT_PROVEN, EXIT_OK, ClaimsFileError
from sysmeter.report.json import dump
from sysmeter.report.layout import cells
from sysmeter.report.text import render_run
from tests.support.runs import Run, build

SWAPS = ("tree", "channel", "mutex", "stall")


def parsed(text: str) -> list[Claim]:
    return claims.parse(text, "claims.toml", SWAPS)


def verdicts(text: str, result: dict, combination: str = "default") -> dict[str, str]:
    rows = claims.check(claims.claims_for(parsed(text), combination), result)
    return {row["key"]: row["verdict"] for row in rows}


@pytest.fixture
def result():
    return summarize(build(Run()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("voluntary_switches = 0", ("voluntary_switches", "==", 0)),
        ("strategy.minor_faults = 0", ("strategy.minor_faults", "==", 0)),
        ('"strategy.minor_faults" = 0', ("strategy.minor_faults", "==", 0)),
        ('total.p99_9_ns = "<= 50000"', ("total.p99_9_ns", "<=", 50_000)),
        ('total.p99_9_ns = "<=50us"', ("total.p99_9_ns", "<=", 50_000)),
        ('total.p99_9_ns = " < 1.5 ms "', ("total.p99_9_ns", "<", 1_500_000)),
        ('think.mean_ns = ">= 12.5"', ("think.mean_ns", ">=", 12.5)),
        ('achieved_rate_hz = "> 99_000"', ("achieved_rate_hz", ">", 99_000)),
        ('syscalls = "= 0"', ("syscalls", "==", 0)),
        ('syscalls = "!= -1"', ("syscalls", "!=", -1)),
    ],
)
def test_what_a_claim_may_look_like(text, expected):
    assert parsed(text) == [Claim(*expected)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("voluntary_switchs = 0", "nearest known one is 'voluntary_switches'"),
        ("total.p999_ns = 0", "nearest known one is 'total.p99_9_ns'"),
        ("[combination.tre]\nsyscalls = 0", "nearest known one is 'tree'"),
        ("[combination.'tree+mutx']\nsyscalls = 0", "nearest known one is 'mutex'"),
        ("combination = 1", "combination is not a table"),
        ("[combination]\ntree = 1", "combination.tree is not a table"),
        ("syscalls = true", "not a claim"),
        ("syscalls = 'few'", "not a claim"),
        ("syscalls = '<= 5us'", "not a claim"),
        ("total.max_ns = '<= fast'", "is not a duration"),
        ("total.max_ns = inf", "not a claim"),
        ("syscalls = [0]", "not a claim"),
        ("feed.syscalls = 0\n'feed.syscalls' = 1", "claimed twice"),
        ("syscalls = 0\nmajor_faults <= 1", "line 2"),
        ("# nothing", "states no claim"),
    ],
)
def test_what_is_refused_and_how(text, words):
    with pytest.raises(ClaimsFileError) as caught:
        parsed(text)
    assert words in caught.value.message
    assert "claims.toml" in caught.value.message
    assert caught.value.hint


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ClaimsFileError, match="cannot read"):
        claims.read(tmp_path / "none.toml", SWAPS)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ClaimsFileError, match="UTF-8"):
        claims.read(tmp_path / "binary.toml", SWAPS)


def test_a_combination_adds_claims_and_replaces_those_of_the_same_key():
    stated = parsed(
        "syscalls = 0\nvoluntary_switches = 0\n"
        "[combination.mutex]\nvoluntary_switches = '> 0'\n[combination.'mutex+tree']\nmajor_faults = 0"
    )
    assert [claim.key for claim in claims.claims_for(stated, "default")] == ["syscalls", "voluntary_switches"]
    assert [(claim.key, claim.operator) for claim in claims.claims_for(stated, "mutex")] == [
        ("syscalls", "=="),
        ("voluntary_switches", ">"),
    ]
    assert [claim.key for claim in claims.claims_for(stated, "tree+mutex")][-1] == "major_faults"


def test_every_key_is_known_to_a_result(result):
    rows = claims.check([Claim(key, ">=", 0) for key in claims.KEYS], result)
    unproven = {row["key"] for row in rows if row["verdict"] != claims.HOLDS}
    assert unproven == {"feed.allocations", "strategy.allocations", "total.p99_99_ns", "think.p99_99_ns"}


def test_holds_and_fails(result):
    text = 'voluntary_switches = 0\ntotal.max_ns = "< 1ns"\nfeed.syscalls = "> 0"\nmessages = 2500'
    assert verdicts(text, result) == {
        "voluntary_switches": "holds",
        "total.max_ns": "fails",
        "feed.syscalls": "fails",
        "messages": "holds",
    }


def test_not_measured_and_not_proven_prove_nothing(result):
    result["counters"]["feed"]["syscalls"] = not_measured("the probe was off")
    result["counters"]["feed"]["minor_faults"] = counter(0, "not_proven", "BPF", ("getrusage", 1), False, "they differ")
    rows = claims.check(parsed("syscalls = 0\nminor_faults = 0\nstrategy.syscalls = 0\nfeed.allocations = 0"), result)
    assert [(row["verdict"], row["reason"]) for row in rows[:3]] == [
        ("not proven", "the probe was off"),
        ("not proven", "they differ"),
        ("holds", None),
    ]
    assert rows[3]["verdict"] == "not proven"
    assert "--audit" in rows[3]["reason"]


def test_a_count_of_one_source_is_a_measurement_and_says_so():
    rows = claims.check(parsed("voluntary_switches = 0"), summarize(build(Run(probes=False))))
    assert (rows[0]["verdict"], rows[0]["n_sources"]) == ("holds", 1)


def test_of_several_runs_the_worst_stands():
    def row(verdict, value):
        return {"key": "syscalls", "operator": "==", "verdict": verdict, "value": value}

    merged = claims.merge([[row("holds", 0)], [row("fails", 3)], [row("not proven", None)]])
    assert merged == [{**row("fails", 3), "n_runs": 3, "n_runs_with_verdict": 1}]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], EXIT_OK),
        (["holds"], EXIT_OK),
        (["holds", "not proven"], EXIT_NOT_PROVEN),
        (["not proven", "fails"], EXIT_CLAIM_FAILED),
    ],
)
def test_exit_codes(found, code):
    assert claims.exit_code(found) == code


def test_the_report_and_the_json_say_them(result):
    stated = parsed('voluntary_switches = 0\ntotal.max_ns = "<= 1ns"\nfeed.allocations = 0')
    result["claims"] = claims.check(stated, result)
    text = render_run(result)
    section = text[text.index("Claims of your file") :].splitlines()[:5]
    assert section[1].split() == ["voluntary_switches", "==", "0", "is", "0", "holds"]
    assert section[2].split()[-1] == "FAILS"
    assert "NOT PROVEN" in section[3]
    assert all(cells(line) <= 80 for line in text.splitlines())
    assert '"claims": [' in dump(result)
    result["claims"] = []
    assert "none is for this combination" in render_run(result)


def test_the_example_in_the_docstring_is_one():
    text = (claims.__doc__ or "").partition("::\n")[2].partition("A claim *holds*")[0]
    assert len(parsed(text)) == 6
