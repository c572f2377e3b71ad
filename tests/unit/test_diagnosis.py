"""The result of a diagnosis: its keys, whom it charges, and its edges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import recording as recordings
from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.diagnosis import SCHEMA, diagnose, held, timelines_of
from sysmeter.recording import Recording
from sysmeter.report.json import dump
from tests.support.diagnosed import attributed, diagnosed
from tests.support.kernelevents import COMM, TIDS, fault, interrupt, switch, syscall
from tests.support.loop import simulate
from tests.support.runs import T_START, Away, Run, build

MS = 1_000_000
WINDOW = T_START + 5 * MS
BASH = (99, b"bash")

TAIL_KEYS = {
    *("threshold_ns", "samples", "sample_time_ns", "wall_time_ns"),
    *("witnessed_frac", "inferred_frac", "unexplained_frac"),
}
CAUSE_KEYS = {"cause", "detail", "evidence", "sample_time_ns", "wall_time_ns", "share_frac", "samples"}
EPISODE_KEYS = {"t_start_ns", "duration_ns", "peak_ns", "n_messages", "parts"}
PART_KEYS = {"cause", "detail", "evidence", "time_ns"}


def preempted(thread: str, t_ns: int, length_ns: int, task: tuple[int, bytes] = BASH) -> Away:
    return Away(thread, t_ns, length_ns, [(*task, length_ns - 2_000)])


def by_cause(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["thread"], row["cause"]): row for row in result["causes"]}


def test_the_keys_of_the_schema() -> None:
    away = [preempted("strategy", WINDOW + 3 * MS, 2 * MS), Away("feed", WINDOW + 9 * MS, 3 * MS)]
    result = diagnosed(build(Run(away=away)))
    assert result["schema"] == SCHEMA == "sysmeter.diagnose/1"
    assert result.keys() >= {"tail", "causes", "episodes", "concurrent"}
    assert result["tail"].keys() >= TAIL_KEYS
    assert result["causes"]
    assert all(row.keys() >= CAUSE_KEYS for row in result["causes"])
    assert result["episodes"]
    for episode in result["episodes"]:
        assert episode.keys() >= EPISODE_KEYS
        assert all(part.keys() >= PART_KEYS for part in episode["parts"])
    assert isinstance(result["concurrent"], list)
    assert json.loads(dump(result)) == result


def test_an_absent_tail_has_the_same_keys_and_no_values() -> None:
    recording = build(Run(n_messages=501))
    result = diagnosed(recording)
    assert result["tail"].keys() >= TAIL_KEYS
    assert result["tail"]["threshold_ns"] is None
    assert result["tail"]["threshold_source"] == "too few samples"
    assert all(result["tail"][key] is None for key in TAIL_KEYS)
    assert result["causes"] == result["episodes"] == result["concurrent"] == []


def test_nothing_above_the_threshold_is_a_tail_of_no_samples() -> None:
    result = diagnosed(build(Run()), 10**12)
    tail = result["tail"]
    assert (tail["samples"], tail["sample_time_ns"], tail["wall_time_ns"], tail["n_episodes"]) == (0, 0, 0, 0)
    assert tail["witnessed_frac"] is None
    assert tail["n_above_in_histogram"] == tail["n_above_found"] == 0


def test_each_part_of_a_response_is_charged_to_the_thread_that_held_it() -> None:
    away = [preempted("feed", WINDOW + 3 * MS, 2 * MS), preempted("strategy", WINDOW + 9 * MS, MS, (7, b"vi"))]
    rows = by_cause(diagnosed(build(Run(away=away)), 50_000))
    feed, strategy = rows["feed", causes.PREEMPTED], rows["strategy", causes.PREEMPTED]
    assert (feed["detail"], strategy["detail"]) == ("bash/99", "vi/7")
    assert (feed["wall_time_ns"], strategy["wall_time_ns"]) == (2 * MS, MS)
    # Every message that was due meanwhile and still answered above the threshold.
    assert feed["samples"] == pytest.approx(195, abs=2)
    assert strategy["samples"] == pytest.approx(95, abs=2)


def test_an_event_of_the_thread_that_does_not_hold_the_message_explains_nothing() -> None:
    stolen = Away("strategy", WINDOW + 3 * MS, 2 * MS)
    beside = Away("feed", WINDOW + 3 * MS + 200_000, 8_000, [(*BASH, 6_000)])
    rows = by_cause(diagnosed(build(Run(away=[stolen, beside])), 500_000))
    assert ("strategy", causes.OUTSIDE_GUEST) in rows
    # 8 µs in the feed's hands for the one message that was due then, of 2 ms.
    assert rows["feed", causes.PREEMPTED]["sample_time_ns"] <= 8_000


def test_all_messages_of_a_stall_count_though_the_first_one_waited_longer_for_its_turn() -> None:
    """The first came while the thread was at work on the one before, the others only when it was gone."""
    feed_delay = Away("feed", WINDOW + 3 * MS + 5_000, 26_000, [(*BASH, 24_000)])
    _, batches, _ = simulate(Run(away=[feed_delay]))
    first = next(row for row in batches if row[0] > WINDOW + 3 * MS + 31_000)
    gone = preempted("strategy", first[1] + 10, 2 * MS)
    recording = build(Run(away=[feed_delay, gone]))
    slow = attributed(recording, 20_000).slow
    assert (np.diff(slow.t_taken_ns[slow.t0_ns < gone.t_start_ns + 2 * MS]) < 0).any()
    row = by_cause(diagnosed(recording, 20_000))["strategy", causes.PREEMPTED]
    assert row["samples"] == pytest.approx(198, abs=3)


def test_a_theft_in_a_batch_is_no_service_where_only_slow_batches_were_kept() -> None:
    _, batches, _ = simulate(Run())
    away = [Away("strategy", batches[k][0] + 60, 2 * MS if k != 1_200 else MS) for k in (800, 1_200, 1_600)]
    recording = build(Run(away=away, tail_batches=2))
    assert (recording["gaps_strategy"]["where"] == records.GAP_IN_BATCH).all()
    result = diagnosed(recording)
    assert result["tail"]["threshold_source"] == "storage floor"
    assert by_cause(result)["strategy", causes.OUTSIDE_GUEST]["wall_time_ns"] > 3_990_000


def test_above_below_the_storage_floor_is_raised_to_it() -> None:
    away = [Away("strategy", WINDOW + k * 3 * MS, MS + k * 100_000) for k in (1, 2, 3)]
    recording = build(Run(away=away, tail_batches=2))
    floor_ns = recording.meta["run"]["tail_floor_ns"]
    for above_ns in (1, floor_ns):
        tail = diagnosed(recording, above_ns)["tail"]
        assert (tail["threshold_ns"], tail["threshold_source"]) == (floor_ns + 1, "storage floor")
        assert tail["n_above_in_histogram"] == tail["n_above_found"]
    assert diagnosed(recording, floor_ns + 1)["tail"]["threshold_source"] == "--above"


def test_a_switch_away_that_was_not_seen_is_not_the_hypervisors() -> None:
    at = WINDOW + 3 * MS
    back = switch(at + 1_900_000, 1, BASH, (TIDS["strategy"], COMM))
    rows = by_cause(diagnosed(build(Run(away=[Away("strategy", at, 2 * MS)], extra_events=[back]))))
    assert rows["strategy", causes.NOT_SEEN]["wall_time_ns"] == 1_900_000
    assert rows["strategy", causes.OUTSIDE_GUEST]["wall_time_ns"] == 100_000


def damaged(what: str) -> Recording:
    recording = build(Run(away=[Away("strategy", WINDOW + 3 * MS, 2 * MS)]))
    probes = recording.meta["probes"]
    match what:
        case "off":
            probes["interrupts"] = {"status": "off", "reason": "--probes"}
        case "lost":
            probes["softirqs"]["lost"] = 3
        case "missed":
            probes["context_switch"]["missed"] = 1
        case "not counted":
            probes["page_fault"]["missed"] = None
        case "bare metal":
            recording.meta["host"]["virtualization"] = "none"
        case "clocks":
            recording.meta["clock"]["checked_end"] = False
    return recording


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("off", "the probe interrupts was not there"),
        ("lost", "softirqs lost 3 events"),
        ("missed", "context_switch missed 1 events"),
        ("not counted", "this kernel does not tell whether page_fault missed events"),
        ("bare metal", "firmware (SMI)"),
        ("clocks", "the probe context_switch was not there"),
    ],
)
def test_what_may_have_been_missed_is_unexplained_and_not_inferred(what: str, words: str) -> None:
    result = diagnosed(damaged(what))
    assert result["tail"]["inferred_ns"] == 0
    row = by_cause(result)["strategy", causes.NOT_SEEN]
    assert row["evidence"] == causes.UNEXPLAINED
    assert words in row["detail"]
    assert row["wall_time_ns"] == 2 * MS


def test_a_run_without_probes_is_diagnosed_by_its_gaps_alone() -> None:
    result = diagnosed(build(Run(away=[preempted("strategy", WINDOW + 3 * MS, 2 * MS)], probes=False)))
    assert result["tail"]["inferred_ns"] == 0
    assert by_cause(result)["strategy", causes.NOT_SEEN]["wall_time_ns"] == 2 * MS


def test_a_full_queue_is_the_strategys() -> None:
    run = Run(away=[preempted("strategy", WINDOW + 3 * MS, 2 * MS)], ring_slots=16)
    result = diagnosed(build(run), 50_000)
    rows = by_cause(result)
    assert rows["strategy", causes.PREEMPTED]["wall_time_ns"] == 2 * MS
    assert rows["strategy", causes.PREEMPTED]["samples"] > 150
    assert rows["strategy", causes.QUEUE_FULL]["sample_time_ns"] > 0
    assert not any(row["cause"] == causes.PREEMPTED for row in result["causes"] if row["thread"] == "feed")


def test_an_injected_stall_comes_before_what_falls_into_it() -> None:
    at = WINDOW + 3 * MS
    recording = build(Run(away=[preempted("strategy", at, 2 * MS)]))
    recording.meta["settings"]["stall_for_ns"] = MS
    recording.arrays["stalls"] = np.array([(at, 2 * MS, 9)], records.STALL)
    rows = by_cause(diagnosed(recording))
    assert rows["strategy", causes.INJECTED_STALL]["wall_time_ns"] == MS
    assert rows["strategy", causes.PREEMPTED]["wall_time_ns"] == MS


def test_a_flat_run_counts_from_the_release() -> None:
    run = Run(mode="flat", n_messages=8_000, away=[Away("strategy", T_START + 250_000, MS)])
    assert {row["thread"] for row in diagnosed(build(run))["causes"]} == {"strategy"}


def test_the_listed_episodes_are_the_highest_and_the_others_are_counted() -> None:
    away = [Away("strategy", WINDOW + k * 3 * MS, MS + (k * 7 % 5) * 100_000) for k in range(1, 6)]
    result = diagnosed(build(Run(away=away)), 500_000, n_episodes=3)
    peaks = [episode["peak_ns"] for episode in result["episodes"]]
    assert peaks == sorted(peaks, reverse=True)
    assert (len(peaks), result["episodes_not_listed"], result["tail"]["n_episodes"]) == (3, 2, 5)
    assert diagnosed(build(Run(away=away)), 500_000, n_episodes=0)["episodes"] == []


def test_faults_and_collections_of_an_episode_are_listed() -> None:
    at = WINDOW + 3 * MS
    run = Run(
        away=[Away("strategy", at, 2 * MS)],
        extra_events=[fault("strategy", at + 100_000, 2**64 - 4096), fault("feed", at + 200_000)],
        collections=[(at, at + 300_000, 2)],
    )
    result = diagnosed(build(run))
    collection, trap = result["episodes"][0]["events"]
    assert (collection["event"], collection["relation"]) == ("collection", "concurrent")
    assert (trap["address"], trap["thread"], trap["duration_ns"]) == (2**64 - 4096, "strategy", 500_000)
    assert not any(row["cause"] == causes.COLLECTION for row in result["causes"])
    assert [row["event"] for row in result["concurrent"]] == ["collection"]


def test_held_tells_of_any_interval_and_clips_it_to_the_loop() -> None:
    at = WINDOW + 3 * MS
    extra = [interrupt("strategy", at + MS, 9_000), syscall("feed", at, 1)]
    recording = build(Run(away=[preempted("strategy", at - 4 * MS, MS)], extra_events=extra))
    known = timelines_of(recording)
    rows = held(recording, "strategy", at, at + 2 * MS, known)
    assert rows == held(recording, "strategy", at, at + 2 * MS)
    assert [(row["cause"], row["time_ns"]) for row in rows] == [
        (causes.OWN_SERVICE, 2 * MS - 9_000),
        (causes.INTERRUPT, 9_000),
    ]
    bounds = known["strategy"].bounds_ns
    whole = held(recording, "strategy", 0, 2**62, known)
    assert sum(row["time_ns"] for row in whole) == int(bounds[-1] - bounds[0])
    for start, end in ((0, 10), (2**62, 2**62 + 5), (at, at), (at + 10, at)):
        assert held(recording, "strategy", start, end, known) == []


def test_events_out_of_order_and_outside_the_loop_change_nothing() -> None:
    at = WINDOW + 3 * MS
    run = Run(away=[preempted("strategy", at, 2 * MS)], extra_events=[interrupt("strategy", at + 4 * MS, 900)])
    recording = build(run)
    plain = diagnose(recording)
    outside = [interrupt("strategy", 5, 2**62), switch(7, 1, BASH, (TIDS["strategy"], COMM))]
    late = int(recording.meta["run"]["t_end_ns"]) + 10**9
    outside += [
        fault("strategy", late),
        interrupt("feed", late + 5, 2**62),
        switch(late + 9, 0, BASH, (0, b"swapper/0")),
    ]
    rows = np.concatenate((recording["kernel_events"][::-1], np.array(outside, records.KERNEL_EVENT)))
    recording.arrays["kernel_events"] = rows
    assert diagnosed(recording)["causes"] == plain["causes"]


def test_a_recording_from_disk_gives_the_same_result(tmp_path: Path) -> None:
    recording = build(Run(away=[preempted("strategy", WINDOW + MS, 2 * MS), Away("feed", WINDOW + 9 * MS, MS)]))
    in_memory = diagnosed(recording)
    with recordings.RecordingWriter(tmp_path / "run") as writer:
        writer.commit(recording)
    from_disk = diagnosed(recordings.load(tmp_path / "run"))
    assert from_disk.pop("recording") == str(tmp_path / "run")
    in_memory.pop("recording")
    assert from_disk == in_memory
