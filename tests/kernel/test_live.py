"""`sysmeter live` on real kernel events: what held the worker, witnessed by the kernel and the interpreter."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import host, records, session
from sysmeter.analysis.attribution import attribute
from sysmeter.analysis.kernelevidence import kernel_evidence
from sysmeter.analysis.summary import summarize
from sysmeter.analysis.tail import slow_messages
from sysmeter.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from sysmeter.recording import Recording, load
from sysmeter.session import LiveSettings
from tests.support.commands import start, sysmeter

pytestmark = pytest.mark.kernel

SHORT = ("--seconds", "1.5", "--warmup", "0.5")


def live_json(*arguments: str, cwd: Path, exit_code: int = EXIT_OK) -> dict[str, Any]:
    done = sysmeter("live", "--json", *arguments, cwd=cwd)
    assert done.returncode == exit_code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert_conserved(result)
    return result


def assert_conserved(result: dict[str, Any]) -> None:
    """Witnessed, inferred and unexplained are the whole, to the nanosecond; each episode's parts are its length."""
    tail = result["tail"]
    for key in ("sample_time", "wall_time"):
        row = tail[key]
        assert row["witnessed_ns"] + row["inferred_ns"] + row["unexplained_ns"] == row["whole_ns"] > 0
    for episode in tail["episodes"]:
        assert sum(part["time_ns"] for part in episode["parts"]) == episode["duration_ns"]
    assert tail["n_above_in_histogram"] == tail["n_above_found"]


def undecided(result: dict[str, Any]) -> bool:
    """Something was skipped or fell into an edge, so that a witness could not decide: said, and no defect."""
    counters = [counter for part in result["counters"].values() for counter in part.values()]
    return any(c["status"] == "not_proven" and "too few to tell" in c["reason"] for c in counters)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """(directory, result) of one run with a cache in which full collections are long."""
    for _ in range(3):
        directory = tmp_path_factory.mktemp("live")
        run = live_json("--seconds", "5", "--orders", "60000", "--out", "recording", cwd=directory)
        if not undecided(run):
            break
    return directory, run


def test_every_message_of_the_window_is_timed_twice(result):
    _, run = result
    assert run["schema"] == "sysmeter.live/1"
    assert run["messages"] == run["latency"]["service"]["count"] == run["latency"]["response"]["count"] == 40_000
    for key in ("p50_ns", "p99_ns", "max_ns"):
        assert run["latency"]["response"][key] >= run["latency"]["service"][key]


def test_every_generation_has_work_and_both_sources_count_the_same(result):
    _, run = result
    assert all(n > 0 for n in run["gc"]["collections"]), run["gc"]["collections"]
    counted = run["counters"]["process"]["gc_collections"]
    assert (counted["status"], counted["agrees"]) == ("measured", True)
    assert counted["value"] == counted["witness"]["value"] == sum(run["gc"]["collections"])
    assert run["gc"]["max_ns"][2] > run["gc"]["max_ns"][0]


def test_kernel_and_thread_agree_on_the_workers_counters(result):
    _, run = result
    for name, counter in run["counters"]["worker"].items():
        cannot_tell = name == "runq_delay_ns" and counter["value"] <= counter["tolerance_ns"]
        assert counter["agrees"] is True or (cannot_tell and counter["agrees"] is None), (name, counter)
    assert run["counters"]["worker"]["minor_faults"]["value"] > 0


def test_the_slowest_episode_is_a_full_collections(result):
    """A cache of 60,000 orders takes a full collection some 100 ms: nothing else on a host is that slow."""
    parts = result[1]["tail"]["episodes"][0]["parts"]
    assert "collection: generation 2, own thread" in [f"{part['cause']}: {part['detail']}" for part in parts]
    assert all(part["evidence"] == "witnessed" for part in parts if part["cause"] == "collection")


def test_report_prints_a_live_recording_again_and_survives_a_reader_that_leaves(result):
    directory, run = result
    again = sysmeter("report", "--json", "recording", cwd=directory)
    assert json.loads(again.stdout) == {**run, "recording": json.loads(again.stdout)["recording"]}
    text = sysmeter("report", "recording", cwd=directory).stdout
    assert "resolution 1 ns" in text
    assert "generation 2" in text
    assert max(map(len, text.splitlines())) <= 80
    first = subprocess.run(
        f"{' '.join(start('report', 'recording', cwd=directory).args)} | head -1",
        shell=True,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert first.stdout.startswith("live ")
    assert first.stderr == ""


def run_live(place: Path, **changes: Any) -> Recording:
    base = {"seconds": 1.5, "warmup_seconds": 0.5, "orders": 20_000, **changes}
    return session.run(LiveSettings(cpus=(host.choose_cpu(None),), **base), place)


def test_a_forced_collection_is_the_cause_of_the_slowest_episode(tmp_path, monkeypatch):
    """gc.collect() in the middle of a run in which the collector is off: the only collection, and the cause."""
    monkeypatch.setitem(session._PACKAGES, records.LIVE, "tests.support.forced_collection")
    # The sample, the cache, the rehearsal, the warm-up and half of the window.
    monkeypatch.setenv("SYSMETER_TEST_COLLECT_AT", str(2_000 + 40_000 + 500 + 5_000 + 5_000))
    recording = run_live(tmp_path / "r", gc="off", orders=40_000)
    run = summarize(recording)
    assert_conserved(run)
    assert run["gc"]["collections"] == [0, 0, 1]
    counted = run["counters"]["process"]["gc_collections"]
    assert (counted["value"], counted["witness"]["value"], counted["agrees"]) == (1, 1, True)
    (collection,) = run["gc"]["listed"]
    slowest = run["tail"]["episodes"][0]
    assert slowest["t_start_ns"] <= collection["t_start_ns"] < slowest["t_start_ns"] + slowest["duration_ns"]
    nested = ("preempted", "run queue", "throttled", "sysmeter itself", "hard interrupt", "softirq")
    nested_ns = sum(part["time_ns"] for part in slowest["parts"] if part["cause"] in nested)
    (charged,) = [part for part in slowest["parts"] if part["cause"] == "collection"]
    assert (charged["detail"], charged["evidence"]) == ("generation 2, own thread", "witnessed")
    # What took the CPU inside the collection is charged to whoever that was, and to nobody else.
    assert collection["duration_ns"] - nested_ns <= charged["time_ns"] <= collection["duration_ns"]


def test_waiting_for_the_lock_is_named_and_witnessed(tmp_path):
    """Other Python threads want the lock: each of the worker's sleeps is a futex inside _PyRuntime."""
    recording = run_live(tmp_path / "r", gc="threshold:300", orders=2_000, threads=3)
    run = summarize(recording)
    assert_conserved(run)
    lock, asleep = run["interpreter_lock"], run["counters"]["worker"]["voluntary_switches"]
    assert recording.meta["interpreter_lock"]["reason"] is None
    assert lock["count"] > 10
    assert lock["count"] == asleep["value"], "this workload's worker sleeps for nothing but the lock"
    assert asleep["agrees"] is True or asleep["status"] == "not_proven", asleep
    assert len(run["gc"]["by_thread"]) > 1
    # All responses above half a millisecond, so that more than the worst episode is looked at.
    off_cpu, events = kernel_evidence(recording)
    found = attribute(recording, off_cpu, slow_messages(recording, 500_000), events)
    charged = {cause: charge.wall_time_ns for (_, cause), charge in found.charges.items() if charge.wall_time_ns}
    waits = [cause for cause in charged if cause.cause == "interpreter lock"]
    assert [cause.evidence for cause in waits] == ["witnessed"]
    assert not any(cause.cause == "voluntary" for cause in charged)
    foreign = [cause for cause in charged if cause.cause == "collection" and "other-" in cause.detail]
    assert any("while the lock was waited for" in cause.detail for cause in foreign), list(charged)


def test_first_arguments_of_system_calls_are_recorded(tmp_path):
    """The worker's own reads of its witnesses: their first argument is a small descriptor, getrusage's is a thread."""
    recording = run_live(tmp_path / "r", seconds=0.3, warmup_seconds=0.1, orders=100)
    events = recording["kernel_events"]
    calls = events[(events["kind"] == records.EVENT_SYSCALL) & (events["value"] == 98)]  # getrusage on x86-64
    if recording.meta["host"]["machine"] != "x86_64":
        pytest.xfail("the numbers of the calls are x86-64's")
    assert len(calls) == 2
    assert (calls["value2"].astype(np.uint32).view(np.int32) == 1).all()  # RUSAGE_THREAD


def test_off_has_no_collection_by_both_sources_and_memory_grows(tmp_path):
    run = live_json(*SHORT, "--gc", "off", cwd=tmp_path)
    assert run["gc"]["collections"] == [0, 0, 0]
    counted = run["counters"]["process"]["gc_collections"]
    assert (counted["value"], counted["witness"]["value"], counted["agrees"]) == (0, 0, True)
    assert run["memory"]["rss_growth_bytes"] > 1 << 20
    assert not any(row["cause"] == "collection" for row in run["tail"]["causes"])


def test_flat_has_no_response_time_and_says_why(tmp_path):
    run = live_json(*SHORT, "--mode", "flat", cwd=tmp_path)
    response = run["latency"]["response"]
    assert (response["count"], response["p99_ns"], response["max_ns"]) == (None, None, None)
    assert response["reason"]
    assert run["tail"]["histogram"] == "service"
    assert run["latency"]["service"]["count"] == 10_000


def test_without_probes_collections_are_still_causes_and_the_lock_is_not_measured(tmp_path):
    run = live_json("--seconds", "3", "--orders", "60000", "--no-probes", cwd=tmp_path)
    assert run["interpreter_lock"]["count"] is None
    assert run["interpreter_lock"]["reason"]
    assert run["counters"]["worker"]["involuntary_switches"]["source"] == "getrusage"
    assert all(probe["status"] == "off" for probe in run["probes"].values())
    assert any(row["cause"] == "collection" and row["evidence"] == "witnessed" for row in run["tail"]["causes"])


def test_ctrl_c_ends_the_run_in_order_and_saves_it(tmp_path):
    process = start("live", "--seconds", "300", "--warmup", "0.2", "--out", "r", cwd=tmp_path)
    assert process.stderr is not None
    line = process.stderr.readline()
    while "measuring" not in line:
        assert process.poll() is None, line
        line = process.stderr.readline()
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, stderr
    assert "INTERRUPTED" in stdout
    assert "Traceback" not in stderr
    recording = load(tmp_path / "r")
    assert recording.meta["interrupted"] is True
    assert summarize(recording)["counters"]["process"]["gc_collections"]["agrees"] is True


def test_ctrl_c_in_a_comparison_prints_what_was_measured(tmp_path):
    process = start("live", "--compare-gc", "--rounds", "50", *SHORT, "--orders", "500", cwd=tmp_path)
    assert process.stderr is not None
    line = process.stderr.readline()
    while "run 1 of 200" not in line:
        assert process.poll() is None, line
        line = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, stderr
    assert "INTERRUPTED after" in stdout
    assert "default " in stdout
    assert list(tmp_path.iterdir()) == []


def test_the_comparison_shows_each_policys_effect(tmp_path):
    done = sysmeter(
        *("live", "--compare-gc", "--json", "--rounds", "1", "--gc", "default", "--gc", "off", *SHORT), cwd=tmp_path
    )
    assert done.returncode == EXIT_OK, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == "sysmeter.live-gc/1"
    default, off = result["policies"]
    assert default["collections"][0]["median"] > 0
    assert [spread["median"] for spread in off["collections"]] == [0, 0, 0]
    assert off["gc_time_ns"]["median"] == 0 < default["gc_time_ns"]["median"]
    assert all(run["gc_agrees"] for run in result["runs"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--cpu", "100000"), EXIT_USAGE, "CPU 100000 does not exist"),
        (("--gc", "sometimes"), EXIT_USAGE, "no policy"),
        (("--gc", "off", "--gc", "freeze"), EXIT_USAGE, "several times"),
        (("--rounds", "2"), EXIT_USAGE, "belongs to --compare-gc"),
        (("--seconds", "1", "--warmup", "1"), EXIT_USAGE, "leaves nothing to measure"),
        (("--seconds", "1e6"), EXIT_USAGE, "every one is kept"),
        (("--orders", "100000000"), EXIT_USAGE, "are available"),
        (("--out", "taken"), EXIT_ERROR, "exists already"),
        (("--out", "no/such/place"), EXIT_ERROR, "cannot write"),
    ],
)
def test_what_cannot_be_carried_out_is_said_in_words(tmp_path, arguments, code, words):
    (tmp_path / "taken").mkdir()
    done = sysmeter("live", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]
