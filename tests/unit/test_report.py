"""The text report: eighty columns whatever is in it, and no zero where nothing was measured."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from sysmeter.analysis.summary import summarize
from sysmeter.report.json import dump
from sysmeter.report.layout import cells, fraction, printable, wrap
from sysmeter.report.text import render_run
from tests.golden.build import GOLDEN, everything, nothing, render, without_probes
from tests.support.runs import T_START, Away, Run, build

MS = 1_000_000
WINDOW = T_START + 5 * MS

ISSUE_KEYS = {
    *("schema", "settings", "host", "messages", "messages_released", "elapsed_ns", "achieved_rate_hz"),
    *(
        "batches",
        "ring_full_waits",
        "sequence_gaps",
        "duplicates",
        "other_instruments",
        "unknown_instruments",
        "live",
    ),
    *("latency", "counters", "gc", "probes", "tail", "recording", "interrupted"),
}
# What only the two-thread loop has: a feed, batches, a queue.
CAPSTONE_KEYS = {
    *("batches", "ring_full_waits", "sequence_gaps", "duplicates", "other_instruments", "unknown_instruments"),
    *("live", "messages_released"),
}
LATENCY_KEYS = {
    *("interval", "count", "min_ns", "mean_ns", "max_ns"),
    *("p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "p99_99_ns"),
}
EPISODE_KEYS = {"t_start_ns", "duration_ns", "peak_ns", "n_messages", "parts"}


def too_wide(text: str, width: int = 80) -> list[str]:
    return [line for line in text.split("\n") if cells(line) > width]


@pytest.fixture
def result() -> dict[str, Any]:
    return copy.deepcopy(summarize(everything()))


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_too_wide(name: str, width: int) -> None:
    assert not too_wide(render(summarize(GOLDEN[name]()), width), width)


def test_long_words_and_huge_numbers_stay_within_the_width(result: dict[str, Any]) -> None:
    long = "x" * 300
    result["settings"]["feed"] = "/" + "目" * 120
    result["host"].update(hostname=long, cpu_model=long, isolated_cpus="0-" + "1" * 90)
    result["recording"] = "/" + long
    result["notes"] = [long, "a note\nin two lines", "\x1b[31mred"]
    result["messages"] = result["messages_released"] = 10**15
    for name in ("think", "total"):
        result["latency"][name].update(count=10**15, mean_ns=1.2e15, max_ns=10**16, p99_9_ns=10**15)
    for probe in result["probes"].values():
        probe.update(events=10**12, lost=10**12, missed=10**12, broken_links=10**12, reason=long)
    for thread in ("feed", "strategy"):
        for counter in result["counters"][thread].values():
            counter.update(status="not_proven", reason=long, value=10**15, witness={"source": long, "value": 10**15})
    for episode in result["tail"]["episodes"]:
        for part in episode["parts"]:
            part["detail"] = long
    text = render_run(result)
    assert not too_wide(text)
    assert "\x1b" not in text


def test_every_key_of_the_schema_is_there_in_every_case() -> None:
    for make in GOLDEN.values():
        found = summarize(make())
        is_live = "workload" in found
        assert not (ISSUE_KEYS - (CAPSTONE_KEYS if is_live else set())) - set(found)
        assert found["schema"] == ("sysmeter.live/1" if is_live else "sysmeter.run/1")
        assert set(found["latency"]) == ({"service", "response"} if is_live else {"think", "total"})
        for name in found["latency"]:
            assert not LATENCY_KEYS - set(found["latency"][name])
        assert not {"threshold_ns", "samples", "episodes"} - set(found["tail"])
        for episode in found["tail"]["episodes"]:
            assert not EPISODE_KEYS - set(episode)


def test_json_is_one_object_of_plain_numbers() -> None:
    for make in GOLDEN.values():
        text = dump(summarize(make()))
        assert isinstance(json.loads(text, parse_constant=pytest.fail), dict)
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump({"value": math.nan})


def test_nothing_measured_prints_no_zero() -> None:
    text = render_run(summarize(nothing()))
    counters = text[text.index("Zero counters") : text.index("Off the CPU")]
    assert counters.count("not measured [") == 16
    assert " 0" not in counters
    assert "collections not measured" in text


def test_without_probes_kernel_events_are_not_measured() -> None:
    text = render_run(summarize(without_probes()))
    assert "Kernel events were not measured." in text
    assert "strategy  not measured:" in text
    assert "broken links" not in text


def test_few_samples_are_said_to_be_few(result: dict[str, Any]) -> None:
    assert "n/a (few samples): p99.99 needs 10,000 (think and total)" in render_run(result)


def test_a_sibling_of_a_chosen_cpu_is_named(result: dict[str, Any]) -> None:
    result["host"]["cpus"] = [{"cpu": 2, "smt_siblings": [6]}, {"cpu": 3, "smt_siblings": None}]
    assert "SMT siblings CPU 2: 6; CPU 3: unknown" in render_run(result)


def test_the_target_is_never_reached_by_rounding(result: dict[str, Any]) -> None:
    result["achieved_rate_hz"] = 99_999.999
    assert "99.999 % of the target" in render_run(result)


def test_the_parts_that_are_not_shown_are_summed() -> None:
    length = 20 * 100_000
    taken = [(100 + k, b"task", 100_000) for k in range(20)]
    run = Run(away=[Away("strategy", WINDOW + 3 * MS, length + 2_000, taken)])
    text = render_run(summarize(build(run)))
    assert "13 smaller parts [witnessed]" in text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "n/a"),
        (None, 5, "n/a"),
        (0, 10**9, "0 %"),
        (1, 10**9, "<0.1 %"),
        (10**9, 10**9, "100 %"),
        (10**9 - 1, 10**9, ">99.9 %"),
        (9_995, 10_000, ">99.9 %"),
        (123, 1_000, "12.3 %"),
    ],
)
def test_a_share_is_all_or_nothing_only_when_it_is(part: int | None, whole: int, text: str) -> None:
    assert fraction(part, whole) == text


def test_wrap_breaks_words_that_are_longer_than_a_line() -> None:
    assert wrap("ab " + "c" * 12, 10, "> ") == ["> ab", "  cccccccc", "  cccc"]
    assert wrap("", 10, "> ") == [">"]


def test_what_moves_the_cursor_or_turns_the_text_is_spelled_out() -> None:
    assert printable("a\nb\x1b[2J\u202ec") == "a\\x0ab\\x1b[2J\\u202ec"
