"""`sysmeter checklist`: each answer comes from the Recording, so each changes with what the Recording holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis import habits
from sysmeter.analysis.checklist import check
from sysmeter.analysis.habits import Evidence
from sysmeter.cli.main import main
from sysmeter.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from sysmeter.recording import Recording, RecordingWriter
from sysmeter.report.checklist import render_checklist
from sysmeter.report.json import dump
from sysmeter.report.layout import cells
from tests.golden.build import GOLDEN, nothing
from tests.support.commands import sysmeter
from tests.support.runs import T_START, Away, Run, build, event

MS = 1_000_000
WINDOW = T_START + 5 * MS

NAMES = [
    *("monotonic_clock", "fast_clock", "one_host", "warm_up", "optimised_build", "no_debugger", "histogram"),
    *("percentiles", "tail_with_collections", "fixed_rate", "intended_time", "interval", "live_path", "complete"),
]
STATUSES = {"yes", "no", "not_applicable"}


def sound(run: Run | None = None) -> Recording:
    """A Recording that shows every habit that it can show."""
    recording = build(run or Run(n_messages=6_000, collections=[(WINDOW + 9 * MS, WINDOW + 10 * MS, 0)]))
    loop_ns = [T_START - MS, recording.meta["run"]["t_end_ns"] + MS]
    recording.meta["process"].update(loop_ns=loop_ns, tracer_pids=[])
    return recording


def answers(recording: Recording) -> dict[str, tuple[str, str]]:
    return {row["name"]: (row["status"], row["reason"]) for row in check(recording)["habits"]}


def the_no(recording: Recording) -> dict[str, str]:
    """Name → reason of every habit that is not shown."""
    return {name: reason for name, (status, reason) in answers(recording).items() if status == "no"}


def test_a_sound_recording_shows_every_habit() -> None:
    found = check(sound())
    assert [row["name"] for row in found["habits"]] == NAMES
    assert {row["name"]: row["status"] for row in found["habits"]} == {
        **dict.fromkeys(NAMES, "yes"),
        "live_path": "not_applicable",
    }
    assert found["counts"] == {"yes": 13, "no": 0, "not_applicable": 1}
    assert found["schema"] == "sysmeter.checklist/1"
    reasons = {row["name"]: row["reason"] for row in found["habits"]}
    assert "the first 500 messages (0.005 s at the run's rate)" in reasons["warm_up"]
    assert "5,500 samples of total" in reasons["warm_up"]
    assert "5,500 kept messages, total has the same count, minimum, maximum and sum" in reasons["intended_time"]
    assert "none of 6,000 was released before it was due" in reasons["fixed_rate"]
    assert "collections in the window: 1 of generation 0, 0 of generation 1" in reasons["tail_with_collections"]
    assert "from 6.00 ms before the window to its end" in reasons["optimised_build"]


def edit(path: str, value: Any) -> Callable[[Recording], None]:
    """Sets one value of meta, named by its keys with dots between them."""
    *keys, last = path.split(".")

    def change(recording: Recording) -> None:
        place = recording.meta
        for key in keys:
            place = place[key]
        place[last] = value

    return change


def swap_two_batches(recording: Recording) -> None:
    popped = recording.arrays["batches"]["t_popped_ns"]
    popped[[10, 11]] = popped[[11, 10]]


def decide_before_the_pop(recording: Recording) -> None:
    batches = recording.arrays["batches"]
    batches["t_popped_ns"][100] = batches["t_decided_ns"][100] + 1


def an_edge_that_goes_back(recording: Recording) -> None:
    recording.meta["edges"]["feed"]["close"]["t_after_ns"] -= 10**12


def negative_samples(recording: Recording) -> None:
    recording.meta["histograms"]["think"]["n_negative"] = 3


def release_too_early(recording: Recording) -> None:
    recording.arrays["releases"][5_000] -= 1_000_000


def one_count_too_many(recording: Recording) -> None:
    recording.arrays["think_counts"][7] += 1


def audit_events(recording: Recording) -> None:
    rows = [event(t_ns=WINDOW + k, kind=records.EVENT_ALLOCATION, tid=2002, value=1) for k in range(4)]
    recording.arrays["kernel_events"] = np.array(rows, records.KERNEL_EVENT)


BREAKS = [
    (edit("clock.name", "CLOCK_REALTIME"), {"monotonic_clock": "the instants are read from CLOCK_REALTIME"}),
    (swap_two_batches, {"monotonic_clock": "and yet 2 of "}),
    (decide_before_the_pop, {"monotonic_clock": "and yet "}),
    (an_edge_that_goes_back, {"monotonic_clock": "and yet "}),
    (negative_samples, {"monotonic_clock": "3 samples are negative", "complete": "3 samples of think are negative"}),
    (edit("clock.fast", False), {"fast_clock": "every read enters the kernel"}),
    (edit("clock.source", "unknown"), {"fast_clock": "not shown"}),
    (edit("clock.resolution_ns", 4_000_000), {"fast_clock": "too coarse: resolution 4.00 ms"}),
    (edit("clock.checked_end", False), {"one_host": "the kernel's clock is not the threads'"}),
    (edit("clock.checked_start", None), {"one_host": "not shown"}),
    (edit("threads.tgid", None), {"one_host": "not shown"}),
    (edit("run.n_warmup", 0), {"warm_up": "there was no warm-up", "intended_time": "the count is 5,500"}),
    (
        edit("run.n_warmup", 499),
        {"warm_up": "are not the 5,501 messages", "intended_time": "the count is 5,500 in the histogram and 5,501"},
    ),
    (edit("process.loop_ns", None), {"optimised_build": "not shown"}),
    (edit("host.numba", None), {"optimised_build": "not shown"}),
    (edit("process.loop_ns", [WINDOW + 1, WINDOW + 10**12]), {"optimised_build": "reaches beyond"}),
    (edit("process.loop_ns", [T_START, WINDOW + 1]), {"optimised_build": "reaches beyond"}),
    (edit("process.tracer_pids", None), {"no_debugger": "not shown"}),
    (edit("process.tracer_pids", [77, 78]), {"no_debugger": "process 77, 78 traced"}),
    (edit("settings.audit", True), {"no_debugger": "--audit"}),
    (audit_events, {"no_debugger": "4 calls of libc's allocator were traps"}),
    (one_count_too_many, {"histogram": "think has "}),
    (edit("process.gc_collections_lost", 2), {"tail_with_collections": "not proven", "complete": "2 collections"}),
    (edit("process.gc_collections_after", [10, 2, 0]), {"tail_with_collections": "not proven"}),
    (release_too_early, {"fixed_rate": "1 of 6,000 messages were released before they were due"}),
    (edit("run.t_start_ns", T_START + 1), {"fixed_rate": "released before", "intended_time": "the minimum is"}),
    (edit("histograms.total.sum_ns", 1), {"intended_time": "the sum is 1 in the histogram"}),
    (edit("histograms.total.max_ns", 4 * 10**9), {"intended_time": "the maximum is 4,000,000,000 in the histogram"}),
    (edit("interrupted", True), {"complete": "it was interrupted after 5,500 of its messages"}),
    (edit("run.stopped_by", "stop_above"), {"complete": "stopped by its first response above the limit"}),
    (edit("run.gaps_lost", {"feed": 0, "strategy": 12}), {"complete": "12 gaps of the strategy thread"}),
    (edit("run.n_window_messages", 5_507), {"complete": "7 messages have no response time"}),
    (edit("histograms.total.n_overflow", 5), {"complete": "5 samples of total are above 2^63 - 1 ns"}),
    (edit("probes.runq_delay.lost", 9), {"complete": "probe runq_delay lost 9 events"}),
    (edit("probes.runq_delay.missed", 1), {"complete": "probe runq_delay missed 1 events"}),
    (edit("probes.context_switch.broken_links", 6), {"complete": "6 context switches of other tasks"}),
    (edit("probes.syscalls", {"status": "unavailable", "reason": "why"}), {"complete": "syscalls is unavailable: why"}),
]


@pytest.mark.parametrize(("change", "expected"), BREAKS)
def test_what_breaks_a_habit_breaks_that_one_and_no_other(
    change: Callable[[Recording], None], expected: dict[str, str]
) -> None:
    recording = sound()
    change(recording)
    found = the_no(recording)
    assert set(found) == set(expected)
    for name, words in expected.items():
        assert words in found[name]


def test_a_flat_run_has_no_rate_and_no_intended_time() -> None:
    found = the_no(sound(Run(n_messages=6_000, mode="flat")))
    assert set(found) == {"fixed_rate", "intended_time"}
    assert "coordinated omission" in found["intended_time"]
    assert "a slow moment slows the load down" in found["fixed_rate"]


def test_waits_for_a_full_queue_are_no_break_of_the_schedule() -> None:
    away = [Away("strategy", WINDOW + 3 * MS, 20 * MS, [(77, b"task", 20 * MS - 2_000)])]
    found = answers(sound(Run(n_messages=6_000, away=away, ring_slots=256)))
    assert found["fixed_rate"][0] == "yes"
    assert "found the queue full and kept their intended times" in found["fixed_rate"][1]
    assert found["intended_time"][0] == "yes"


def test_few_samples_are_too_few() -> None:
    found = the_no(sound(Run(n_messages=1_200)))
    assert set(found) == {"tail_with_collections"}
    assert "700 samples of total are too few for p99.9, which takes 1,000" in found["tail_with_collections"]
    assert set(the_no(sound(Run(n_messages=550)))) == {"percentiles", "tail_with_collections"}


def a_long_run() -> Recording:
    """Only the slowest batches are kept."""
    away = [Away("strategy", WINDOW + 3 * MS, 2 * MS, [(123, b"kworker/1:1", 2 * MS - 2_000)])]
    return sound(Run(n_messages=6_000, away=away, tail_batches=40))


def test_of_a_long_run_the_slowest_responses_are_worked_out_again() -> None:
    found = answers(a_long_run())
    assert {name for name, (status, _) in found.items() if status == "no"} == set()
    assert "the same number beyond the slowest not kept and maximum" in found["intended_time"][1]
    recording = a_long_run()
    recording.meta["histograms"]["total"]["max_ns"] += 1
    assert "the maximum is" in the_no(recording)["intended_time"]
    recording = a_long_run()
    recording.meta["run"]["t_start_ns"] -= MS
    assert "worked out again" in the_no(recording)["intended_time"]


def test_without_probes_there_is_no_other_clock_to_compare() -> None:
    found = answers(sound(Run(n_messages=6_000, probes=False)))
    words = "every latency is the difference of two instants of one process (2000) on testhost; no kernel event was"
    assert found["one_host"] == ("yes", f"{words} recorded that could be compared to it")
    assert found["complete"][0] == "no"
    assert found["complete"][1].startswith("not watched by context_switch, runq_delay")
    assert "the kernel's probes" not in found["no_debugger"][1]


def test_where_nothing_was_measured_nothing_is_claimed() -> None:
    found = answers(nothing())
    of_samples = ("warm_up", "histogram", "percentiles", "tail_with_collections", "intended_time")
    assert {found[name][0] for name in (*of_samples, "optimised_build")} == {"not_applicable"}
    assert "it was interrupted after 0 of its messages" in found["complete"][1]


def test_a_workload_in_python_has_no_build() -> None:
    evidence = Evidence(sound())
    evidence.workload = "live"
    assert habits.optimised_build(evidence)[0] == "not_applicable"
    assert "a made-up workload" in habits.live_path(evidence)[1]


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("width", [40, 60, 80])
def test_every_recording_has_an_answer_to_every_habit_within_the_width(name: str, width: int) -> None:
    recording = GOLDEN[name]()
    recording.path = Path("/" + "目" * 90)
    found = check(recording)
    assert [row["name"] for row in found["habits"]] == NAMES
    assert {row["status"] for row in found["habits"]} <= STATUSES
    assert all(row["reason"] for row in found["habits"])
    assert sum(found["counts"].values()) == len(NAMES)
    text = render_checklist(found, width)
    assert all(cells(line) <= width for line in text.split("\n"))
    assert text == render_checklist(json.loads(dump(found), parse_constant=pytest.fail), width)


# ── the command ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with RecordingWriter(tmp_path / "r") as writer:
        return writer.commit(sound())


def test_the_command_prints_each_habit_and_exits_with_0_whatever_the_answers(saved: Path, capsys) -> None:
    assert main(["checklist", str(saved)]) == EXIT_OK
    out = capsys.readouterr().out
    assert "\nyes             A histogram, not a list\n" in out
    assert "\nnot applicable  Recorded where the work is done" in out
    assert out.endswith("14 habits: 13 yes, 0 no, 1 not applicable.\n")
    meta = json.loads((saved / "meta.json").read_text())
    meta["interrupted"] = True
    (saved / "meta.json").write_text(json.dumps(meta))
    assert main(["checklist", "--json", str(saved)]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    assert found["recording"] == str(saved)
    assert found["counts"] == {"yes": 12, "no": 1, "not_applicable": 1}


def test_what_is_no_recording_is_an_error(saved: Path, tmp_path: Path, capsys) -> None:
    assert main(["checklist", str(tmp_path / "none")]) == EXIT_ERROR
    assert "does not exist" in capsys.readouterr().err
    assert main(["checklist"]) == EXIT_USAGE
    meta = json.loads((saved / "meta.json").read_text())
    for key in ("settings", "process", "run", "clock", "threads", "edges"):
        (saved / "meta.json").write_text(json.dumps({**meta, key: [1]}))
        assert main(["checklist", str(saved)]) == EXIT_ERROR
        out, err = capsys.readouterr()
        assert out == ""
        assert "is damaged" in err


def test_a_real_run_shows_how_it_was_measured(tmp_path: Path) -> None:
    words = ("run", "--no-probes", "--seconds", "0.4", "--warmup", "0.1", "--rate", "20000", "--out", "r")
    assert sysmeter(*words, cwd=tmp_path).returncode == EXIT_OK
    done = sysmeter("checklist", "--json", "r", cwd=tmp_path)
    assert done.returncode == EXIT_OK
    found = {row["name"]: row["status"] for row in json.loads(done.stdout)["habits"]}
    # The host decides about the clock's source, and about gaps that found no room.
    shown = set(NAMES) - {"fast_clock", "no_debugger", "complete", "live_path"}
    assert {name: found[name] for name in shown} == dict.fromkeys(shown, "yes")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; import sysmeter.cli.checklist; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
