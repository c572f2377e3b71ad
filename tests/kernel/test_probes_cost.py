"""What an event costs, and the estimate of a run made of it, against the kernel's own time of each program."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sysmeter import host, session
from sysmeter.analysis.summary import summarize
from sysmeter.cli.listener import ConsoleListener
from sysmeter.cli.provisions import cache_directory, default_feed
from sysmeter.errors import KernelError
from sysmeter.kernel import DEFAULT_PROBES, ProbeSet, bpfsys
from sysmeter.kernel.catalogue import CATALOGUE
from sysmeter.kernel.progstats import timed_runs

pytestmark = pytest.mark.kernel

# A cost is the mean of some dozens of runs of a program on a host that stops programs half-way, and a run finds other
# caches than the measurement before it: the estimate is one of the right size, no more.
FACTOR = 3
MAX_RUNS = 5


def test_each_default_probe_has_a_cost_and_no_trace_of_its_measurement_stays() -> None:
    with ProbeSet.open() as probes:
        probes.self_test()
        n_threads = threading.active_count()
        costs = probes.measure_costs()
        assert threading.active_count() == n_threads
        result = probes.close()
    assert tuple(costs) == DEFAULT_PROBES
    for name, cost in costs.items():
        assert cost["n_events"] >= 10, name
        assert cost["n_programs"] == (2 if name in ("interrupts", "softirqs") else 1)
        assert cost["ns_per_event"] is not None
        assert cost["ns_per_filtered_run"] is not None
        assert cost["ns_per_event"] >= cost["n_programs"] * cost["ns_per_filtered_run"] > 0
    assert len(result.events) == 0
    assert {(status["events"], status["lost"], status["missed"]) for status in result.statuses.values()} == {(0, 0, 0)}


def test_the_cost_of_libcs_functions_is_measured_too_and_their_probe_detached() -> None:
    with ProbeSet.open(("allocations",)) as probes:
        probes.self_test()
        cost = probes.measure_costs()["allocations"]
        assert cost["n_events"] >= 20
        assert not probes._program._uprobe_fds


def test_programs_are_timed_only_inside_the_block() -> None:
    with ProbeSet.open(("syscalls",)) as probes:
        (hook,) = probes._program.hook_fds

        def runs_of_calls() -> int:
            before = probes._program.runs()[hook].n
            for _ in range(100):
                os.getppid()
            return probes._program.runs()[hook].n - before

        with timed_runs():
            assert runs_of_calls() >= 100
        # Another process of this host may have asked for the same at the same time.
        for _ in range(20):
            if runs_of_calls() == 0:
                return
            time.sleep(0.1)
    pytest.fail("programs are timed although this process has let go of it")


@pytest.mark.parametrize("part", ["whole", "a moment"])
def test_runs_are_told_only_where_all_of_them_were_timed(part: str) -> None:
    n_calls = 200
    with ProbeSet.open(("syscalls",)) as probes, ExitStack() as timed:
        if part == "whole":
            timed.enter_context(timed_runs())
        probes.watch({threading.get_native_id(): "this one"})
        for number in range(n_calls):
            if part == "a moment" and number == n_calls // 2:
                with timed_runs():
                    os.getppid()
            os.getppid()
        probes.unwatch_all()
        result = probes.close()
    if part == "a moment":
        assert result.runs == {}
    else:
        assert result.runs["syscalls"]["raw_syscalls:sys_enter"].n >= n_calls
        assert result.runs["syscalls"]["raw_syscalls:sys_enter"].time_ns > 0
    assert result.watched_ns > 0


def test_the_statistics_end_with_a_failure_inside() -> None:
    n_descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError), timed_runs():
        raise ZeroDivisionError
    assert len(os.listdir("/proc/self/fd")) == n_descriptors


def test_costs_must_be_measured_before_the_first_watched_thread() -> None:
    with ProbeSet.open(("syscalls",)) as probes:
        probes.watch({threading.get_native_id(): "this one"})
        with pytest.raises(KernelError, match="before"):
            probes.measure_costs()


def refuse() -> int:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def settings(**changes: object) -> session.RunSettings:
    feed = default_feed(ConsoleListener())
    return session.RunSettings(
        str(feed), str(cache_directory()), host.choose_cpus(None), seconds=2.0, warmup_seconds=0.5, **changes
    )


def test_a_kernel_that_does_not_time_programs_costs_the_estimate_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bpfsys, "enable_run_time_statistics", refuse)
    found = summarize(session.run(settings(), tmp_path / "r"))["observation"]
    assert found["threads"] is None
    assert "Linux 5.8" in found["reason"]
    assert found["observer_cpu_ns"] > 0


def test_the_estimate_is_of_the_size_that_the_kernel_times(tmp_path: Path) -> None:
    """Rule: a run in which the hypervisor stopped a program, or the cost's measurement, is made again."""
    seen = []
    for number in range(MAX_RUNS):
        with timed_runs():
            recording = session.run(settings(), tmp_path / str(number))
        result = summarize(recording)
        found, costs = result["observation"], recording.meta["observation"]["costs"]
        timed: dict[str, int] = {}
        for program in found["programs"].values():
            # Runs of a program that emitted nothing, for other tasks, are not in the estimate.
            timed[program["probe"]] = timed.get(program["probe"], 0) + program["time_ns"]
        events = {name: status["events"] for name, status in recording.meta["probes"].items()}
        for name, time_ns in timed.items():
            n_runs = sum(program["n"] for program in found["programs"].values() if program["probe"] == name)
            n_filtered = n_runs - CATALOGUE[name].n_programs * events[name]
            assert n_filtered >= 0, f"{name}: an event without a run of its program"
            timed[name] = int(time_ns - n_filtered * (costs[name]["ns_per_filtered_run"] or 0))
        whole = sum(timed.values())
        estimate = sum(events[name] * (costs[name]["ns_per_event"] or 0) for name in timed)
        in_window = sum(row["time_ns"] for row in found["threads"].values())
        seen.append((whole, estimate, in_window))
        assert 0 < in_window <= estimate
        if whole / FACTOR < estimate < whole * FACTOR:
            return
    pytest.fail(f"the estimate was of another size in each of {MAX_RUNS} runs: {seen}")
