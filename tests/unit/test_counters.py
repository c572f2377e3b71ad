"""Zero counters: what may be claimed, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sysmeter.analysis.counters import RUN_QUEUE_TOLERANCE_PART, RUN_QUEUE_TOLERANCE_PER_WAIT_NS
from sysmeter.analysis.summary import summarize
from sysmeter.recording import Recording
from tests.support.loop import THROTTLED
from tests.support.runs import COMM, T_START, TIDS, Away, Run, build, event, switch

MS = 1_000_000
WINDOW = T_START + 5 * MS
TAKER = [(9, b"taker", 98_000)]


def run_with(*away: Away, **options: Any) -> Recording:
    return build(Run(away=list(away), **options))


def preempted(at_ms: int = 3) -> Away:
    return Away("strategy", WINDOW + at_ms * MS, 100_000, list(TAKER))


def close_edge(recording: Recording, thread: str = "strategy") -> dict[str, Any]:
    edge: dict[str, Any] = recording.meta["edges"][thread]["close"]
    return edge


def counters(recording: Recording, thread: str = "strategy") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = summarize(recording)["counters"][thread]
    return found


def test_every_counter_has_the_same_keys_and_agrees_on_a_quiet_run() -> None:
    result = summarize(run_with())
    for thread in ("feed", "strategy", "process"):
        for found in result["counters"][thread].values():
            assert {"value", "status", "witness", "agrees", "reason"} <= set(found)
            assert (found["value"], found["status"], found["agrees"], found["reason"]) == (
                0,
                "measured",
                True,
                None,
            )
            assert set(found["witness"]) == {"source", "value"}


def test_switches_are_counted_by_kind_and_confirmed() -> None:
    asleep = Away(
        "strategy",
        WINDOW + 9 * MS,
        100_000,
        [(0, b"swapper/1", 98_000)],
        prev_state=1,
        woken_after_ns=90_000,
    )
    found = counters(run_with(preempted(), preempted(6), asleep))
    assert found["involuntary_switches"]["value"] == 2
    assert found["voluntary_switches"]["value"] == 1
    assert found["involuntary_switches"]["witness"] == {"source": "getrusage", "value": 2}
    assert found["voluntary_switches"]["agrees"] is True


def test_a_switch_outside_the_window_is_in_neither() -> None:
    early = Away("strategy", T_START + MS, 100_000, list(TAKER))
    assert counters(run_with(early))["involuntary_switches"]["value"] == 0


@pytest.mark.parametrize("in_witness", [0, 1])
def test_a_switch_within_an_edge_may_be_in_the_witness_or_not(in_witness: int) -> None:
    recording = run_with()
    edge = close_edge(recording)
    t_ns = (edge["t_before_ns"] + edge["t_after_ns"]) // 2
    recording.arrays["kernel_events"] = np.array([switch(t_ns, 1, (TIDS["strategy"], COMM), (9, b"taker"), 0x100)])
    edge["involuntary_switches"] += in_witness
    found = counters(recording)["involuntary_switches"]
    assert (found["value"], found["status"], found["agrees"]) == (0, "measured", True)


def test_sources_that_differ_prove_nothing() -> None:
    recording = run_with()
    close_edge(recording)["involuntary_switches"] += 3
    found = counters(recording)["involuntary_switches"]
    assert (found["status"], found["agrees"], found["value"]) == ("not_proven", False, 0)
    assert "BPF counts 0 and getrusage 3" in found["reason"]


def test_a_kind_mixed_up_is_said_to_be_that() -> None:
    recording = run_with(preempted())
    edge = close_edge(recording)
    edge["involuntary_switches"] -= 1
    edge["voluntary_switches"] += 1
    found = counters(recording)
    assert found["voluntary_switches"]["status"] == "not_proven"
    assert "the sum of both kinds agrees" in found["voluntary_switches"]["reason"]


@pytest.mark.parametrize("loss", [{"lost": 2}, {"missed": 5}])
def test_losses_do_not_undo_a_count_that_the_witness_confirms_exactly(loss: dict[str, int]) -> None:
    found = counters(run_with(preempted(), **loss))
    assert found["involuntary_switches"]["status"] == "measured"
    assert found["involuntary_switches"]["agrees"] is True


@pytest.mark.parametrize("loss", [{"lost": 2}, {"missed": 5}])
def test_losses_without_a_witness_prove_nothing(loss: dict[str, int]) -> None:
    recording = run_with(preempted(), **loss)
    edge = close_edge(recording)
    edge["syscalls"] = edge["runq_delay_ns"] = None
    found = counters(recording)
    for name in ("syscalls", "runq_delay_ns"):
        assert found[name]["status"] == "not_proven"
        assert found[name]["agrees"] is None
        word, number = next(iter(loss.items()))
        assert f"{word} {number}" in found[name]["reason"]


def test_losses_within_the_tolerance_of_a_length_do_not_undo_it_but_beyond_it_they_are_named() -> None:
    recording = run_with(preempted(), lost=2)
    edge = close_edge(recording)
    edge["runq_delay_ns"] += 1_000
    assert counters(recording)["runq_delay_ns"]["status"] == "measured"
    edge["runq_delay_ns"] += 50_000
    assert "lost 2" in counters(recording)["runq_delay_ns"]["reason"]


def test_a_sleep_whose_wakeup_was_missed_leaves_the_delay_unproven_without_a_witness() -> None:
    asleep = Away("strategy", WINDOW + 9 * MS, 102_000, [(0, b"swapper/1", 100_000)], prev_state=1)
    recording = run_with(asleep)
    close_edge(recording)["runq_delay_ns"] = None
    found = counters(recording)["runq_delay_ns"]
    assert found["status"] == "not_proven"
    assert "1 wake-ups were not seen" in found["reason"]


def test_losses_and_an_event_in_an_edge_prove_nothing() -> None:
    recording = run_with(lost=1)
    edge = close_edge(recording)
    recording.arrays["kernel_events"] = np.array(
        [switch(edge["t_before_ns"] + 5, 1, (TIDS["strategy"], COMM), (9, b"taker"), 0x100)]
    )
    assert counters(recording)["involuntary_switches"]["status"] == "not_proven"


def test_without_probes_the_witnesses_stand_alone() -> None:
    result = summarize(run_with(preempted(), probes=False))
    found = result["counters"]["strategy"]["involuntary_switches"]
    assert (found["value"], found["status"], found["agrees"], found["source"]) == (
        1,
        "measured",
        None,
        "getrusage",
    )
    assert result["threads"]["strategy"]["off_cpu"] is None
    assert result["threads"]["strategy"]["syscalls"] is None


def test_with_neither_source_nothing_is_measured() -> None:
    recording = run_with(probes=False)
    close_edge(recording)["syscalls"] = None
    found = counters(recording)["syscalls"]
    assert (found["value"], found["status"]) == (None, "not_measured")
    assert "probes were off" in found["reason"]


def test_an_unavailable_probe_gives_its_reason_where_no_witness_helps() -> None:
    recording = run_with()
    recording.meta["probes"]["syscalls"] = {"status": "unavailable", "reason": "no such tracepoint"}
    close_edge(recording)["syscalls"] = None
    assert "no such tracepoint" in counters(recording)["syscalls"]["reason"]


def test_a_window_that_never_opened_has_no_zeros() -> None:
    recording = run_with()
    recording.meta["edges"] = {
        "feed": {"open": None, "close": None},
        "strategy": {"open": None, "close": None},
    }
    recording.meta["run"].update(t_window_ns=None, n_window_messages=0, n_window_batches=0)
    result = summarize(recording)
    for thread in ("feed", "strategy", "process"):
        for found in result["counters"][thread].values():
            assert (found["value"], found["status"]) == (None, "not_measured")
            assert found["reason"]


def fault(t_ns: int) -> np.void:
    return event(t_ns=t_ns, kind=3, cpu=1, tid=TIDS["strategy"], comm=COMM, value=0x7000)


def test_faults_the_kernel_accounts_for_equal_the_traps() -> None:
    recording = run_with(extra_events=[fault(WINDOW + 3 * MS)])
    found = counters(recording)
    assert (found["minor_faults"]["value"], found["major_faults"]["value"]) == (1, 0)
    assert found["minor_faults"]["agrees"] is found["major_faults"]["agrees"] is True


@pytest.mark.parametrize(("accounted", "words"), [(3, "MAP_POPULATE"), (0, "without counting a fault")])
def test_faults_and_traps_that_differ_are_not_proven_and_why(accounted: int, words: str) -> None:
    recording = run_with(extra_events=[fault(WINDOW + 3 * MS)])
    close_edge(recording)["minor_faults"] = 900 + accounted
    found = counters(recording)
    assert found["minor_faults"]["status"] == "not_proven"
    assert words in found["minor_faults"]["reason"]
    # getrusage alone tells the two apart, so a zero of major ones rests on one source, and is no lie.
    major = found["major_faults"]
    assert (major["value"], major["status"], major["agrees"]) == (0, "measured", None)
    close_edge(recording)["major_faults"] += 1
    assert counters(recording)["major_faults"]["status"] == ("measured" if accounted == 0 else "not_proven")


def syscall(t_ns: int, number: int) -> np.void:
    return event(t_ns=t_ns, kind=4, cpu=1, tid=TIDS["strategy"], comm=COMM, value=number)


def test_system_calls_are_listed_by_number_and_by_name_where_known() -> None:
    calls = [syscall(WINDOW + k * MS, number) for k, number in enumerate((230, 202, 202), start=1)]
    recording = run_with(extra_events=calls)
    recording.meta["syscall_names"] = {"202": "futex"}
    result = summarize(recording)
    assert result["counters"]["strategy"]["syscalls"]["value"] == 3
    assert result["threads"]["strategy"]["syscalls"] == [
        {"number": 202, "name": "futex", "count": 2},
        {"number": 230, "name": None, "count": 1},
    ]


def test_calls_of_the_edges_themselves_do_not_confirm_calls_in_the_window() -> None:
    recording = run_with()
    edge = close_edge(recording)
    recording.arrays["kernel_events"] = np.array([syscall(edge["t_before_ns"] + 10 + k, 0) for k in range(3)])
    assert counters(recording)["syscalls"]["agrees"] is True
    edge["syscalls"] += 2
    assert counters(recording)["syscalls"]["agrees"] is False


def test_run_queue_delay_adds_both_waits_and_leaves_sleep_and_quota_out() -> None:
    asleep = Away(
        "strategy",
        WINDOW + 9 * MS,
        102_000,
        [(0, b"swapper/1", 100_000)],
        prev_state=1,
        woken_after_ns=70_000,
    )
    quota = Away("strategy", WINDOW + 12 * MS, 100_000, [(0, b"swapper/1", 98_000)], THROTTLED)
    result = summarize(run_with(preempted(), asleep, quota))
    found = result["counters"]["strategy"]["runq_delay_ns"]
    assert found["value"] == 98_000 + 30_000
    assert found["agrees"] is True
    off_cpu = result["threads"]["strategy"]["off_cpu"]
    assert off_cpu["runq_after_wakeup"] == {"count": 1, "time_ns": 30_000, "max_ns": 30_000}
    assert off_cpu["runq_after_preemption"]["time_ns"] == 98_000
    assert off_cpu["kinds"]["throttled"]["count"] == 1


def test_run_queue_delay_beyond_its_tolerance_is_not_proven() -> None:
    recording = run_with(preempted())
    close_edge(recording)["runq_delay_ns"] += 5_000_000
    found = counters(recording)["runq_delay_ns"]
    assert (found["status"], found["agrees"]) == ("not_proven", False)
    assert "tolerance" in found["reason"]


def test_a_zero_run_queue_delay_has_no_tolerance() -> None:
    recording = run_with()
    close_edge(recording)["runq_delay_ns"] += 1
    assert counters(recording)["runq_delay_ns"]["status"] == "not_proven"


def test_migrations_compare_two_counters_of_the_kernel() -> None:
    recording = run_with()
    edge = close_edge(recording)
    edge["migrations"] += 1
    assert counters(recording)["migrations"]["status"] == "not_proven"
    edge["migrations"] = None
    alone = counters(recording)["migrations"]
    assert (alone["value"], alone["source"], alone["agrees"]) == (0, "/proc sched", None)
    edge["nr_migrations"] = None
    assert counters(recording)["migrations"]["status"] == "not_measured"


@pytest.mark.parametrize(
    ("process", "status", "agrees"),
    [
        ({"allocations": 0, "heap_delta_bytes": 0}, "measured", True),
        ({"allocations": 0, "heap_delta_bytes": 48}, "not_proven", False),
        ({"allocations": 0, "heap_delta_bytes": None}, "measured", None),
        ({"allocations": 12, "heap_delta_bytes": 0}, "measured", None),
        ({"allocations": None, "allocations_reason": "not numba"}, "not_measured", None),
    ],
)
def test_allocations(process: dict[str, Any], status: str, agrees: bool | None) -> None:
    recording = run_with()
    recording.meta["process"].update(process)
    found = summarize(recording)["counters"]["process"]["allocations"]
    assert (found["status"], found["agrees"]) == (status, agrees)


def test_collections_in_the_window_are_counted_by_generation() -> None:
    inside, before = (WINDOW + MS, WINDOW + MS + 1_000, 2), (T_START, T_START + 1_000, 0)
    result = summarize(run_with(collections=[before, inside]))
    assert result["gc"]["collections"] == [0, 0, 1]
    found = result["counters"]["process"]["gc_collections"]
    assert (found["value"], found["agrees"]) == (1, True)


@pytest.mark.parametrize("grown", [-1, 1])
def test_collections_that_the_callbacks_did_not_see_are_not_proven(grown: int) -> None:
    recording = run_with(collections=[(WINDOW + MS, WINDOW + MS + 1_000, 0)])
    recording.meta["process"]["gc_collections_after"][0] += grown
    assert summarize(recording)["counters"]["process"]["gc_collections"]["status"] == "not_proven"


def test_who_took_the_cpu_is_named_with_count_and_time() -> None:
    both = Away("strategy", WINDOW + 7 * MS, 100_000, [(9, b"taker", 50_000), (8, b"other", 48_000)])
    ran = summarize(run_with(preempted(), both))["threads"]["strategy"]["off_cpu"]["kinds"]["preempted"]
    assert (ran["count"], ran["time_ns"]) == (2, 196_000)
    assert ran["ran_instead"]["tasks"] == [
        {"task": "taker/9", "count": 2, "time_ns": 148_000},
        {"task": "other/8", "count": 1, "time_ns": 48_000},
    ]


@pytest.mark.parametrize("side", ["checked_start", "checked_end"])
def test_events_on_another_clock_are_not_joined_to_anything(side: str) -> None:
    recording = run_with(preempted())
    recording.meta["clock"].update({side: False, "reason": "a time namespace"})
    result = summarize(recording)
    found = result["counters"]["strategy"]
    assert (found["involuntary_switches"]["value"], found["involuntary_switches"]["source"]) == (
        1,
        "getrusage",
    )
    assert found["involuntary_switches"]["agrees"] is None
    assert result["threads"]["strategy"]["off_cpu"] is None
    assert {row["cause"] for row in result["tail"]["causes"]} <= {"unexplained", "own service"}
    assert result["probes"]["context_switch"]["status"] == "ok"
    assert any("not used" in note for note in result["notes"])


def test_schedstat_may_be_above_by_what_passed_since_the_threads_last_clock_read() -> None:
    recording = run_with(preempted())
    edge, agreed = close_edge(recording), counters(recording)["runq_delay_ns"]
    t_out_ns = WINDOW + 3 * MS
    gap = next(gap for gap in recording["gaps_strategy"] if gap["t_start_ns"] <= t_out_ns <= gap["t_end_ns"])
    lead_ns = t_out_ns - int(gap["t_start_ns"])
    base_ns = RUN_QUEUE_TOLERANCE_PER_WAIT_NS + agreed["value"] // RUN_QUEUE_TOLERANCE_PART
    edge["runq_delay_ns"] += base_ns + lead_ns
    assert counters(recording)["runq_delay_ns"]["agrees"] is True
    edge["runq_delay_ns"] += base_ns
    assert counters(recording)["runq_delay_ns"]["agrees"] is False
    edge["runq_delay_ns"] -= 3 * base_ns + lead_ns + 1
    assert counters(recording)["runq_delay_ns"]["agrees"] is False


def test_a_tolerance_as_large_as_the_lengths_cannot_confirm_them() -> None:
    recording = run_with(Away("strategy", WINDOW + 3 * MS, 8_000, [(9, b"taker", 6_000)]))
    found = counters(recording)["runq_delay_ns"]
    assert 0 < found["value"] <= found["tolerance_ns"]
    assert (found["status"], found["agrees"]) == ("measured", None)
    assert "tolerance" in found["reason"]


def test_schedstat_counts_throttling_as_waiting() -> None:
    recording = run_with(
        preempted(), Away("strategy", WINDOW + 12 * MS, 100_000, [(0, b"swapper/1", 98_000)], THROTTLED)
    )
    found = counters(recording)["runq_delay_ns"]
    assert (found["value"], found["witness"]["value"], found["agrees"]) == (98_000, 196_000, True)
    assert "throttling" in found["reason"]
    close_edge(recording)["runq_delay_ns"] -= 98_000
    assert counters(recording)["runq_delay_ns"]["agrees"] is False
