"""The judgement on injected causes, on made-up diagnoses."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import pytest

from sysmeter.analysis import causes, selftest
from sysmeter.analysis.intervals import wilson

RIVAL = {"comm": "sysmeter-rival", "tid": 77}
IDENTITIES: dict[str, dict[str, Any]] = {
    "preemption": RIVAL,
    "sleep": {"syscall": "clock_nanosleep"},
    "mutex": {"address": 0x7F0000005180},
    "page_fault": {"address": 0x7F0000006000, "n_bytes": 0x100000},
    "stall": {},
    "interrupt": {"vector": "call function"},
    "stop": {},
    "migration": {"cpus": [1, 0]},
    "quota": {},
    "collection": {"generation": 2, "tid": 9},
}
# What the diagnosis calls each, and what is alike and is not it.
NAMED = {
    "preemption": (causes.PREEMPTED, "sysmeter-rival/77"),
    "sleep": (causes.VOLUNTARY, "in clock_nanosleep"),
    "mutex": (causes.VOLUNTARY, "in futex at 0x7f0000005180"),
    "page_fault": (causes.PAGE_FAULT, "at 0x7f0000006000 to 0x7f0000105fff"),
    "stall": (causes.INJECTED_STALL, "asked for with --stall-every"),
    "interrupt": (causes.INTERRUPT, "call function single"),
    "stop": (causes.STOPPED, "by a signal or tracer"),
    "migration": (causes.MIGRATED, "CPU 1 -> 0, moved by migration/1/21"),
    "quota": (causes.THROTTLED, "CPU quota used up"),
    "collection": (causes.COLLECTION, "generation 2 in thread collector/9 while the lock was waited for"),
}
NOT_NAMED = {
    "preemption": [(causes.PREEMPTED, "sysmeter-rival/771"), (causes.RUN_QUEUE, "sysmeter-rival/77")],
    "sleep": [(causes.VOLUNTARY, "in futex at 0x7f0000005180"), (causes.SYSTEM_CALL, "clock_nanosleep")],
    "mutex": [(causes.VOLUNTARY, "in futex at 0x7f00000051800"), (causes.SYSTEM_CALL, "futex")],
    "page_fault": [
        (causes.PAGE_FAULT, "at 0x7f0000106000"),
        (causes.PAGE_FAULT, "at 0x7f0000005000 to 0x7f0000006fff"),
    ],
    "stall": [(causes.OUTSIDE_GUEST, "the hypervisor had the CPU")],
    "interrupt": [(causes.INTERRUPT, "local timer"), (causes.SOFTIRQ, "RCU")],
    "stop": [(causes.PREEMPTED, "idle")],
    "migration": [
        (causes.MIGRATED, "CPU 0 -> 1, moved by migration/0/21"),
        (causes.MIGRATED, "CPU 11 -> 0, moved by x/1"),
    ],
    "quota": [(causes.PREEMPTED, "idle")],
    "collection": [
        (causes.COLLECTION, "generation 2, own thread"),
        (causes.COLLECTION, "generation 1 in thread collector/9 while the lock was waited for"),
        (causes.COLLECTION, "generation 2 in thread other-1/99 while the lock was waited for"),
    ],
}


def row(cause, number=0, held_ns=1_000_000, held_max_ns=None, length_ns=2_000_000, **identity):
    return {
        "number": number,
        "cause": cause,
        "thread": "strategy",
        "t_begin_ns": 5_000_000,
        "t_end_ns": 5_000_000 + length_ns,
        "held_ns": held_ns,
        "held_max_ns": held_ns if held_max_ns is None else held_max_ns,
        "identity": identity or IDENTITIES.get(cause, {}),
    }


def part(cause, detail, time_ns=1_000_000):
    return {"cause": cause, "detail": detail, "evidence": causes.WITNESSED, "time_ns": time_ns}


def control(interrupts: int | None = 0):
    return row("control", host_call_function_interrupts=interrupts)


def judged(rows, parts):
    return selftest.judge_trials(rows, parts)


@pytest.mark.parametrize("cause", list(NAMED))
def test_the_right_words_are_found(cause):
    found = judged([row(cause)], [[part(*NAMED[cause])]])[0]
    assert (found["found"], found["named"], found["named_ns"], found["reason"]) == (True, cause, 1_000_000, None)


@pytest.mark.parametrize(("cause", "words"), [(cause, words) for cause, rows in NOT_NAMED.items() for words in rows])
def test_words_that_are_nearly_right_are_not(cause, words):
    found = judged([row(cause)], [[part(*words)]])[0]
    assert (found["found"], found["named"]) == (False, "nothing")
    assert words[0] in found["reason"]
    assert words[1] in found["reason"]


def test_a_page_fault_without_an_address_is_nobodys():
    assert not judged([row("page_fault")], [[part(causes.PAGE_FAULT, "")]])[0]["found"]


def test_what_is_named_in_pieces_counts_together():
    parts = [part(causes.PREEMPTED, "sysmeter-rival/77", 600_000), part(*NAMED["sleep"], 9_000_000)]
    parts.append(part(causes.PREEMPTED, "sysmeter-rival/77 (return not seen; end by own clock)", 400_000))
    assert judged([row("preemption")], [parts])[0]["named_ns"] == 1_000_000


@pytest.mark.parametrize(
    ("held", "named_ns", "found"),
    [
        ((1_000_000, 1_000_000), 800_000, True),
        ((1_000_000, 1_000_000), 799_000, False),
        ((1_000_000, 1_000_000), 1_200_000, True),
        ((1_000_000, 1_000_000), 1_201_000, False),
        # Of short ones a fifth is less than the 50 µs that are allowed anyway.
        ((100_000, 100_000), 150_000, True),
        ((100_000, 100_000), 151_000, False),
        ((0, 20_000), 2_000, True),
        # Between the bounds of the injector's record anything goes.
        ((1_000_000, 3_000_000), 2_000_000, True),
        ((1_000_000, 3_000_000), 3_600_000, True),
        ((1_000_000, 3_000_000), 3_601_000, False),
    ],
)
def test_the_length_must_agree_within_a_fifth_or_50_us(held, named_ns, found):
    trial = judged([row("quota", held_ns=held[0], held_max_ns=held[1])], [[part(*NAMED["quota"], named_ns)]])[0]
    assert trial["found"] is found
    assert trial["named"] == ("quota" if found else "wrong length")
    assert (trial["reason"] is None) is found


def test_another_injectors_identity_is_told_apart_from_nothing():
    rows = [row("sleep"), row("mutex", 1)]
    found = judged(rows, [[part(*NAMED["mutex"])], [part(*NAMED["mutex"])]])
    assert [trial["named"] for trial in found] == ["mutex", "mutex"]
    assert [trial["found"] for trial in found] == [False, True]


def test_only_what_was_injected_in_this_recording_can_be_named_in_its_place():
    found = judged([row("sleep")], [[part(*NAMED["mutex"])]])[0]
    assert found["named"] == "nothing"


@pytest.mark.parametrize("cause", list(NAMED))
def test_an_identity_in_a_control_is_a_false_cause(cause):
    found = judged([row(cause), control()], [[], [part(causes.OWN_SERVICE, ""), part(*NAMED[cause], 1)]])[1]
    assert (found["found"], found["named"], found["named_ns"]) == (False, cause, 1)


def test_what_the_host_does_in_a_control_is_not():
    rows = [*(row(cause) for cause in NAMED if cause != "stall"), control()]
    host = [part(*words) for words in (*NOT_NAMED["preemption"][:1], *NOT_NAMED["interrupt"], *NOT_NAMED["page_fault"])]
    assert judged(rows, [*([] for _ in rows[:-1]), host])[-1]["found"]


@pytest.mark.parametrize(("interrupts", "is_false"), [(0, True), (1, False), (None, False)])
def test_an_interrupt_that_the_kernel_counted_by_itself_is_the_hosts(interrupts, is_false):
    found = judged([row("interrupt"), control(interrupts)], [[], [part(*NAMED["interrupt"], 2_000)]])[1]
    assert found["found"] is not is_false


# Source: R. G. Newcombe, Statistics in Medicine 17 (1998), 857, table I, method 3.
@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_bounds_are_the_published_ones(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(("successes", "trials"), [(30, 30), (29, 30), (0, 1), (1, 1), (297, 300), (300, 300)])
def test_wilsons_bounds_solve_their_equation(successes, trials):
    """At either bound the observed rate lies 1.96 standard errors away, those of the bound itself."""
    z = NormalDist().inv_cdf(0.975)
    for bound in wilson(successes, trials):
        distance = abs(successes / trials - bound)
        assert distance**2 == pytest.approx(z**2 * bound * (1 - bound) / trials, abs=1e-12)


def test_without_a_trial_there_are_no_bounds():
    assert wilson(0, 0) is None


def trials(cause, n, n_found, named="nothing"):
    good = "nothing" if cause == "control" else cause
    return [
        {"number": k, "cause": cause, "named": good if k < n_found else named, "found": k < n_found, "reason": None}
        for k in range(n)
    ]


def scored(*rows):
    return selftest.score(["sleep", "mutex"], [trial for found in rows for trial in found])


def test_figures_of_all_trials():
    found = scored(trials("sleep", 30, 28), trials("mutex", 30, 29, "sleep"), trials("control", 30, 29, "sleep"))
    sleep, mutex = found["causes"]
    assert (mutex["cause"], mutex["injected"], mutex["named"]) == ("mutex", 30, 29)
    assert (sleep["cause"], sleep["injected"], sleep["named"]) == ("sleep", 30, 28)
    assert sleep["recall_frac"] == pytest.approx(28 / 30)
    assert sleep["recall_low_frac"] == wilson(28, 30)[0]
    assert found["controls"]["trials"] == 30
    assert found["controls"]["false_causes"] == 1
    assert found["confusion"]["sleep"] == {"sleep": 28, "mutex": 0, "wrong length": 0, "nothing": 2}
    assert found["confusion"]["mutex"] == {"sleep": 1, "mutex": 29, "wrong length": 0, "nothing": 0}
    assert found["confusion"]["control"] == {"sleep": 1, "mutex": 0, "wrong length": 0, "nothing": 29}
    for cause, counts in found["confusion"].items():
        assert sum(counts.values()) == 30, cause
    assert len(found["misses"]) == 4


def test_a_cause_without_a_trial_has_no_recall():
    assert scored(trials("sleep", 3, 3))["causes"][1]["recall_frac"] is None


@pytest.mark.parametrize(
    ("n", "missed", "is_good"),
    [(30, 0, True), (30, 1, True), (30, 2, False), (300, 3, True), (300, 4, False), (1, 1, False), (1, 0, True)],
)
def test_the_goal_forgives_one_in_a_hundred_and_at_least_one(n, missed, is_good):
    of_cause = scored(trials("sleep", n, n - missed), trials("mutex", n, n), trials("control", n, n))
    assert (selftest.below_goal(of_cause) == []) is is_good
    if n > 1:
        of_controls = scored(trials("sleep", n, n), trials("mutex", n, n), trials("control", n, n - missed, "sleep"))
        assert (selftest.below_goal(of_controls) == []) is is_good


TAIL = {"witnessed_frac": 0.97, "inferred_frac": 0.025, "unexplained_frac": 0.005}
GOOD = scored(trials("sleep", 30, 30), trials("mutex", 30, 30), trials("control", 30, 30))
FULL = scored(trials("sleep", 300, 300), trials("control", 300, 300))
BAD = scored(trials("sleep", 30, 20), trials("mutex", 30, 30), trials("control", 30, 30))


@pytest.mark.parametrize(
    ("figures", "tail", "losses", "is_whole", "expected"),
    [
        (GOOD, TAIL, [], True, selftest.QUICK_PASSED),
        (GOOD, None, [], True, selftest.QUICK_PASSED),
        (FULL, TAIL, [], True, selftest.MET),
        (BAD, TAIL, [], True, selftest.MISSED),
        (GOOD, {**TAIL, "witnessed_frac": 0.96}, [], True, selftest.MISSED),
        (GOOD, {**TAIL, "witnessed_frac": None}, [], True, selftest.UNPROVEN),
        (GOOD, TAIL, ["the probe interrupts lost 3 events"], True, selftest.UNPROVEN),
        (BAD, TAIL, ["the probe interrupts lost 3 events"], True, selftest.UNPROVEN),
        (GOOD, TAIL, [], False, selftest.UNPROVEN),
        (BAD, TAIL, [], False, selftest.MISSED),
        (scored(), TAIL, [], True, selftest.UNPROVEN),
    ],
)
def test_the_verdict(figures, tail, losses, is_whole, expected):
    verdict, reasons = selftest.verdict(figures, tail, losses, is_whole)
    assert verdict == expected
    assert bool(reasons) is (expected not in (selftest.MET, selftest.QUICK_PASSED))
    assert all(reason in reasons for reason in losses)
