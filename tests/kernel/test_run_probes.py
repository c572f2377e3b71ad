"""What a run keeps of its probes: which were chosen, what they cost, and the names that its events need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import records, session
from sysmeter.recording import Recording, load
from tests.support.commands import run_json, sysmeter

pytestmark = pytest.mark.kernel

SHORT = ("--seconds", "2", "--warmup", "0.5")


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Recording]:
    """A run with the default probes whose threads sleep and wake each other: its result and its Recording."""
    place = tmp_path_factory.mktemp("run")
    return run_json(*SHORT, "--queue", "mutex", "--out", "r", cwd=place), load(place / "r")


def of_kind(recording: Recording, kind: int) -> np.ndarray:
    events = np.asarray(recording["kernel_events"])
    return events[events["kind"] == kind]


def test_the_default_run_has_all_probes_that_are_not_on_request(default_run) -> None:
    result, recording = default_run
    assert tuple(result["probes"]) == session.PROBE_NAMES
    assert {probe["status"] for probe in result["probes"].values()} == {"ok"}
    assert recording.meta["settings"]["chosen_probes"] == list(session.PROBE_NAMES)
    for kind in (records.EVENT_INTERRUPT, records.EVENT_SOFTIRQ):
        events = of_kind(recording, kind)
        assert len(events) > 0
        assert np.all(events["value"] > 0)


def test_the_names_of_calls_that_a_thread_slept_in_are_kept(default_run) -> None:
    recording = default_run[1]
    tids = [recording.meta["threads"][name]["tid"] for name in records.THREADS]
    switches = of_kind(recording, records.EVENT_SWITCH)
    slept = switches[np.isin(switches["tid"], tids) & (switches["value"] == 1)]
    assert len(slept) > 10
    names = recording.meta["syscall_names"]
    assert "futex" in {names[str(int(detail) - 1)] for detail in slept["detail"]}
    assert {str(number) for number in of_kind(recording, records.EVENT_SYSCALL)["value"].tolist()} <= set(names)


def test_a_syscalls_number_is_named_that_only_switches_tell_of() -> None:
    events = np.zeros(2, records.KERNEL_EVENT)
    events["kind"] = records.EVENT_SWITCH
    events["detail"] = [0, 1 + 39]
    assert list(session._Session._syscall_names(events)) == ["39"]
    assert session._Session._syscall_names(events[:1]) == {}


def test_device_interrupts_that_came_are_named(default_run) -> None:
    recording = default_run[1]
    interrupts = of_kind(recording, records.EVENT_INTERRUPT)
    numbers = set(interrupts["value2"][interrupts["detail"] == records.INTERRUPT_DEVICE].tolist())
    assert set(recording.meta["interrupt_names"]) == {str(number) for number in numbers}


def test_a_device_interrupt_is_named_as_proc_interrupts_prints_it() -> None:
    lines = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()]
    named = [words for words in lines if words[0].rstrip(":").isdecimal() and not words[-1].isdecimal()]
    events = np.zeros(len(named) + 1, records.KERNEL_EVENT)
    events["kind"], events["detail"] = records.EVENT_INTERRUPT, records.INTERRUPT_DEVICE
    events["value2"][:-1] = [int(words[0].rstrip(":")) for words in named]
    events["value2"][-1], events["detail"][-1] = 236, records.INTERRUPT_LOCAL_TIMER
    found = session._Session._interrupt_names(events)
    assert found == {words[0].rstrip(":"): words[-1] for words in named}


def test_the_threads_of_sysmeter_and_of_the_workload_are_known(default_run) -> None:
    meta = default_run[1].meta
    assert meta["observer"]["tgid"] in meta["observer"]["tids"]
    assert meta["observer"]["tgid"] != meta["threads"]["tgid"]
    threads = meta["workload_tids"]
    assert str(meta["threads"]["tgid"]) in threads
    for name in records.THREADS:
        assert threads[str(meta["threads"][name]["tid"])].startswith("sysmeter-")
    assert not set(threads) & {str(tid) for tid in meta["observer"]["tids"]}


def test_what_the_observation_cost_is_told(default_run) -> None:
    result, recording = default_run
    found = result["observation"]
    assert set(recording.meta["observation"]["costs"]) == set(session.PROBE_NAMES)
    assert found["uncosted"] == []
    assert found["programs"] is None, "nobody had the programs timed"
    assert found["observer_cpu_ns"] > 0
    for name in records.THREADS:
        row = found["threads"][name]
        assert row["n_events"] > 0
        assert 0 < row["share_frac"] < 0.5
        assert sum(part["n_events"] for part in row["by_probe"].values()) == row["n_events"]
    text = sysmeter("report", recording.path, cwd=recording.path.parent).stdout
    assert "Observation about feed " in text


def test_a_run_with_chosen_probes_measures_these_and_no_others(tmp_path: Path) -> None:
    result = run_json(*SHORT, "--probes", "syscalls,page_fault", "--out", "r", cwd=tmp_path)
    statuses = {name: probe["status"] for name, probe in result["probes"].items()}
    assert {name for name, status in statuses.items() if status == "ok"} == {"page_fault", "syscalls"}
    assert set(statuses.values()) == {"ok", "off"}
    assert result["probes"]["interrupts"]["reason"] == "not chosen with --probes"
    assert set(result["observation"]["ns_per_event"]) == {"page_fault", "syscalls"}
    kinds = set(np.asarray(load(tmp_path / "r")["kernel_events"])["kind"].tolist())
    assert kinds <= {records.EVENT_SYSCALL, records.EVENT_PAGE_FAULT}
    for thread in records.THREADS:
        switches = result["counters"][thread]["involuntary_switches"]
        assert (switches["status"], switches["agrees"]) == ("measured", None)
        assert switches["witness"] == {"source": "getrusage", "value": switches["value"]}, "it stands alone"
        assert result["counters"][thread]["syscalls"]["agrees"] is True
        assert result["counters"][thread]["runq_delay_ns"]["source"] == "schedstat"
    text = sysmeter("report", "r", cwd=tmp_path).stdout
    assert "not chosen with --probes" in text


def test_a_probe_that_needs_another_brings_it(tmp_path: Path) -> None:
    done = sysmeter("run", "--json", *SHORT, "--probes", "runq_delay", "--out", "r", cwd=tmp_path)
    result = json.loads(done.stdout)
    ok = {name for name, probe in result["probes"].items() if probe["status"] == "ok"}
    assert ok == {"context_switch", "runq_delay"}
    assert result["threads"]["feed"]["off_cpu"] is not None


def test_the_audit_probe_may_be_chosen_by_name(tmp_path: Path) -> None:
    result = run_json(*SHORT, "--probes", "allocations", "--book", "tree", "--out", "r", cwd=tmp_path)
    assert result["probes"]["allocations"]["status"] == "ok"
    assert result["settings"]["audit"] is True
    assert result["counters"]["strategy"]["allocations"]["value"] > 0
