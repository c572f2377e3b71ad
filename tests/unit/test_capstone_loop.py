"""The compiled loop, run for real in its child process, against a slow and obvious oracle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from capstone import feedfile, generator
from sysmeter import hist
from sysmeter.errors import EXIT_USAGE, WorkloadError
from sysmeter.workload import Workload, own_python
from tests.support.capstone_runs import OracleBook, run_capstone, settings_for, write_feed

ADD, CHANGE, DELETE = feedfile.KIND_ADD, feedfile.KIND_CHANGE, feedfile.KIND_DELETE
BID, ASK = feedfile.SIDE_BID, feedfile.SIDE_ASK


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    path = tmp_path_factory.mktemp("feed") / "market.feed"
    generator.make_file(path, 50_000, 5)
    return path


def oracle_decisions(messages, instrument=42):
    """Decision after each message, by sequence number; one pass, nothing skipped."""
    book, decisions = OracleBook(), {}
    for message in messages:
        if message["instrument"] == instrument:
            book.apply(
                int(message["side"]), int(message["kind"]), int(message["price_ticks"]), int(message["quantity"])
            )
        decisions[int(message["seq"])] = book.decision()
    return decisions


def assert_decisions(decisions, expected):
    assert len(decisions) > 0
    for decision in decisions:
        seq, *rest = decision.tolist()
        assert tuple(rest) == expected[seq], seq


@pytest.mark.parametrize("changes", [{}, {"mode": "paced", "rate_hz": 500_000}])
def test_every_decision_is_the_oracles_and_every_message_is_counted(market, changes):
    done, arrays = run_capstone(market, **changes)
    messages = feedfile.read(market).messages
    assert_decisions(arrays["decisions"], oracle_decisions(messages))
    run = done["run"]
    assert run["n_released"] == run["n_popped"] == run["n_window_messages"] == len(messages)
    assert run["live"]
    batches = arrays["batches"]
    assert batches["n_messages"].sum() == len(messages)
    assert np.array_equal(batches["first_message"], np.concatenate(([0], np.cumsum(batches["n_messages"])[:-1])))
    assert np.array_equal(batches["first_seq"], messages["seq"][batches["first_message"]])
    assert np.array_equal(batches["last_seq"][:-1] + 1, batches["first_seq"][1:])


@pytest.mark.parametrize("changes", [{}, {"mode": "paced", "rate_hz": 500_000}])
def test_histograms_hold_exactly_what_the_records_say(market, changes):
    done, arrays = run_capstone(market, warmup_seconds=10_000 / changes.get("rate_hz", 100_000), **changes)
    n_warmup = done["run"]["n_warmup"]
    assert n_warmup == 10_000
    batches = arrays["batches"]
    numbers = np.arange(done["run"]["n_released"])
    decided_ns = np.repeat(batches["t_decided_ns"], batches["n_messages"])
    if changes:
        t0_ns = done["run"]["t_start_ns"] + numbers * 10**9 // changes["rate_hz"]
        assert (arrays["releases"] >= t0_ns).all()
    else:
        t0_ns = arrays["releases"]
    is_counted = batches["first_message"] >= n_warmup
    for name, samples in (
        ("total", (decided_ns - t0_ns)[n_warmup:]),
        ("think", (batches["t_decided_ns"] - batches["t_popped_ns"])[is_counted]),
    ):
        facts = done["histograms"][name]
        assert facts["n_negative"] == 0
        assert (facts["count"], facts["min_ns"], facts["max_ns"], facts["sum_ns"]) == (
            len(samples),
            samples.min(),
            samples.max(),
            samples.sum(),
        )
        expected = np.zeros(hist.n_buckets(7), np.int64)
        for sample in samples.tolist():
            expected[hist.bucket_index(sample, 7)] += 1
        assert np.array_equal(arrays[f"{name}_counts"], expected)


def test_duplicates_and_other_instruments_are_counted_and_skipped(tmp_path):
    feed = write_feed(
        tmp_path / "feed",
        [
            (10, 42, BID, ADD, 100, 5),
            (11, 42, ASK, ADD, 104, 5),
            (11, 42, BID, ADD, 103, 9),  # a duplicate: must not be applied
            (10, 42, BID, ADD, 102, 9),  # older
            (12, 41, BID, ADD, 101, 9),  # another one of the universe
            (13, 64, BID, ADD, 101, 9),  # unknown
            (14, 42, BID, CHANGE, 100, 6),
        ],
    )
    done, arrays = run_capstone(feed)
    run = done["run"]
    assert (run["duplicates"], run["other_instruments"], run["unknown_instruments"]) == (2, 1, 1)
    assert (run["sequence_gaps"], run["live"]) == (0, True)
    assert arrays["decisions"][-1].tolist() == (14, 100, 6, 104, 5, 101, 103)


def test_a_sequence_gap_ends_the_decisions_for_good(tmp_path):
    rows = [(1, 42, BID, ADD, 100, 5), (2, 42, ASK, ADD, 104, 5)]
    rows += [(seq, 42, BID, CHANGE, 100, seq) for seq in range(10, 60)]
    # At this rate every message is a batch of its own or nearly so. Where the host was away for so long that the
    # first two came in one batch with the gap, nothing was decided before it: that says nothing, so run again.
    for _ in range(5):
        done, arrays = run_capstone(write_feed(tmp_path / "feed", rows), mode="paced", rate_hz=200)
        if len(arrays["decisions"]):
            break
    assert len(arrays["decisions"]) in (1, 2)
    run = done["run"]
    assert (run["sequence_gaps"], run["live"], run["n_popped"]) == (1, False, len(rows))
    assert (arrays["decisions"]["seq"] <= 2).all()
    with_gap = arrays["batches"]["last_seq"] >= 10
    assert (arrays["batches"]["t_decided_ns"][with_gap] == -1).all()
    assert done["histograms"]["total"]["count"] == arrays["batches"]["n_messages"][~with_gap].sum()


def test_loop_lets_sequence_numbers_run_on_and_starts_the_book_anew(tmp_path):
    one_lap = [
        (5, 42, BID, ADD, 100, 5),
        (6, 42, ASK, ADD, 104, 5),
        (7, 42, BID, ADD, 101, 7),
        (8, 42, BID, DELETE, 100, 0),
    ]
    laps = 25
    done, arrays = run_capstone(
        write_feed(tmp_path / "feed", one_lap), loop=True, mode="paced", rate_hz=2_000, seconds=4 * laps / 2_000
    )
    assert done["run"]["n_popped"] == 4 * laps
    assert (done["run"]["sequence_gaps"], done["run"]["live"]) == (0, True)
    expected = {}
    for lap in range(laps):
        book = OracleBook()
        for seq, _instrument, side, kind, price, quantity in one_lap:
            book.apply(side, kind, price, quantity)
            expected[seq + 4 * lap] = book.decision()
    assert_decisions(arrays["decisions"], expected)
    assert arrays["decisions"]["seq"][-1] == 8 + 4 * (laps - 1)


def test_a_rate_that_cannot_be_held_keeps_its_intended_times(market):
    done, arrays = run_capstone(market, mode="paced", rate_hz=1_000_000_000)
    run = done["run"]
    assert run["n_released"] == 50_000
    assert run["ring_full_waits"] > 0 or run["elapsed_ns"] > 50_000
    lateness_ns = arrays["releases"] - (run["t_start_ns"] + np.arange(50_000))
    assert (lateness_ns >= 0).all()
    assert lateness_ns[-1] > lateness_ns[0]


def test_bounded_storage_keeps_the_slowest_batches_and_the_histograms(market):
    n_messages = 4_200_000
    done, arrays = run_capstone(market, loop=True, rate_hz=1_000_000, seconds=n_messages / 1_000_000)
    run = done["run"]
    assert run["storage"] == "tail"
    assert run["n_popped"] == n_messages == done["histograms"]["total"]["count"]
    assert len(arrays["decisions"]) == 0
    batches, offsets, releases = arrays["batches"], arrays["release_offsets"], arrays["releases"]
    # In flat mode a batch's peak response is its first message's, and t0 is the release.
    peaks = batches["t_decided_ns"] - releases[offsets]
    assert peaks.max() == done["histograms"]["total"]["max_ns"]
    assert run["tail_floor_ns"] == 0 or peaks.min() >= run["tail_floor_ns"]
    for batch, offset in zip(batches, offsets, strict=True):
        of_batch = releases[offset : offset + batch["n_messages"]]
        assert (np.diff(of_batch) >= 0).all()
        assert of_batch[-1] <= batch["t_popped_ns"]
    buckets = arrays["time_buckets"]
    assert buckets["n_messages"].sum() == n_messages
    assert buckets["total_max_ns"].max() == peaks.max()
    assert buckets["total_sum_ns"].sum() == done["histograms"]["total"]["sum_ns"]


def test_gap_records_are_disjoint_and_longer_than_the_threshold(market):
    _done, arrays = run_capstone(market, mode="paced", rate_hz=100_000)
    for name in ("gaps_feed", "gaps_strategy"):
        gaps = arrays[name]
        assert len(gaps) > 0  # half a second of timer ticks
        assert (gaps["t_end_ns"] - gaps["t_start_ns"] > 5_000).all()
        assert (gaps["t_end_ns"][:-1] <= gaps["t_start_ns"][1:]).all()


def test_loop_makes_its_zeros_good(market):
    done, arrays = run_capstone(market, mode="paced", rate_hz=100_000, warmup_seconds=0.1)
    assert done["process"]["allocations"] == 0
    assert done["process"]["heap_delta_bytes"] in (0, None)
    assert len(arrays["collections"]) == 0
    for edges in done["edges"].values():
        for counter in ("voluntary_switches", "minor_faults", "major_faults", "syscalls", "migrations"):
            if edges["open"][counter] is not None:
                assert edges["close"][counter] - edges["open"][counter] == 0, counter


def test_stop_ends_the_window_in_order(market):
    with Workload(own_python("capstone"), lambda _text: None) as workload:
        settings = settings_for(market, loop=True, mode="paced", rate_hz=10_000, seconds=300.0)
        workload.send("prepare", settings=settings)
        workload.receive("ready")
        workload.send("go")
        assert workload.receive("done", 0.3) is None
        workload.stop()
        done = workload.receive("done")
        assert done is not None
        assert done["run"]["stopped_by"] == "interrupt"
        assert 0 < done["run"]["n_popped"] == done["run"]["n_released"] < 3_000_000
        assert done["edges"]["strategy"]["close"] is not None


def test_stop_above_stops_after_the_first_slow_response(market):
    done, arrays = run_capstone(market, loop=True, mode="paced", rate_hz=10_000, seconds=120.0, stop_above_ns=6_000)
    run = done["run"]
    assert run["stopped_by"] == "stop_above"
    batches = arrays["batches"]
    t0_ns = run["t_start_ns"] + batches["first_message"] * 10**9 // 10_000
    is_slow = batches["t_decided_ns"] - t0_ns > 6_000
    first_slow = int(np.flatnonzero(is_slow)[0])
    # The feed thread looks for the order at each turn of its spin, and at each 32nd message where it is late.
    t_decided_ns = int(batches["t_decided_ns"][first_slow])
    assert np.count_nonzero(arrays["releases"] > t_decided_ns) <= 64
    assert run["n_released"] < run["n_planned"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": 60.0}, "--loop"),
        ({"warmup_seconds": 0.5}, "--warmup"),
        ({"queue": "channel", "loop": True, "seconds": 60.0}, "--mode paced"),
        ({"stall": "periodic", "stall_every_ns": 1_000, "stall_for_ns": 100}, "--stall-every"),
    ],
)
def test_settings_that_do_not_fit_the_file(market, changes, message):
    with pytest.raises(WorkloadError) as caught:
        run_capstone(market, **changes)
    assert caught.value.exit_code == EXIT_USAGE
    assert message in caught.value.hint


def test_a_killed_workload_is_an_error_with_its_signal(market):
    with Workload(own_python("capstone"), lambda _text: None) as workload:
        workload.send("prepare", settings=settings_for(market))
        workload.receive("ready")
        os.kill(workload.tgid, signal.SIGKILL)
        with pytest.raises(WorkloadError, match="SIGKILL"):
            workload.receive("done")


def test_workload_dies_with_its_parent(market):
    program = (
        "import sys, os, signal; from sysmeter.workload import Workload, own_python\n"
        "from tests.support.capstone_runs import settings_for; from pathlib import Path\n"
        "w = Workload(own_python('capstone'), lambda t: None)\n"
        f"w.send('prepare', settings=settings_for(Path({str(market)!r})))\n"
        "w.receive('ready'); print(w.tgid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    tgid = int(done.stdout)
    # It is init's child now; a zombie that nobody reaps has no memory map any more.
    for _ in range(1_000):
        try:
            if not Path(f"/proc/{tgid}/maps").read_text():
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        os.sched_yield()
        signal.sigtimedwait([], 0.01)
    pytest.fail("the workload outlived its parent")


def test_an_edited_component_is_not_run_from_a_stale_cache(market, tmp_path):
    root = Path(__file__).parents[2]
    for package in ("capstone", "sysmeter", "tests"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "from pathlib import Path; from tests.support.capstone_runs import run_capstone\n"
        f"_, arrays = run_capstone(Path({str(market)!r}))\n"
        "print(int(arrays['decisions']['bid_quantity'][-1]))"
    )

    def run() -> int:
        command = [sys.executable, "-c", program]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    before = run()
    book = tmp_path / "capstone" / "swaps" / "book" / "array.py"
    source = book.read_text()
    edited = source.replace("bid_quantity = book[_LEVELS + bid]", "bid_quantity = book[_LEVELS + bid] + 1_000_000")
    assert edited != source
    book.write_text(edited)
    assert run() == before + 1_000_000
