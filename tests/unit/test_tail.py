"""Slow samples, episodes and who held them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sysmeter import recording as recordings
from sysmeter import records
from sysmeter.analysis.episodes import find_episodes
from sysmeter.analysis.reads import thread_reads
from sysmeter.analysis.summary import summarize
from sysmeter.analysis.tail import SlowMessages, find_tail, intended_ns, pushed_ns, slow_messages
from sysmeter.analysis.traps import MAX_TRAP_NS
from sysmeter.errors import RecordingError
from sysmeter.recording import Recording
from sysmeter.report.text import render_run
from tests.support.runs import T_START, Away, Run, build, intended

MS = 1_000_000
WINDOW = T_START + 5 * MS  # 500 messages of warm-up at 100,000/s


def slow(*messages: tuple[int, int, int, int]) -> SlowMessages:
    """Of each message: t0, when there was room, release, decision; no thread is busy with another one."""
    t0, room, released, decided = (np.array(values, np.int64) for values in zip(*messages, strict=True))
    return SlowMessages(np.arange(len(t0)), t0, room, room, released, released, decided)


def test_intended_time_of_a_large_number_does_not_overflow() -> None:
    message = np.array([0, 7, 10**12])
    assert intended_ns(5, 1_000_003, message).tolist() == [5 + int(m) * 10**9 // 1_000_003 for m in message]


def totals(recording: Recording) -> np.ndarray[Any, Any]:
    return np.sort(slow_messages(recording, 0).total_ns)


def test_the_tail_is_the_slowest_thousandth_exactly() -> None:
    recording = build(Run(n_messages=5_500, away=[Away("strategy", WINDOW + MS, 2 * MS)]))
    result = summarize(recording)
    assert result["tail"]["threshold_ns"] == totals(recording)[-6]  # rank 4,995 of 5,000
    assert result["tail"]["samples"] == 6
    assert result["tail"]["threshold_source"] == "p99.9"
    assert result["tail"]["threshold_ns"] <= result["latency"]["total"]["p99_9_ns"]


def test_with_few_samples_a_lower_percentile_stands_in() -> None:
    recording = build(Run(n_messages=700, n_warmup=500))
    assert find_tail(recording)[0].source == "p99"
    assert summarize(recording)["latency"]["total"]["p99_9_ns"] is None


def test_a_tail_within_one_bucket_is_not_lost() -> None:
    """Flat mode: a queue full of messages waits for the same stall, and all are as slow."""
    run = Run(mode="flat", n_messages=40_000, away=[Away("strategy", T_START + 500_000, 10 * MS)])
    recording = build(run)
    result = summarize(recording)
    assert result["latency"]["total"]["p99_9_ns"] == result["latency"]["total"]["max_ns"]
    assert result["tail"]["samples"] >= 40
    assert result["tail"]["episodes"][0]["peak_ns"] == result["latency"]["total"]["max_ns"]


def test_warm_up_messages_are_not_in_the_tail() -> None:
    run = Run(away=[Away("strategy", T_START + MS, 2 * MS)])
    recording = build(run)
    found = slow_messages(recording, 500_000)
    assert len(found) == 0


def test_a_batch_across_the_warm_ups_end_counts_from_its_first_window_message() -> None:
    run = Run(away=[Away("strategy", WINDOW - MS, 2 * MS)])
    recording = build(run)
    found = slow_messages(recording, 1)
    assert found.message.min() == run.n_warmup
    assert len(found) == run.n_messages - run.n_warmup


def test_messages_without_a_decision_have_no_response_time() -> None:
    recording = build(Run())
    recording["batches"]["t_decided_ns"][-700:] = -1
    found = slow_messages(recording, 1)
    undecided = recording["batches"]["first_message"][-700]
    assert found.message.max() < undecided


def test_only_the_kept_batches_are_needed_above_the_storage_floor() -> None:
    away = [Away("strategy", WINDOW + 3 * MS, 2 * MS), Away("feed", WINDOW + 9 * MS, 3 * MS)]
    full, tail = build(Run(away=away)), build(Run(away=away, tail_batches=200))
    assert find_tail(tail)[0] == find_tail(full)[0]
    assert summarize(full)["tail"] == summarize(tail)["tail"]


def test_where_slow_batches_were_not_kept_the_threshold_rises_above_them() -> None:
    away = [Away("strategy", WINDOW + k * 4 * MS, MS) for k in range(5)]
    recording = build(Run(away=away, tail_batches=1))
    floor = recording.meta["run"]["tail_floor_ns"]
    result = summarize(recording)
    assert result["tail"]["threshold_ns"] == floor + 1
    assert result["tail"]["threshold_source"] == "storage floor"


def test_a_batch_beyond_the_stored_releases_is_damage() -> None:
    recording = build(Run())
    recording["release_offsets"][-1] += 1
    with pytest.raises(RecordingError, match="release was not stored"):
        slow_messages(recording, 1)


def test_feed_time_and_strategy_time_are_told_apart() -> None:
    """The feed thread is away; an event of the strategy thread meanwhile explains nothing."""
    run = Run(
        away=[
            Away("feed", WINDOW + 3 * MS, 2 * MS, [(9, b"taker", 2 * MS - 2_000)]),
            Away("strategy", WINDOW + 3 * MS + 500_000, MS, [(8, b"innocent", MS - 2_000)]),
        ]
    )
    parts = summarize(build(run))["tail"]["episodes"][0]["parts"]
    assert parts[0]["thread"] == "feed"
    assert parts[0]["detail"] == "taker/9"
    assert not [part for part in parts if "innocent" in part["detail"]]


def test_a_full_queue_is_the_strategy_threads_time() -> None:
    run = Run(
        n_messages=4_000,
        ring_slots=64,
        away=[Away("strategy", WINDOW + 3 * MS, 5 * MS, [(9, b"taker", 5 * MS - 2_000)])],
    )
    recording = build(run)
    assert recording.meta["run"]["ring_full_waits"] > 0
    result = summarize(recording)
    share = {row["thread"]: 0 for row in result["tail"]["causes"]}
    for row in result["tail"]["causes"]:
        share[row["thread"]] += row["sample_time_ns"]
    assert share.get("feed", 0) < result["tail"]["sample_time"]["whole_ns"] // 100
    assert result["tail"]["causes"][0]["detail"] == "taker/9"


def test_one_stall_is_one_episode_and_its_backlog_belongs_to_it() -> None:
    run = Run(n_messages=6_000, away=[Away("strategy", WINDOW + 3 * MS, 10 * MS, [(9, b"taker", 10 * MS - 2_000)])])
    result = summarize(build(run))
    episodes = result["tail"]["episodes"]
    assert len(episodes) == 1
    assert episodes[0]["n_messages"] == result["tail"]["samples"]
    assert episodes[0]["since_window_ns"] == pytest.approx(3 * MS, abs=20_000)


def test_episodes_join_what_overlaps_or_touches() -> None:
    found = find_episodes(slow((0, 0, 1, 10), (10, 10, 11, 20), (21, 21, 22, 30)))
    assert found.t_start_ns.tolist() == [0, 21]
    assert found.t_end_ns.tolist() == [20, 30]
    assert found.n_messages.tolist() == [2, 1]
    assert found.peak_ns.tolist() == [10, 9]


def test_the_oldest_undecided_message_decides_who_holds_the_episode() -> None:
    # The first waits for its release until 6; the second was released at 7 but is behind it until 10.
    found = find_episodes(slow((0, 0, 6, 10), (2, 2, 7, 10), (3, 3, 12, 15)))
    feed, strategy = found.holds["feed"], found.holds["strategy"]
    assert list(zip(feed.t_start_ns, feed.t_end_ns, strict=True)) == [(0, 6), (10, 12)]
    assert list(zip(strategy.t_start_ns, strategy.t_end_ns, strict=True)) == [(6, 10), (12, 15)]


def test_a_release_read_after_the_decision_is_drawn_to_it_and_counted() -> None:
    recording = build(Run())
    recording["releases"][-1] = recording["batches"]["t_decided_ns"][-1] + 5
    found = slow_messages(recording, 1)
    assert found.n_reordered == 1
    assert (found.t_released_ns <= found.t_decided_ns).all()


def test_faults_and_collections_in_an_episode_are_listed_and_a_collection_is_not_charged() -> None:
    away = Away("strategy", WINDOW + 3 * MS, 2 * MS, faults=[(1_000, 0x7F0012345000, 0)])
    run = Run(away=[away], collections=[(WINDOW + 3 * MS, WINDOW + 3 * MS + 300_000, 2)])
    episode = summarize(build(run))["tail"]["episodes"][0]
    fault, collection = episode["events"][1], episode["events"][0]
    assert fault["event"] == "page fault"
    assert fault["address"] == 0x7F0012345000
    assert fault["duration_ns"] == MAX_TRAP_NS
    assert collection["relation"] == "concurrent"
    assert {part["cause"] for part in episode["parts"]} == {"page fault", "outside the guest", "own service"}


def test_flat_mode_counts_from_the_release() -> None:
    run = Run(mode="flat", n_messages=8_000, away=[Away("strategy", T_START + 250_000, MS)])
    result = summarize(build(run))
    assert {row["thread"] for row in result["tail"]["causes"]} == {"strategy"}


def test_a_recording_from_disk_gives_the_same_result(tmp_path: Path) -> None:
    recording = build(Run(away=[Away("strategy", WINDOW + MS, 2 * MS, [(9, b"x", 2 * MS - 2_000)])]))
    in_memory = summarize(recording)
    with recordings.RecordingWriter(tmp_path / "run") as writer:
        writer.commit(recording)
    from_disk = summarize(recordings.load(tmp_path / "run"))
    assert from_disk.pop("recording") == str(tmp_path / "run")
    in_memory.pop("recording")
    assert from_disk == in_memory


def test_reads_of_the_feed_thread_hold_its_releases() -> None:
    recording = build(Run())
    own = thread_reads(recording, "feed", recording["kernel_events"])
    first = own.first_after(np.array([intended(Run(), 1_000) - 5_000]))
    assert first.tolist() == [int(recording["releases"][1_000])]


def test_a_tail_that_the_histogram_does_not_confirm_is_not_complete() -> None:
    recording = build(Run(away=[Away("strategy", WINDOW + MS, 2 * MS)]))
    result = summarize(recording)
    assert result["tail"]["n_above_in_histogram"] == result["tail"]["n_above_found"] > 0
    assert "NOT COMPLETE" not in render_run(result)
    lost = int(recording["batches"]["t_decided_ns"].searchsorted(WINDOW + 3 * MS))
    recording["batches"]["t_decided_ns"][lost] = -1
    assert "NOT COMPLETE: the loop's histogram holds" in render_run(summarize(recording))


@pytest.mark.parametrize(
    ("popped", "strategy_away", "pushed"),
    [
        (700_300, None, 700_000),  # the strategy spun and did not find it: it was pushed after the gap
        (100_090, None, 100_090),  # it found it at once: pushed before the gap
        (
            700_300,
            (90_000, 700_200),
            100_000,
        ),  # away itself, took it when back: either way
        (700_300, (90_000, 200_000), 700_000),  # it was back long before it found it
        (700_300, (300_000, 700_200), 700_000),  # it left later: until then it had not found it
    ],
)
def test_a_gap_that_begins_at_a_release_may_have_come_before_the_push(
    popped: int, strategy_away: tuple[int, int] | None, pushed: int
) -> None:
    def gaps(*rows: tuple[int, int]) -> np.ndarray[Any, Any]:
        return np.array([(*row, records.GAP_IN_SPIN) for row in rows], records.GAP)

    away = gaps() if strategy_away is None else gaps(strategy_away)
    recording = Recording({}, {"gaps_feed": gaps((50_000, 60_000), (100_000, 700_000)), "gaps_strategy": away})
    released = np.array([100_000, 100_001])
    found = pushed_ns(recording, released, np.array([popped, popped]))
    assert found.tolist() == [pushed, 100_001]
