"""`sysmeter run` and `report` end to end, on real kernel events, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sysmeter import host, recording
from sysmeter.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from sysmeter.kernel.bpfsys import loaded_program_ids
from tests.support.commands import as_nobody, run_json, start, sysmeter

pytestmark = pytest.mark.kernel

SHORT = ("--seconds", "2", "--warmup", "0.5")


def children_of(tgid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{tgid}/task/{tgid}/children").read_text().split()]


def is_running(tgid: int) -> bool:
    try:
        state = Path(f"/proc/{tgid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until(condition, what: str) -> None:
    """Poll for something that must come; a minute is no measurement, only an end to waiting."""
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail(f"waited in vain: {what}")


def programs_of(tgid: int) -> set[int]:
    """Ids of the BPF programs that a process holds."""
    found = set()
    for info in Path(f"/proc/{tgid}/fdinfo").iterdir():
        found |= {int(line.split()[1]) for line in info.read_text().splitlines() if line.startswith("prog_id")}
    return found


def assert_unloaded(programs: set[int]) -> None:
    """The kernel frees programs a moment after their last descriptor."""
    assert programs
    wait_until(lambda: not programs & set(loaded_program_ids()), "the probes' detachment")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """(directory, result) of one run. One whose witnesses could not decide is taken again, twice at most.

    An event in the instants of an edge together with one the kernel skipped leaves a counter "not proven":
    the tool says so, and no other cause is accepted here.
    """
    for _ in range(3):
        directory = tmp_path_factory.mktemp("run")
        run = run_json(*SHORT, "--out", "recording", cwd=directory)
        counters = [counter for part in run["counters"].values() for counter in part.values()]
        undecided = [c for c in counters if c["status"] == "not_proven" and "too few to tell" in c["reason"]]
        if not undecided:
            break
    return directory, run


def test_every_probe_worked_and_lost_nothing(result):
    for name, probe in result[1]["probes"].items():
        assert (probe["status"], probe["reason"], probe["lost"]) == ("ok", None, 0), name


def test_messages_are_all_released_and_timed(result):
    directory, run = result
    assert run["schema"] == "sysmeter.run/1"
    assert run["messages_released"] == 200_000
    assert run["messages"] == run["latency"]["total"]["count"] == 150_000
    batches = recording.load(directory / "recording")["batches"]
    assert run["batches"] == int((batches["first_message"] >= 50_000).sum())
    assert batches["n_messages"].sum() == 200_000
    assert run["live"] is True
    assert run["interrupted"] is False


def test_kernel_and_thread_agree_on_every_zero_counter(result):
    for thread in ("feed", "strategy"):
        for name, counter in result[1]["counters"][thread].items():
            # A length of time no longer than its tolerance is the one thing a witness may not be able to judge.
            cannot_tell = name == "runq_delay_ns" and counter["value"] <= counter["tolerance_ns"]
            assert counter["agrees"] is True or (cannot_tell and counter["agrees"] is None), (thread, name, counter)
            assert counter["status"] == "measured", (thread, name, counter)
    for thread in ("feed", "strategy"):
        counters = result[1]["counters"][thread]
        for name in ("voluntary_switches", "minor_faults", "major_faults", "syscalls", "migrations"):
            assert counters[name]["value"] == 0, (thread, name, counters[name])
    for name, counter in result[1]["counters"]["process"].items():
        assert (counter["value"], counter["agrees"]) == (0, True), (name, counter)


def test_audit_of_the_default_combination_finds_no_allocation_by_either_source(tmp_path):
    uprobes = Path("/sys/kernel/tracing/uprobe_events").read_text()
    run = run_json(*SHORT, "--audit", "--out", "r", cwd=tmp_path)
    probe = run["probes"]["allocations"]
    assert (probe["status"], probe["lost"], probe["missed"]) == ("ok", 0, 0)
    found = run["counters"]["process"]["allocations"]
    assert (found["value"], found["loop_calls"], found["witness"]["value"]) == (0, 0, 0)
    assert (found["status"], found["agrees"], found["sources"]) == ("measured", True, ["numba", "libc"])
    for thread in ("feed", "strategy"):
        counters = run["counters"][thread]
        assert counters["allocations"]["calls"] == {"malloc": 0, "calloc": 0, "realloc": 0, "free": 0}
        assert set(counters["allocations"]["syscalls"].values()) == {0}
        for name in ("voluntary_switches", "minor_faults", "major_faults", "syscalls"):
            assert (counters[name]["value"], counters[name]["agrees"]) == (0, True), (thread, name, counters[name])
    assert Path("/sys/kernel/tracing/uprobe_events").read_text() == uprobes


@pytest.mark.parametrize(
    ("swap", "allocates", "frees"),
    [(("--book", "tree"), "strategy", "strategy"), (("--queue", "channel"), "feed", "strategy")],
)
@pytest.mark.parametrize("mode", ["paced", "flat"])
def test_audit_of_an_allocating_swap_counts_in_the_loop_what_numba_counts(tmp_path, swap, allocates, frees, mode):
    run = run_json(*SHORT, *swap, "--mode", mode, "--audit", "--out", "r", cwd=tmp_path)
    probe = run["probes"]["allocations"]
    assert (probe["status"], probe["lost"], probe["missed"]) == ("ok", 0, 0)
    found = run["counters"]["process"]["allocations"]
    assert (found["status"], found["agrees"]) == ("measured", True), found
    assert 0 < found["value"] < found["loop_calls"] == found["witness"]["value"]
    assert run["counters"][allocates]["allocations"]["calls"]["malloc"] == found["value"]
    assert run["counters"][frees]["allocations"]["calls"]["free"] > 0


def test_a_plain_run_says_who_counted_allocations(result):
    found = result[1]["counters"]["process"]["allocations"]
    assert found["sources"] == ["numba"]
    text = sysmeter("report", result[0] / "recording", cwd=result[0]).stdout
    assert "--audit counts libc's calls" in " ".join(text.split())


def test_episodes_are_conserved(result):
    tail = result[1]["tail"]
    assert tail["samples"] > 0
    for episode in tail["episodes"]:
        assert sum(part["time_ns"] for part in episode["parts"]) == episode["duration_ns"]
        assert episode["peak_ns"] <= episode["duration_ns"]


def test_report_needs_no_root_and_says_the_same(public_directory):
    saved = public_directory / "recording"
    run = run_json(*SHORT, "--out", saved, cwd=public_directory)
    done = sysmeter("report", "--json", saved, cwd=Path("/"), **as_nobody(public_directory))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == run
    text = sysmeter("report", saved, cwd=Path("/"), **as_nobody(public_directory))
    assert text.returncode == 0
    assert all(len(line) <= 80 for line in text.stdout.splitlines())


def test_competitor_on_the_strategy_cpu_is_named(tmp_path):
    _feed_cpu, cpu = host.choose_cpus(None)
    program = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    competitor = subprocess.Popen([sys.executable, "-c", program])
    try:
        run = run_json(*SHORT, "--out", "recording", cwd=tmp_path)
    finally:
        competitor.kill()
        competitor.wait()
    counter = run["counters"]["strategy"]["involuntary_switches"]
    assert counter["agrees"] is True
    assert counter["value"] > 0
    tasks = run["threads"]["strategy"]["off_cpu"]["kinds"]["preempted"]["ran_instead"]["tasks"]
    assert any(f"/{competitor.pid}" in task["task"] for task in tasks)
    causes = {part["detail"] for episode in run["tail"]["episodes"] for part in episode["parts"]}
    assert any(f"/{competitor.pid}" in detail for detail in causes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_what_was_measured_and_leaves_nothing(tmp_path, number):
    process = start("run", "--json", "--loop", "--seconds", "600", "--warmup", "0.5", "--out", "r", cwd=tmp_path)
    _wait_for_window(process)
    time.sleep(1.5)
    programs = programs_of(process.pid)
    children = children_of(process.pid)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert process.returncode == EXIT_INTERRUPTED, stderr
    assert "Traceback" not in stderr
    run = json.loads(stdout)
    assert run["interrupted"] is True
    assert run["messages"] == run["latency"]["total"]["count"] > 0
    assert (tmp_path / "r" / "meta.json").exists()
    assert children
    assert not any(is_running(child) for child in children)
    assert_unloaded(programs)


def test_second_run_removes_what_a_killed_one_left(tmp_path):
    process = start("run", "--loop", "--seconds", "600", "--out", "r", cwd=tmp_path)
    _wait_for_window(process)
    programs, children = programs_of(process.pid), children_of(process.pid)
    assert children
    process.kill()
    process.communicate()
    wait_until(lambda: not any(is_running(child) for child in children), "the workload's death")
    assert_unloaded(programs)
    leftovers = list(tmp_path.glob(".sysmeter-*"))
    assert len(leftovers) == 1
    run_json(*SHORT, "--out", "r", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_killed_workload_is_an_error_and_leaves_nothing(tmp_path):
    process = start("run", "--loop", "--seconds", "600", "--out", "r", cwd=tmp_path)
    _wait_for_window(process)
    programs = programs_of(process.pid)
    for child in children_of(process.pid):
        os.kill(child, signal.SIGKILL)
    _stdout, stderr = process.communicate()
    assert process.returncode == EXIT_ERROR
    assert "SIGKILL" in stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
    assert_unloaded(programs)


def test_without_probes_the_witnesses_speak_alone(tmp_path):
    run = run_json(*SHORT, "--no-probes", "--out", "r", cwd=tmp_path)
    for probe in run["probes"].values():
        assert probe["status"] == "off"
        assert probe["events"] is None
    for thread in ("feed", "strategy"):
        switches = run["counters"][thread]["voluntary_switches"]
        assert (switches["value"], switches["status"], switches["agrees"]) == (0, "measured", None)
    text = sysmeter("report", "r", cwd=tmp_path)
    assert "not measured" in text.stdout


def test_without_root_the_remedy_is_named_and_no_probes_works(public_directory):
    tmp_path, options = public_directory, as_nobody(public_directory)
    refused = sysmeter("run", *SHORT, cwd=tmp_path, **options)
    assert refused.returncode == EXIT_ERROR
    assert "root" in refused.stderr
    assert "--no-probes" in refused.stderr
    done = sysmeter("run", "--json", *SHORT, "--no-probes", "--out", "r", cwd=tmp_path, **options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counters"]["strategy"]["voluntary_switches"]["value"] == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--cpus", "0,0"), EXIT_USAGE, "two"),
        (("--cpus", "0,9999"), EXIT_USAGE, "9999"),
        (("--cpus", "a,b"), EXIT_USAGE, "a,b"),
        (("--rate", "0"), EXIT_USAGE, "--rate"),
        (("--rate", "-5"), EXIT_USAGE, "--rate"),
        (("--seconds", "900"), EXIT_USAGE, "--loop"),
        (("--seconds", "0"), EXIT_USAGE, "--seconds"),
        (("--audit", "--no-probes"), EXIT_USAGE, "--audit"),
        (("--stop-above", "fast"), EXIT_USAGE, "50us"),
        (("--out", "/proc/none/x"), EXIT_ERROR, "--out"),
        (("--out", "."), EXIT_ERROR, "exists"),
        (("--feed", "missing.feed"), EXIT_ERROR, "missing.feed"),
    ],
)
def test_wrong_words(tmp_path, arguments, exit_code, words):
    done = sysmeter("run", *arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_one_allowed_cpu_is_a_clear_error(tmp_path):
    cpu = min(os.sched_getaffinity(0))
    done = sysmeter("run", cwd=tmp_path, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    assert done.returncode == EXIT_USAGE
    assert "one CPU" in done.stderr or "only" in done.stderr


def test_a_disk_too_small_is_said_before_the_run(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        done = sysmeter("run", *SHORT, "--out", small / "r", cwd=tmp_path)
        assert done.returncode == EXIT_ERROR
        assert "MiB free" in done.stderr
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_two_runs_decide_the_same_wherever_both_decided(tmp_path):
    for name, mode in (("a", "paced"), ("b", "flat")):
        words = (*SHORT, "--no-probes", "--mode", mode, "--decisions", f"{name}.csv", "--out", name)
        run = run_json(*words, cwd=tmp_path)
        assert run["decisions"]["count"] > 0
        assert (tmp_path / name / "decisions.csv").read_bytes() == (tmp_path / f"{name}.csv").read_bytes()
    done = sysmeter("decisions", "--json", "a.csv", "b", cwd=tmp_path)
    assert done.returncode == EXIT_OK, done.stdout
    found = json.loads(done.stdout)
    assert (found["verdict"], found["different"]) == ("equal", 0)
    assert found["equal"] == found["common"] > 0
    refused = sysmeter("run", *SHORT, "--decisions", "a.csv", cwd=tmp_path)
    assert refused.returncode == EXIT_ERROR
    assert "a.csv exists already" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.csv", "b", "b.csv"]


def _wait_for_window(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "measuring" in line:
            return
    pytest.fail("the run ended before its window")
