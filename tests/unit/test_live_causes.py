"""Whom a live run's slow moments are charged to: collections, the interpreter lock, and what the kernel saw."""

from __future__ import annotations

from typing import Any

import pytest

from sysmeter import recording as recordings
from sysmeter.analysis.summary import summarize
from sysmeter.recording import Recording, RecordingWriter
from tests.support.liveruns import (
    ASLEEP,
    LOCK_ADDRESS,
    LOCK_BYTES,
    MS,
    OTHER,
    WORKER,
    LiveRun,
    Stop,
    build_live,
)
from tests.support.runs import T_START

AT = T_START + 100 * MS
PYTHON, BASH, IDLE = (OTHER, b"sysmeter-oth1"), (77, b"bash"), (0, b"swapper/1")
BACK = 500  # from the wake-up to the switch-in, besides the exit


def tail_of(recording: Recording) -> dict[str, Any]:
    """The result's tail; its parts are the whole, and the loop's histogram agrees with the messages."""
    result = summarize(recording)
    tail: dict[str, Any] = result["tail"]
    for key in ("sample_time", "wall_time"):
        row = tail[key]
        assert row["witnessed_ns"] + row["inferred_ns"] + row["unexplained_ns"] == row["whole_ns"] > 0
    for episode in tail["episodes"]:
        assert sum(part["time_ns"] for part in episode["parts"]) == episode["duration_ns"]
    assert tail["n_above_in_histogram"] == tail["n_above_found"]
    return tail


def slowest(recording: Recording) -> dict[tuple[str, str, str], int]:
    """The parts of the slowest episode: (cause, detail, evidence) → ns."""
    parts = tail_of(recording)["episodes"][0]["parts"]
    return {(part["cause"], part["detail"], part["evidence"]): part["time_ns"] for part in parts}


def lock_wait(length_ns: int = 6 * MS, **changes: Any) -> Stop:
    options: dict[str, Any] = {"runner": IDLE, "state": ASLEEP, "futex": LOCK_ADDRESS + 640}
    options["woken_before_end_ns"] = 1_000
    return Stop(AT, length_ns, **{**options, **changes})


def test_a_collection_of_its_own_is_the_cause() -> None:
    stop, collection = Stop(AT, 10 * MS), (AT + 2_000, AT + 10 * MS - 1_000, 2, WORKER)
    parts = slowest(build_live(LiveRun(stops=[stop], collections=[collection])))
    assert parts["collection", "generation 2, own thread", "witnessed"] == 10 * MS - 3_000
    assert parts["outside the guest", "the hypervisor had the CPU", "inferred"] == 3_000


def test_a_preemption_inside_a_collection_is_charged_once_and_to_the_preemption() -> None:
    stop = Stop(AT, 10 * MS, BASH, entry_ns=3 * MS, exit_ns=2 * MS)
    collection = (AT + 1_000, AT + 10 * MS - 1_000, 2, WORKER)
    parts = slowest(build_live(LiveRun(stops=[stop], collections=[collection])))
    assert parts["preempted", "bash/77", "witnessed"] == 5 * MS
    assert parts["collection", "generation 2, own thread", "witnessed"] == 5 * MS - 2_000


def test_a_wait_for_the_lock_is_a_cause_of_its_own_up_to_the_wakeup() -> None:
    parts = slowest(build_live(LiveRun(stops=[lock_wait()])))
    assert parts["interpreter lock", "", "witnessed"] == 6 * MS - 1_000 - 1_000
    assert parts["run queue", "idle", "witnessed"] == 1_000  # the way back from the CPU's queue included
    assert not any(cause == "voluntary" for cause, *_ in parts)


def test_a_collection_in_another_thread_is_named_within_the_wait_and_the_rest_is_the_locks() -> None:
    collection = (AT + MS, AT + 4 * MS, 1, OTHER)
    parts = slowest(build_live(LiveRun(stops=[lock_wait()], collections=[collection])))
    detail = f"generation 1 in thread other-1/{OTHER} while the lock was waited for"
    assert parts["collection", detail, "witnessed"] == 3 * MS
    assert parts["interpreter lock", "", "witnessed"] == 3 * MS - 2_000


def test_two_collections_reaching_beyond_the_wait_count_only_within_it() -> None:
    collections = [(AT - MS, AT + MS, 0, OTHER), (AT + 5 * MS, AT + 7 * MS, 2, OTHER)]
    parts = slowest(build_live(LiveRun(stops=[lock_wait()], collections=collections)))
    details = [f"generation {k} in thread other-1/{OTHER} while the lock was waited for" for k in (0, 2)]
    assert parts["collection", details[0], "witnessed"] == MS - 1_000
    assert parts["collection", details[1], "witnessed"] == MS - 500  # up to the thread's return


@pytest.mark.parametrize("address", [LOCK_ADDRESS - 1, LOCK_ADDRESS + LOCK_BYTES, 0])
def test_a_futex_elsewhere_is_no_wait_for_the_lock(address: int) -> None:
    parts = slowest(build_live(LiveRun(stops=[lock_wait(futex=address)])))
    assert parts["voluntary", f"in futex at {address:#x}", "witnessed"] == 6 * MS - 2_000
    assert not any("lock" in cause for cause, *_ in parts)


@pytest.mark.parametrize("address", [LOCK_ADDRESS, LOCK_ADDRESS + LOCK_BYTES - 1])
def test_the_whole_object_is_the_locks(address: int) -> None:
    parts = slowest(build_live(LiveRun(stops=[lock_wait(futex=address)])))
    assert ("interpreter lock", "", "witnessed") in parts


def test_a_sleep_for_a_page_after_the_call_is_no_wait_for_the_lock() -> None:
    parts = slowest(build_live(LiveRun(stops=[lock_wait(fault_after_call=True)])))
    assert parts["voluntary", "in a page fault at 0x1000", "witnessed"] == 6 * MS - 2_000


def test_where_the_lock_lies_is_not_known() -> None:
    recording = build_live(
        LiveRun(stops=[lock_wait()], collections=[(AT + MS, AT + 4 * MS, 1, OTHER)], lock_known=False)
    )
    parts = slowest(recording)
    ((_, detail, evidence),) = [key for key in parts if key[0] == "voluntary"]
    assert "not told apart" in detail
    assert "_PyRuntime" in detail
    assert evidence == "witnessed"
    lock = summarize(recording)["interpreter_lock"]
    assert (lock["count"], lock["time_ns"]) == (None, None)
    assert "_PyRuntime" in lock["reason"]


def test_a_preemption_is_no_wait_for_the_lock_whatever_was_called_before() -> None:
    parts = slowest(build_live(LiveRun(stops=[lock_wait(state=0x100, runner=BASH, woken_before_end_ns=None)])))
    assert parts["preempted", "bash/77", "witnessed"] == 6 * MS - 1_000  # the way back included


def test_without_probes_a_gap_beside_another_threads_collection_is_inferred() -> None:
    collection = (AT + MS, AT + 4 * MS, 2, OTHER)
    parts = slowest(build_live(LiveRun(stops=[lock_wait()], collections=[collection], probes=False)))
    detail = f"generation 2 in thread other-1/{OTHER} which holds the interpreter lock meanwhile"
    assert parts["collection", detail, "inferred"] == 3 * MS
    assert parts["unexplained", "a gap, and the probe context_switch was not there", "unexplained"] == 3 * MS


def test_a_collection_elsewhere_while_the_worker_got_on_is_no_cause() -> None:
    run = LiveRun(stops=[Stop(AT, 6 * MS)], collections=[(AT + 50 * MS, AT + 60 * MS, 2, OTHER)])
    assert not any(cause == "collection" for cause, *_ in slowest(build_live(run)))


def test_the_lock_waits_of_the_window_are_summed() -> None:
    early, late = lock_wait(), lock_wait(3 * MS)
    early.t_start_ns, late.t_start_ns = T_START + 10 * MS, T_START + 150 * MS  # the first one lies in the warm-up
    lock = summarize(build_live(LiveRun(stops=[early, lock_wait(), late])))["interpreter_lock"]
    assert (lock["count"], lock["time_ns"], lock["max_ns"]) == (2, 9 * MS - 4_000, 6 * MS - 2_000)


def test_collections_are_told_by_generation_and_by_thread() -> None:
    collections = [
        (T_START + MS, T_START + 2 * MS, 0, WORKER),  # in the warm-up
        (AT, AT + MS, 0, WORKER),
        (AT + 2 * MS, AT + 4 * MS, 0, OTHER),
        (AT + 10 * MS, AT + 17 * MS, 2, WORKER),
    ]
    result = summarize(build_live(LiveRun(collections=collections)))
    gc = result["gc"]
    assert gc["collections"] == [2, 0, 1]
    assert gc["time_ns"] == [3 * MS, 0, 7 * MS]
    assert gc["max_ns"] == [2 * MS, 0, 7 * MS]
    assert gc["by_thread"] == {
        f"worker/{WORKER}": {"collections": 2, "time_ns": 8 * MS},
        f"other-1/{OTHER}": {"collections": 1, "time_ns": 2 * MS},
    }
    counted = result["counters"]["process"]["gc_collections"]
    assert (counted["value"], counted["witness"]["value"], counted["agrees"]) == (3, 3, True)
    assert result["memory"]["rss_growth_bytes"] == 3 << 20


def test_an_interpreter_that_counts_otherwise_disproves_the_collections() -> None:
    recording = build_live(LiveRun(collections=[(AT, AT + MS, 0, WORKER)]))
    recording.meta["process"]["gc_collections_after"] = [12, 2, 0]
    counted = summarize(recording)["counters"]["process"]["gc_collections"]
    assert (counted["status"], counted["agrees"]) == ("not_proven", False)


def test_a_flat_run_has_no_response_and_its_tail_is_of_service_times() -> None:
    recording = build_live(LiveRun(mode="flat", stops=[Stop(T_START + 20 * MS, 5 * MS)]))
    result = summarize(recording)
    response = result["latency"]["response"]
    assert (response["count"], response["p50_ns"], response["max_ns"]) == (None, None, None)
    assert "schedule" in result["latency"]["response"]["reason"] or "intends" in response["reason"]
    tail = tail_of(recording)
    assert tail["histogram"] == "service"
    assert tail["episodes"][0]["peak_ns"] == result["latency"]["service"]["max_ns"] > 5 * MS


def test_the_worker_holds_a_message_from_its_intended_time_on() -> None:
    """While it is late with one message the next ones wait: all of that is the worker's."""
    recording = build_live(LiveRun(stops=[Stop(AT, 10 * MS)], collections=[(AT, AT + 10 * MS, 2, WORKER)]))
    tail = tail_of(recording)
    assert {row["thread"] for row in tail["causes"]} == {"worker"}
    assert tail["episodes"][0]["n_messages"] == tail["samples"]
    assert summarize(recording)["latency"]["response"]["max_ns"] == tail["episodes"][0]["peak_ns"]


def test_it_is_saved_and_loaded_as_a_live_one(tmp_path) -> None:
    recording = build_live(LiveRun(stops=[lock_wait()], collections=[(AT + MS, AT + 4 * MS, 1, OTHER)]))
    with RecordingWriter(tmp_path / "r") as writer:
        writer.commit(recording)
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert "gaps_worker.npy" in names
    assert not names & {"decisions.npy", "decisions.csv", "stalls.npy", "think_counts.npy"}
    loaded = recordings.load(tmp_path / "r")
    assert loaded.kind.name == "live"
    expected = {**summarize(recording), "recording": str(tmp_path / "r")}
    assert summarize(loaded) == expected


def test_a_workload_nobody_knows_is_refused(tmp_path) -> None:
    recording = build_live(LiveRun())
    with RecordingWriter(tmp_path / "r") as writer:
        writer.commit(recording)
    meta = (tmp_path / "r" / "meta.json").read_text().replace('"workload": "live"', '"workload": "other"')
    (tmp_path / "r" / "meta.json").write_text(meta)
    with pytest.raises(recordings.RecordingError, match="workload 'other'"):
        recordings.load(tmp_path / "r")
