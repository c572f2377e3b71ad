"""What the injectors say they did, against what the kernel counted; and `sysmeter selftest` end to end.

The host is what it is: where others want the measured CPUs, a trial may be spoiled, so not every one must be found.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sysmeter import host, records, session
from sysmeter.analysis import selftest as judgement
from sysmeter.analysis.slices import STATE_STOPPED
from sysmeter.cli.provisions import cache_directory, default_feed
from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_INTERRUPTED, EXIT_NOT_PROVEN, EXIT_OK
from sysmeter.selftest import plan, rival
from sysmeter.selftest.cgroups import QuotaGroup, QuotaUnavailable, find_controller
from sysmeter.selftest.driver import Driver
from sysmeter.session import RunListener, RunSettings
from sysmeter.units import NS_PER_MS, NS_PER_S
from sysmeter.workload import die_with_parent, own_python
from tests.support.commands import as_nobody, start, sysmeter

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

TRIALS = 4
WARMUP_NS = 250 * NS_PER_MS


def groups() -> list[Path]:
    """The groups of self-tests that are there."""
    with contextlib.suppress(QuotaUnavailable):
        home, is_v2 = find_controller(os.getpid())
        return sorted((home.parent if is_v2 else home).glob("sysmeter-selftest-*"))
    return []


def processes_called(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
def injected(tmp_path_factory):
    """(steps, Recording, what the host was before) of one run with some trials of each cause."""
    before = (groups(), set(processes_called(rival.COMM)), os.sched_getaffinity(0))
    steps = plan.make_plan(plan.CAPSTONE_CAUSES, TRIALS, 11)
    settings = RunSettings(
        feed=str(default_feed(RunListener())),
        cache_dir=str(cache_directory()),
        cpus=host.choose_cpus(None),
        rate_hz=50_000,
        seconds=round(plan.duration_ns(steps) / NS_PER_S + 1.5, 2),
        warmup_seconds=WARMUP_NS / NS_PER_S,
        loop=True,
        stall="injected",
    )
    out = tmp_path_factory.mktemp("selftest") / "recording"
    recording = session.run(settings, out, None, Driver(steps, "strategy", WARMUP_NS))
    return steps, recording, before


@pytest.fixture(scope="module")
def rows(injected):
    return injected[1].meta["injections"]


def of(rows, cause):
    return [row for row in rows if row["cause"] == cause]


def grown(recording, name):
    edges = recording.meta["edges"]["strategy"]
    return edges["close"][name] - edges["open"][name]


def events_of(recording, kind):
    events = recording["kernel_events"]
    tid = recording.meta["threads"]["strategy"]["tid"]
    return events[(events["kind"] == kind) & (events["tid"] == tid)]


def inside(events, row):
    t_ns = events["t_ns"].astype(np.int64)
    return events[(t_ns >= row["t_begin_ns"]) & (t_ns <= row["t_end_ns"])]


def test_every_step_came_about_or_says_why_it_did_not(injected, rows):
    steps, recording, _ = injected
    failed, missing = recording.meta["injections_failed"], recording.meta["injections_missing"]
    told = {row["number"] for row in [*rows, *failed]}
    assert told | {step.number for step in steps if step.cause in missing} == {step.number for step in steps}
    counts = Counter(row["cause"] for row in rows)
    for cause in (*plan.CAPSTONE_CAUSES, plan.CONTROL):
        if cause in (plan.QUOTA, plan.INTERRUPT, plan.STOP):  # what a busy CPU can keep from coming about
            assert counts[cause] + sum(row["cause"] == cause for row in failed) == TRIALS or cause in missing
        else:
            assert counts[cause] == TRIALS, failed


def test_windows_do_not_overlap_and_lie_in_the_run(injected, rows):
    run = injected[1].meta["run"]
    assert rows[0]["t_begin_ns"] >= run["t_start_ns"] + WARMUP_NS
    for before, after in pairwise(rows):
        assert before["t_begin_ns"] < before["t_end_ns"] < after["t_begin_ns"]
    assert rows[-1]["t_end_ns"] < run["t_end_ns"]


def test_each_record_is_possible(rows):
    for row in rows:
        assert row["thread"] == "strategy"
        if row["cause"] != plan.CONTROL:
            assert 0 <= row["held_ns"] <= row["held_max_ns"] <= row["t_end_ns"] - row["t_begin_ns"], row


def test_sleeps_waits_and_stops_are_switches_that_the_kernel_counted(injected, rows):
    expected = sum(len(of(rows, cause)) for cause in (plan.SLEEP, plan.MUTEX, plan.STOP))
    # A stop that came too late to be a trial has stopped the thread all the same.
    late = sum(row["cause"] == plan.STOP for row in injected[1].meta["injections_failed"])
    assert expected <= grown(injected[1], "voluntary_switches") <= expected + late
    stops = events_of(injected[1], records.EVENT_SWITCH)
    stops = stops[(stops["value"] & STATE_STOPPED) != 0]
    assert len(of(rows, plan.STOP)) <= len(stops) <= len(of(rows, plan.STOP)) + late
    for row in of(rows, plan.STOP):
        assert len(inside(stops, row)) == 1


def test_faults_are_as_many_as_pages_were_touched(injected, rows):
    steps, recording, _ = injected
    done = {row["number"] for row in of(rows, plan.PAGE_FAULT)}
    pages = sum(step.argument for step in steps if step.number in done)
    assert pages <= grown(recording, "minor_faults") < pages + 20
    faults = events_of(recording, records.EVENT_PAGE_FAULT)
    for row in of(rows, plan.PAGE_FAULT):
        low = row["identity"]["address"]
        addresses = inside(faults, row)["value"].astype(np.int64)
        assert len(addresses) == next(step.argument for step in steps if step.number == row["number"])
        assert ((low <= addresses) & (addresses < low + row["identity"]["n_bytes"])).all()


def test_the_thread_was_moved_there_and_back(injected, rows):
    recording = injected[1]
    n = len(of(rows, plan.MIGRATION))
    assert grown(recording, "nr_migrations") == 2 * n
    moves = events_of(recording, records.EVENT_MIGRATION)
    for row in of(rows, plan.MIGRATION):
        source, target = row["identity"]["cpus"]
        assert [(int(move["value2"]), int(move["value"])) for move in inside(moves, row)] == [(source, target)]
    assert recording.meta["edges"]["strategy"]["close"]["cpu"] == recording.meta["threads"]["strategy"]["cpu"]


def test_interrupts_came_in_the_windows_of_the_interrupter(injected, rows):
    found = events_of(injected[1], records.EVENT_INTERRUPT)
    kinds = (records.INTERRUPT_CALL_FUNCTION, records.INTERRUPT_CALL_FUNCTION_SINGLE)
    found = found[np.isin(found["detail"], kinds)]
    for row in of(rows, plan.INTERRUPT):
        assert len(inside(found, row)) >= 1


def test_the_rival_was_seen_at_its_records_times(injected, rows):
    events = injected[1]["kernel_events"]
    switches = events[events["kind"] == records.EVENT_SWITCH]
    for row in of(rows, plan.PREEMPTION):
        own = switches[(switches["tid"] == row["identity"]["tid"]) | (switches["other_tid"] == row["identity"]["tid"])]
        # It comes before and leaves after: within what Python takes to wake up, and what others on the CPU take.
        near = {**row, "t_begin_ns": row["t_begin_ns"] - 20 * NS_PER_MS, "t_end_ns": row["t_end_ns"] + 20 * NS_PER_MS}
        assert len(inside(own, near)) >= 1
        comes = own[own["other_tid"] == row["identity"]["tid"]]
        assert set(comes["other_comm"].tolist()) <= {rival.COMM.encode()}


def test_a_stall_is_the_recordings_own(injected, rows):
    found = {(int(stall["t_start_ns"]), int(stall["duration_ns"])) for stall in injected[1]["stalls"]}
    assert {(row["t_begin_ns"], row["held_max_ns"]) for row in of(rows, plan.STALL)} == found


def test_the_host_is_as_it_was(injected):
    before_groups, before_rivals, affinity = injected[2]
    assert groups() == before_groups
    assert set(processes_called(rival.COMM)) == before_rivals
    assert os.sched_getaffinity(0) == affinity


def test_the_diagnosis_names_them(injected):
    judged = judgement.judge_recording(injected[1])
    assert not [row["reason"] for row in judged if row["cause"] == plan.CONTROL and not row["found"]]
    for cause in plan.CAPSTONE_CAUSES:
        trials = [row for row in judged if row["cause"] == cause]
        n_found = sum(row["found"] for row in trials)
        assert n_found >= len(trials) - 1, [row["reason"] for row in trials]


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """A run of the live workload with injected collections."""
    steps = plan.make_plan([plan.COLLECTION], TRIALS, 3)
    settings = session.LiveSettings(
        cpus=(host.allowed_cpus()[-1],),
        rate_hz=5_000,
        orders=5_000,
        seconds=round(plan.duration_ns(steps) / NS_PER_S + 1.5, 2),
        warmup_seconds=WARMUP_NS / NS_PER_S,
        takes_commands=True,
    )
    out = tmp_path_factory.mktemp("selftest-live") / "recording"
    return session.run(settings, out, None, Driver(steps, "worker", WARMUP_NS))


def test_a_collection_is_one_that_the_interpreter_reported(collected):
    """gc.callbacks saw it between the two clock reads, in the thread and of the generation that the record names."""
    rows = of(collected.meta["injections"], plan.COLLECTION)
    assert len(rows) == TRIALS
    for row in rows:
        found = collected["collections"]
        found = found[(found["t_start_ns"] >= row["t_begin_ns"]) & (found["t_end_ns"] <= row["t_end_ns"])]
        found = found[found["tid"] == row["identity"]["tid"]]
        assert found["generation"].tolist() == [row["identity"]["generation"]] == [2]
        lasted_ns = int((found["t_end_ns"] - found["t_start_ns"])[0])
        assert row["held_ns"] <= row["held_max_ns"]
        assert lasted_ns <= row["held_max_ns"]
        # CPU time is counted in the kernel's own way, and calling the collector takes some as well.
        assert row["held_ns"] < lasted_ns + NS_PER_MS
    assert collected.meta["threads"]["worker"]["tid"] not in {row["identity"]["tid"] for row in rows}


def test_the_diagnosis_names_collections_of_another_thread(collected):
    judged = judgement.judge_recording(collected)
    assert not [row["reason"] for row in judged if row["cause"] == plan.CONTROL and not row["found"]]
    trials = [row for row in judged if row["cause"] == plan.COLLECTION]
    # Where others want the worker's CPU it waits for that too, and the length may be off; but not the name.
    assert all(row["named_ns"] > 0 for row in trials), [row["reason"] for row in trials]


def test_the_rivals_account_is_the_schedulers():
    cpu = host.allowed_cpus()[-1]
    process = subprocess.Popen(
        [*own_python("sysmeter.selftest.rival"), str(cpu)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        preexec_fn=die_with_parent,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        schedstat = Path(f"/proc/{process.pid}/schedstat")
        before_ns = int(schedstat.read_text().split()[0])
        process.stdin.write(b"20000000\n")
        begin_ns, end_ns, used_ns = map(int, process.stdout.readline().split())
        after_ns = int(schedstat.read_text().split()[0])
        assert 20 * NS_PER_MS <= used_ns <= end_ns - begin_ns
        # The scheduler's figure has what Python does before and after as well.
        assert used_ns <= after_ns - before_ns < used_ns + 5 * NS_PER_MS
        assert Path(f"/proc/{process.pid}/comm").read_text() == rival.COMM + "\n"
        assert os.sched_getaffinity(process.pid) == {cpu}
    finally:
        process.stdin.close()
        assert process.wait(10) == 0
        process.stdout.close()


@pytest.fixture
def spinner():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=die_with_parent)
    yield process
    process.kill()
    process.wait()


def cpu_ns(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_a_quota_holds_the_thread_and_all_is_put_back(spinner):
    own_groups = Path(f"/proc/{spinner.pid}/cgroup").read_text()
    try:
        group = QuotaGroup(spinner.pid, spinner.pid)
    except QuotaUnavailable as error:
        pytest.skip(f"this host has no CPU quota to test: {error}")
    try:
        group.enter()
        assert "sysmeter-selftest-" in Path(f"/proc/{spinner.pid}/cgroup").read_text()
        time.sleep(0.05)
        assert group.throttled_ns() == 0
        group.limit(2 * NS_PER_MS, 10 * NS_PER_MS)
        before_ns, t_before_ns = cpu_ns(spinner.pid), time.monotonic_ns()
        time.sleep(0.3)
        used_ns, length_ns = cpu_ns(spinner.pid) - before_ns, time.monotonic_ns() - t_before_ns
        group.unlimit()
        throttled_ns = group.throttled_ns()
        # A fifth was asked for; the kernel counts in ticks and slices of some milliseconds.
        assert used_ns < length_ns * 2 // 5
        assert throttled_ns > length_ns // 5
        assert throttled_ns < length_ns + 20 * NS_PER_MS
        time.sleep(0.05)
        assert group.throttled_ns() == throttled_ns
        group.leave()
        assert "strategy" not in Path(f"/proc/{spinner.pid}/cgroup").read_text()
    finally:
        group.close()
    assert Path(f"/proc/{spinner.pid}/cgroup").read_text() == own_groups
    assert not [path for path in groups() if f"-{os.getpid()}-" in path.name]


MAKE_A_GROUP = """
import os, sys, time
from sysmeter.selftest.cgroups import QuotaGroup
group = QuotaGroup(int(sys.argv[1]), int(sys.argv[1]))
group.enter()
group.limit(2_000_000, 10_000_000)
print("made", flush=True)
time.sleep(60)
"""


def test_what_a_killed_one_left_is_removed_at_the_next_start(spinner):
    own_groups = Path(f"/proc/{spinner.pid}/cgroup").read_text()
    before = set(groups())
    maker = subprocess.Popen([sys.executable, "-c", MAKE_A_GROUP, str(spinner.pid)], stdout=subprocess.PIPE, text=True)
    if not (said := maker.stdout.readline()):
        pytest.skip("this host has no CPU quota to test")
    assert said == "made\n"
    left = set(groups()) - before
    assert len(left) == 1
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    assert left <= set(groups())
    QuotaGroup(os.getpid(), os.getpid()).close()
    assert not left & set(groups())
    # The thread that was in it goes on without a quota, in the group it came from.
    assert Path(f"/proc/{spinner.pid}/cgroup").read_text() == own_groups


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cli")
    arguments = ("--trials", "2", "--causes", "stall,sleep", "--seed", "5", "--json", "--out", "runs")
    return sysmeter("selftest", *arguments, cwd=directory), directory


def test_the_command_prints_its_result_and_its_verdict_is_its_exit_code(printed):
    done, directory = printed
    result = json.loads(done.stdout)
    assert result["schema"] == "sysmeter.selftest/1"
    assert [row["cause"] for row in result["causes"]] == ["sleep", "stall"]
    assert [row["injected"] for row in result["causes"]] == [2, 2]
    assert result["controls"]["trials"] == 2
    assert result["witnessed_frac"] + result["inferred_frac"] + result["unexplained_frac"] == pytest.approx(1)
    codes = {"quick form passed": EXIT_OK, "goal missed": EXIT_CLAIM_FAILED, "not proven": EXIT_NOT_PROVEN}
    assert done.returncode == codes[result["verdict"]], done.stderr
    assert [Path(path).name for path in result["recordings"]] == ["ordinary", "injected-1"]
    assert all((directory / "runs" / Path(path).name / "meta.json").exists() for path in result["recordings"])
    assert "seed 5; takes about" in done.stderr


def test_the_judgement_can_be_made_again_from_the_recording(printed):
    from sysmeter import recording

    done, directory = printed
    result = json.loads(done.stdout)
    judged = judgement.judge_recording(recording.load(directory / "runs/injected-1"))
    again = judgement.score(["sleep", "stall"], judged)
    assert {key: again[key] for key in ("causes", "controls", "confusion")} == {
        key: result[key] for key in ("causes", "controls", "confusion")
    }


def test_an_interrupt_prints_the_trials_so_far(tmp_path):
    process = start("selftest", "--trials", "200", "--causes", "sleep", "--json", "--out", "runs", cwd=tmp_path)
    until = time.monotonic() + 60
    while not (tmp_path / "runs/ordinary").exists():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.2)
    # The run with injections comes next: its window is open some seconds later.
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == EXIT_INTERRUPTED, stderr
    result = json.loads(stdout)
    assert result["interrupted"] is True
    assert 0 < result["causes"][0]["injected"] < 200
    assert result["verdict"] not in ("goal met", "quick form passed")
    assert "Traceback" not in stderr


def test_without_root_it_is_not_proven(public_directory):
    home = public_directory / "home"
    home.mkdir(mode=0o777)
    os.chmod(home, 0o777)
    done = sysmeter("selftest", "--trials", "1", "--causes", "stall", cwd=public_directory, **as_nobody(home))
    assert done.returncode == EXIT_NOT_PROVEN
    assert "hint:" in done.stderr
