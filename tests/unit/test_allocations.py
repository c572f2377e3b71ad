"""Allocations in an audit: libc's calls by the measured threads, and what numba's counter has to do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis.summary import summarize
from sysmeter.recording import Recording
from sysmeter.report.text import render_run
from tests.support.runs import COMM, T_START, TIDS, Run, build, event

MS = 1_000_000
WARMUP = T_START + MS
WINDOW = T_START + 6 * MS
MALLOC, CALLOC, REALLOC, FREE = (
    records.ALLOCATION_MALLOC,
    records.ALLOCATION_CALLOC,
    records.ALLOCATION_REALLOC,
    records.ALLOCATION_FREE,
)
MMAP, GETPPID = 9, 110


def call(t_ns: int, function: int, tid: int = TIDS["strategy"]) -> np.void:
    return event(t_ns=t_ns, kind=records.EVENT_ALLOCATION, cpu=1, tid=tid, comm=COMM, value=function, value2=40)


def audit(
    *calls: np.void, numba: int | None = 0, status: str = "ok", lost: int = 0, missed: int | None = 0
) -> Recording:
    recording = build(Run(extra_events=list(calls)))
    is_ok = status == "ok"
    recording.meta["settings"]["audit"] = True
    recording.meta["probes"]["allocations"] = {
        "status": status,
        "reason": None if is_ok else "no library exports malloc",
        "events": len(calls) if is_ok else None,
        "lost": lost if is_ok else None,
        "missed": missed if is_ok else None,
        "broken_links": None,
    }
    recording.meta["process"].update(
        allocations=numba,
        allocation_sources=["numba", "libc"] if is_ok else ["numba"],
        loop_ns=[T_START - MS, recording.meta["edges"]["strategy"]["close"]["t_after_ns"]],
    )
    return recording


def of_process(recording: Recording) -> dict[str, Any]:
    found: dict[str, Any] = summarize(recording)["counters"]["process"]["allocations"]
    return found


def test_none_by_both_sources_is_a_claim() -> None:
    found = of_process(audit())
    assert (found["value"], found["status"], found["agrees"], found["loop_calls"]) == (0, "measured", True, 0)
    assert found["witness"] == {"source": "numba, whole loop", "value": 0}
    assert found["sources"] == ["numba", "libc"]


def test_calls_of_the_loop_equal_numbas_counter_and_those_of_the_window_are_the_value() -> None:
    calls = [call(WARMUP + k, MALLOC) for k in range(3)] + [call(WINDOW + k, MALLOC) for k in range(4)]
    calls += [call(WINDOW + 10, MALLOC, TIDS["feed"]), *(call(WINDOW + 20 + k, FREE) for k in range(6))]
    recording = audit(*calls, numba=8)
    found = of_process(recording)
    assert (found["value"], found["loop_calls"], found["status"], found["agrees"]) == (5, 8, "measured", True)
    text = render_run(summarize(recording))
    assert "over the whole loop libc's calls are 8 as well" in " ".join(text.split())
    assert "malloc 4x, free 6x" in text
    assert "process (allocations: in the threads' windows)" in text


@pytest.mark.parametrize("function", [MALLOC, CALLOC, REALLOC])
def test_a_call_that_numba_does_not_know_is_not_proven_and_said_to_be_outside_numba(function: int) -> None:
    found = of_process(audit(call(WINDOW, function)))
    assert (found["value"], found["status"], found["agrees"]) == (1, "not_proven", False)
    assert "outside numba" in found["reason"]


def test_freeing_is_not_allocating() -> None:
    found = of_process(audit(call(WINDOW, FREE)))
    assert (found["value"], found["status"], found["agrees"]) == (0, "measured", True)


def test_numba_above_libc_is_not_proven() -> None:
    found = of_process(audit(call(WINDOW, MALLOC), numba=2))
    assert (found["value"], found["status"], found["agrees"]) == (1, "not_proven", False)
    assert "another thread" in found["reason"]


def test_calls_before_and_after_the_loop_are_the_interpreters() -> None:
    t_end_ns = audit().meta["process"]["loop_ns"][1]
    found = of_process(audit(call(T_START - 2 * MS, MALLOC), call(t_end_ns + 1, MALLOC)))
    assert (found["value"], found["loop_calls"], found["agrees"]) == (0, 0, True)


def test_calls_of_other_threads_are_not_counted() -> None:
    assert of_process(audit(call(WINDOW, MALLOC, tid=77)))["agrees"] is True


@pytest.mark.parametrize(
    ("loss", "words"),
    [({"lost": 2}, "lost 2"), ({"missed": 5}, "missed 5"), ({"missed": None}, "does not count")],
)
def test_losses_leave_even_equal_counts_unproven(loss: dict[str, Any], words: str) -> None:
    """A lost call that numba did not make would show in neither count."""
    recording = audit(call(WINDOW, MALLOC), numba=1, **loss)
    found = of_process(recording)
    assert (found["status"], found["agrees"]) == ("not_proven", True)
    assert words in found["reason"]
    assert summarize(recording)["counters"]["strategy"]["allocations"]["status"] == "not_proven"


def test_a_workload_without_numba_has_libcs_calls_alone() -> None:
    found = of_process(audit(call(WINDOW, MALLOC), numba=None))
    assert (found["value"], found["status"], found["agrees"], found["witness"]) == (1, "measured", None, None)
    assert found["sources"] == ["libc"]


def test_a_workload_that_names_no_loop_cannot_be_compared() -> None:
    recording = audit(call(WINDOW, MALLOC), numba=9)
    recording.meta["process"]["loop_ns"] = None
    found = of_process(recording)
    assert (found["value"], found["status"], found["agrees"]) == (1, "measured", None)


def test_each_thread_has_its_calls_by_function_and_its_system_calls_that_move_memory() -> None:
    syscalls = [
        event(t_ns=WINDOW + 50 + k, kind=records.EVENT_SYSCALL, cpu=1, tid=TIDS["strategy"], comm=COMM, value=number)
        for k, number in enumerate((MMAP, MMAP, GETPPID))
    ]
    calls = [call(WINDOW + k, function) for k, function in enumerate((MALLOC, CALLOC, REALLOC, FREE, FREE))]
    counters = summarize(audit(*calls, *syscalls, call(WARMUP, MALLOC)))["counters"]
    found = counters["strategy"]["allocations"]
    assert (found["value"], found["status"], found["source"]) == (3, "measured", "libc calls")
    assert found["calls"] == {"malloc": 1, "calloc": 1, "realloc": 1, "free": 2}
    assert found["syscalls"] == {"mmap": 2, "mprotect": 0, "munmap": 0, "brk": 0, "mremap": 0, "madvise": 0}
    assert counters["feed"]["allocations"]["value"] == 0


def test_on_a_machine_whose_numbers_are_unknown_the_system_calls_stay_unknown() -> None:
    recording = audit()
    recording.meta["host"]["machine"] = "sparc64"
    assert summarize(recording)["counters"]["feed"]["allocations"]["syscalls"] is None


def test_a_plain_run_has_numba_alone_and_says_so() -> None:
    result = summarize(build(Run()))
    assert "allocations" not in result["counters"]["feed"]
    assert result["counters"]["process"]["allocations"]["sources"] == ["numba"]
    text = " ".join(render_run(result).split())
    assert "process (allocations: in the whole loop, warm-up included)" in text
    assert "counted by numba's own counter only; run --audit counts libc's calls" in text


def test_an_audit_whose_probe_is_unavailable_has_numba_alone_and_the_reason() -> None:
    result = summarize(audit(status="unavailable"))
    found = result["counters"]["process"]["allocations"]
    assert (found["source"], found["sources"]) == ("numba", ["numba"])
    assert found["libc_reason"] == "no library exports malloc"
    thread = result["counters"]["feed"]["allocations"]
    assert (thread["status"], thread["value"]) == ("not_measured", None)
    assert "no library exports malloc" in thread["reason"]
    assert "libc's calls were not, no library exports malloc" in " ".join(render_run(result).split())


def test_on_another_clock_the_calls_are_not_used() -> None:
    recording = audit(call(WINDOW, MALLOC))
    recording.meta["clock"].update(checked_end=False, reason="a time namespace")
    result = summarize(recording)
    assert result["counters"]["process"]["allocations"]["sources"] == ["numba"]
    assert result["counters"]["strategy"]["allocations"]["status"] == "not_measured"


def test_the_latencies_of_an_audit_with_calls_come_with_a_warning() -> None:
    assert any("--audit" in note for note in summarize(audit(call(WINDOW, MALLOC), numba=1))["notes"])
    assert not any("--audit" in note for note in summarize(audit())["notes"])
