"""Every component that is found, through the same contract; and the injected stall, as counts of slow samples."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from capstone import combination, feedfile, generator
from sysmeter import records
from sysmeter.analysis.tail import intended_ns
from tests.support.capstone_runs import run_capstone
from tests.unit.test_capstone_loop import assert_decisions, oracle_decisions

SWAPS = [(slot, name) for slot in ("book", "queue") for name in combination.names(slot)]


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    path = tmp_path_factory.mktemp("feed") / "market.feed"
    generator.make_file(path, 60_000, 9)
    return path


@pytest.mark.parametrize(("slot", "name"), SWAPS)
@pytest.mark.parametrize("changes", [{}, {"mode": "paced", "rate_hz": 300_000}])
def test_order_is_kept_and_nothing_is_lost_or_duplicated(market, slot, name, changes):
    done, arrays = run_capstone(market, **{slot: name}, **changes)
    messages = feedfile.read(market).messages
    run = done["run"]
    assert run["n_popped"] == run["n_released"] == len(messages)
    # The feed handler counts a number that is skipped, or comes late or twice: none may.
    assert (run["sequence_gaps"], run["duplicates"], run["live"]) == (0, 0, True)
    assert_decisions(arrays["decisions"], oracle_decisions(messages))
    bound = importlib.import_module(f"capstone.swaps.queue.{name if slot == 'queue' else 'ring'}").SLOTS
    assert run["ring_slots"] == bound
    if bound is not None:
        assert arrays["batches"]["n_messages"].max() <= bound


@pytest.mark.parametrize(("slot", "name"), SWAPS)
def test_a_second_lap_starts_from_nothing(market, slot, name):
    done, arrays = run_capstone(market, **{slot: name}, loop=True, seconds=1.2)
    assert done["run"]["n_popped"] == 120_000
    messages = feedfile.read(market).messages
    expected = oracle_decisions(messages)
    last = int(messages["seq"][-1])
    assert_decisions(arrays["decisions"], expected | {seq + last: top for seq, top in expected.items()})


@pytest.mark.parametrize(("slot", "name"), [*SWAPS, ("stall", "none"), ("stall", "periodic")])
def test_each_says_what_it_is_and_what_it_changes(slot, name):
    module = importlib.import_module(f"capstone.swaps.{slot}.{name}")
    assert module.__doc__
    assert module.__doc__.splitlines()[0].endswith(".")
    if name != combination.DEFAULTS[slot]:
        for word in ("Changes:", "Breaks ", "Should move:"):
            assert word in module.__doc__
        assert module.PREDICTS["histogram"] in ("think", "total")
        assert f'"{module.PREDICTS["breaks"]}"' in module.__doc__ or module.PREDICTS["breaks"] is None


def test_allocating_components_allocate_what_they_say(market):
    n_messages = len(feedfile.read(market).messages)
    done, _arrays = run_capstone(market, queue="channel")
    # One block is there before the run; each further 31 messages need another.
    assert done["process"]["allocations"] == (n_messages - 1) // 31
    done, _arrays = run_capstone(market, book="tree")
    kinds = feedfile.read(market).messages["kind"]
    assert done["process"]["allocations"] == np.count_nonzero(kinds == feedfile.KIND_ADD)


def stalled(market, mode):
    rate_hz = 20_000
    done, arrays = run_capstone(
        market, mode=mode, rate_hz=rate_hz, stall="periodic", stall_every_ns=500_000_000, stall_for_ns=10_000_000
    )
    run = done["run"]
    decided = np.repeat(arrays["batches"]["t_decided_ns"], arrays["batches"]["n_messages"])
    numbers = np.arange(run["n_popped"])
    t0 = intended_ns(run["t_start_ns"], rate_hz, numbers) if mode == "paced" else arrays["releases"]
    return run, arrays["stalls"], t0, decided - t0


def test_paced_stall_is_charged_to_every_message_that_was_due(market):
    run, stalls, t0, total_ns = stalled(market, "paced")
    n_checked = 0
    for number, stall in enumerate(stalls):
        begin, end = int(stall["t_start_ns"]), int(stall["t_start_ns"] + stall["duration_ns"])
        if end > t0[-1]:
            continue  # the feed ended before the stall did
        n_checked += 1
        # What was due in the stall was waiting at its end, at least while the feed thread was there to push it.
        assert stall["n_waited"] > 0
        assert begin >= run["t_start_ns"] + (number + 1) * 500_000_000
        assert stall["duration_ns"] >= 10_000_000
        of_stall = (t0 >= begin) & (t0 < end)
        # 20,000 messages a second are due on schedule, stall or not: 200 in its 10 ms.
        assert np.count_nonzero(of_stall) in (
            int(stall["duration_ns"]) // 50_000,
            int(stall["duration_ns"]) // 50_000 + 1,
        )
        # Each waits at least to the stall's end: evenly from 0 to its length, whatever the host adds.
        assert (total_ns[of_stall] >= end - t0[of_stall]).all()
    assert n_checked >= 3


def test_a_stall_is_no_part_of_think(market):
    """It lies before the pop. A host that takes the CPU inside a batch adds to think, so the best of three counts."""
    shortest = []
    for _ in range(3):
        done, arrays = run_capstone(
            market, mode="paced", rate_hz=20_000, stall="periodic", stall_every_ns=500_000_000, stall_for_ns=10_000_000
        )
        batches = arrays["batches"]
        for stall in arrays["stalls"][:4]:
            end = int(stall["t_start_ns"] + stall["duration_ns"])
            after = batches[np.searchsorted(batches["t_popped_ns"], end)]
            shortest.append(int(after["t_decided_ns"] - after["t_popped_ns"]))
        assert done["run"]["live"]
    assert min(shortest) < 5_000_000


def test_flat_stall_is_charged_once_to_what_was_queued(tmp_path):
    # A run that meets its stalls: 3,000,000 messages take longer than 40 ms on any machine.
    path = tmp_path / "long.feed"
    generator.make_file(path, 60_000, 9)
    done, arrays = run_capstone(
        path,
        loop=True,
        rate_hz=100_000,
        seconds=30.0,
        stall="periodic",
        stall_every_ns=20_000_000,
        stall_for_ns=10_000_000,
    )
    stalls = arrays["stalls"]
    assert len(stalls) >= 1
    assert (stalls["n_waited"] <= 4096).all()
    # The feed thread fills the queue within a fraction of the stall and then waits.
    assert stalls["n_waited"][0] == 4096
    decided = np.repeat(arrays["batches"]["t_decided_ns"], arrays["batches"]["n_messages"])
    for stall in stalls:
        begin, end = int(stall["t_start_ns"]), int(stall["t_start_ns"] + stall["duration_ns"])
        # Pushed before the stall was over, decided after it: what the queue held, and no more.
        waited = (arrays["releases"] < end) & (decided > end)
        assert np.count_nonzero(waited) <= 4096
        pushed_late = (arrays["releases"] >= begin) & (arrays["releases"] < end)
        assert np.count_nonzero(pushed_late) <= 4096
    assert done["run"]["n_popped"] == 3_000_000


def test_stall_records_fit_the_recordings_dtype(market):
    _run, stalls, _t0, _total = stalled(market, "flat")
    assert stalls.dtype == records.STALL
