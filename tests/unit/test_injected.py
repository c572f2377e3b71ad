"""The component that does what it is asked: in the real loop, and what it costs when nobody asks."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from capstone import combination, generator, predictions
from sysmeter import injection
from sysmeter.selftest.commands import Commands, NotCarriedOut
from sysmeter.workload import Workload, own_python
from tests.support.capstone_runs import settings_for

SECONDS = 2.0


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """(the answers by name, the "done" event, its arrays, the commands after the run) of one run."""
    feed = tmp_path_factory.mktemp("feed") / "market.feed"
    generator.make_file(feed, 40_000, 9)
    settings = settings_for(
        feed, mode="paced", rate_hz=20_000, seconds=SECONDS, warmup_seconds=0.1, loop=True, stall="injected"
    )
    with Workload(own_python("capstone"), lambda _text: None) as workload:
        workload.send("prepare", settings=settings)
        ready = workload.receive("ready")
        commands = Commands(workload.share_array(ready["commands"]))
        workload.send("go")
        while not commands.words[injection.T_START]:
            time.sleep(0.002)
        time.sleep(0.2)
        answers = {
            "tell": commands.do(injection.DO_TELL),
            "sleep": commands.do(injection.DO_SLEEP, 2_000_000),
            "fault": commands.do(injection.DO_FAULT, 200),
            "spin": commands.do(injection.DO_SPIN, 40_000_000),
            "lock": _lock(commands, 0.02),
            "tell again": commands.do(injection.DO_TELL),
        }
        done = workload.receive("done")
        yield answers, done, workload.read_arrays(done["arrays"]), commands, ready


def _lock(commands, seconds):
    libc = ctypes.CDLL(None)
    mutex = ctypes.c_void_p(commands.words[injection.MUTEX :].ctypes.data)
    assert libc.pthread_mutex_lock(mutex) == 0
    try:
        number = commands.ask(injection.DO_LOCK)
        time.sleep(seconds)
        assert commands.words[injection.DONE] != number, "it took a mutex that is held"
    finally:
        libc.pthread_mutex_unlock(mutex)
    return commands.wait(number)


def length_ns(answer):
    return answer.t_end_ns - answer.t_begin_ns


def test_it_takes_as_long_as_it_was_asked_to(asked):
    answers = asked[0]
    assert length_ns(answers["sleep"]) >= 2_000_000
    assert length_ns(answers["spin"]) >= 40_000_000
    assert length_ns(answers["lock"]) > 5_000_000


def test_the_kernel_counted_what_it_did(asked):
    """getrusage of the thread itself, at the edges of its window: sleeps and faults have happened, not just time."""
    edges = asked[1]["edges"]["strategy"]
    grown = {name: edges["close"][name] - edges["open"][name] for name in ("voluntary_switches", "minor_faults")}
    assert grown["voluntary_switches"] == 2  # the sleep and the mutex
    assert 200 <= grown["minor_faults"] < 220
    assert edges["close"]["major_faults"] == edges["open"]["major_faults"]


def test_a_spin_is_a_stall_of_the_recording(asked):
    answers, _done, arrays, *_ = asked
    spin = answers["spin"]
    assert [(s["t_start_ns"], s["duration_ns"]) for s in arrays["stalls"]] == [(spin.t_begin_ns, length_ns(spin))]
    # 800 messages are due in it. The feed thread may be kept off its CPU for some of it, but not for all.
    assert arrays["stalls"]["n_waited"][0] > 0


def test_what_held_the_thread_is_a_gap_of_its_reads(asked):
    answers, _done, arrays, *_ = asked
    gaps = {(int(gap["t_start_ns"]), int(gap["t_end_ns"])) for gap in arrays["gaps_strategy"]}
    for name in ("sleep", "lock", "fault"):
        assert (answers[name].t_begin_ns, answers[name].t_end_ns) in gaps, name


def test_it_tells_where_it_runs_and_for_how_long_it_ran(asked):
    answers, _done, _arrays, _commands, ready = asked
    first, last = answers["tell"], answers["tell again"]
    assert first.cpu == last.cpu == ready["threads"]["strategy"]["cpu"]
    assert 0 < last.cpu_time_ns - first.cpu_time_ns <= last.t_end_ns - first.t_begin_ns
    # Asleep it used none.
    assert last.cpu_time_ns - first.cpu_time_ns <= last.t_end_ns - first.t_begin_ns - 2_000_000


def test_no_message_is_lost_and_no_decision_missing(asked):
    run = asked[1]["run"]
    assert run["n_popped"] == run["n_released"] == round(SECONDS * 20_000)
    assert (run["sequence_gaps"], run["duplicates"], run["live"]) == (0, 0, True)


def test_a_thread_that_has_ended_does_not_answer(asked):
    commands = asked[3]
    with pytest.raises(NotCarriedOut, match="did not answer"):
        commands.do(injection.DO_TELL)


def test_looking_for_a_command_costs_less_than_a_read_of_the_clock():
    """Both compiled, in the same minute, the best of several rounds: one load against a call into the vDSO."""
    from numba import njit

    from capstone.swaps.stall import injected
    from capstone.unsafe import clock_ns

    words = np.zeros(injected.n_words({}) + 1024, np.int64)
    stall = words[-(words.ctypes.data // 8) % 512 :][: injected.n_words({})]  # on a page's begin
    injected.initialize(stall, {})

    @njit
    def look(stall, n):
        found = 0
        for _ in range(n):
            found += injected.is_due(stall, 0)
        return found

    @njit
    def read_clock(n):
        last = 0
        for _ in range(n):
            last = clock_ns()
        return last

    def best(function, *arguments):
        function(*arguments, 10)
        times = []
        for _ in range(7):
            begin = time.perf_counter_ns()
            function(*arguments, 200_000)
            times.append(time.perf_counter_ns() - begin)
        return min(times)

    assert look(stall, 1_000) == 0
    stall[injection.ASKED] = 1
    assert look(stall, 1_000) == 1_000
    stall[injection.ASKED] = 0
    assert best(look, stall) < best(read_clock)


def test_it_is_no_swap():
    assert "injected" in combination.names("stall")
    assert [swap.component for swap in predictions.swaps() if swap.slot == "stall"] == ["periodic"]
    assert "stall/injected" not in predictions.unpredicted()
