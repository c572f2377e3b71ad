"""Does the diagnosis name what was injected? A judgement on Recordings whose meta has ``injections``.

A trial is *found* when, in the interval that its injector recorded, the diagnosis names the right cause and the
injector's identity (a tid, an address, a vector), for as long as the injector says: not shorter than it held the
thread at least, not longer than it held it at most, give or take a fifth or 50 µs, whichever is more. A control, in
which nothing was injected, counts as a *false cause* when an injector's identity is named in it. What the host does
meanwhile is neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.counters import usable_probes
from sysmeter.analysis.diagnosis import held, timelines_of
from sysmeter.analysis.intervals import wilson

if TYPE_CHECKING:
    from sysmeter.recording import Recording

CONTROL = "control"
NOTHING = "nothing"
WRONG_LENGTH = "wrong length"

RECALL_GOAL_FRAC = 0.99
FALSE_GOAL_FRAC = 0.01
EXPLAINED_GOAL_FRAC = 0.99
# With fewer trials than this, one miss is as much as the goal allows and more, so one is forgiven.
FULL_TRIALS = 300

TOLERANCE_FRAC = 0.2
TOLERANCE_NS = 50_000

MET = "goal met"
QUICK_PASSED = "quick form passed"  # too few trials to prove the goal, and nothing against it
MISSED = "goal missed"
UNPROVEN = "not proven"

_HEX = re.compile(r"0x[0-9a-f]+")
_Part = Mapping[str, Any]
_Identity = Mapping[str, Any]


def _addresses(part: _Part) -> list[int]:
    return [int(word, 16) for word in _HEX.findall(part["detail"])]


def _is_page_fault(part: _Part, identity: _Identity) -> bool:
    low, high = identity["address"], identity["address"] + identity["n_bytes"]
    addresses = _addresses(part)
    return part["cause"] == causes.PAGE_FAULT and bool(addresses) and all(low <= at < high for at in addresses)


def _is_preemption(part: _Part, identity: _Identity) -> bool:
    words = re.split(r"[\s,()]+", part["detail"])
    return part["cause"] == causes.PREEMPTED and f"{identity['comm']}/{identity['tid']}" in words


def _is_mutex(part: _Part, identity: _Identity) -> bool:
    is_futex = part["cause"] == causes.VOLUNTARY and "futex" in part["detail"]
    return is_futex and identity["address"] in _addresses(part)


def _is_migration(part: _Part, identity: _Identity) -> bool:
    source, target = identity["cpus"]
    return part["cause"] == causes.MIGRATED and f"CPU {source} -> {target}," in f"{part['detail']},"


def _is_collection(part: _Part, identity: _Identity) -> bool:
    words = part["detail"].split()
    is_its = f"generation {identity['generation']} in" in part["detail"]
    return part["cause"] == causes.COLLECTION and is_its and any(word.endswith(f"/{identity['tid']}") for word in words)


# For each injected cause: is this part of a diagnosis that cause, and that injector's?
_MATCHES: dict[str, Callable[[_Part, _Identity], bool]] = {
    "preemption": _is_preemption,
    "sleep": lambda part, identity: part["cause"] == causes.VOLUNTARY and identity["syscall"] in part["detail"],
    "mutex": _is_mutex,
    "page_fault": _is_page_fault,
    "stall": lambda part, _identity: part["cause"] == causes.INJECTED_STALL,
    "interrupt": lambda part, identity: (
        part["cause"] == causes.INTERRUPT and part["detail"].startswith(identity["vector"])
    ),
    "stop": lambda part, _identity: part["cause"] == causes.STOPPED,
    "migration": _is_migration,
    "quota": lambda part, _identity: part["cause"] == causes.THROTTLED,
    "collection": _is_collection,
}


def judge_recording(recording: Recording) -> list[dict[str, Any]]:
    """Each injection of a Recording with what the diagnosis says of it: see :func:`judge_trials`."""
    rows: list[dict[str, Any]] = recording.meta["injections"]
    timelines = timelines_of(recording)
    parts = [held(recording, row["thread"], row["t_begin_ns"], row["t_end_ns"], timelines) for row in rows]
    return judge_trials(rows, parts, [_n_interrupts(recording, row) for row in rows])


def _n_interrupts(recording: Recording, row: Mapping[str, Any]) -> int:
    """How many interrupts from another CPU the thread took in the interval."""
    events = recording["kernel_events"]
    kinds = (records.INTERRUPT_CALL_FUNCTION, records.INTERRUPT_CALL_FUNCTION_SINGLE)
    is_one = (events["kind"] == records.EVENT_INTERRUPT) & np.isin(events["detail"], kinds)
    is_one &= events["tid"] == recording.meta["threads"][row["thread"]]["tid"]
    return int((is_one & (events["t_ns"] >= row["t_begin_ns"]) & (events["t_ns"] <= row["t_end_ns"])).sum())


def judge_trials(
    rows: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[_Part]], n_interrupts: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Judge the injections of one Recording.

    Args:
        rows: its ``injections``, see sysmeter.selftest.driver.
        parts: for each what :func:`sysmeter.analysis.diagnosis.held` gives for its interval.
        n_interrupts: for each how many interrupts from another CPU the thread took; where given, an injection of so
            many, whose time nobody but the thread can know, must show at least as many.

    Returns:
        for each ``{number, cause, named, named_ns, found, reason, parts}``. ``named`` is a cause that was injected
        somewhere in this Recording, "wrong length" or "nothing"; ``named_ns`` the time it was named for. In a control
        ``found`` means that no injector was named. ``reason`` is None or says what was wrong.
    """
    identities: dict[str, list[_Identity]] = {}
    for row in rows:
        if row["cause"] != CONTROL and row["identity"] not in identities.setdefault(row["cause"], []):
            identities[row["cause"]].append(row["identity"])
    taken = n_interrupts if n_interrupts is not None else [None] * len(rows)
    return [_judge(row, own, identities, n) for row, own, n in zip(rows, parts, taken, strict=True)]


def _judge(
    row: Mapping[str, Any],
    parts: Sequence[_Part],
    identities: Mapping[str, Sequence[_Identity]],
    n_interrupts: int | None,
) -> dict[str, Any]:
    named, named_ns, reason = NOTHING, 0, None
    if row["cause"] == CONTROL:
        named, named_ns = _strongest(parts, identities, _not_the_hosts(row))
        if named != NOTHING:
            reason = f"{named} named for {_us(named_ns)}, though nothing was injected"
    else:
        matches = _MATCHES[row["cause"]]
        own = [part["time_ns"] for part in parts if matches(part, row["identity"])]
        if own:
            named, named_ns = row["cause"], sum(own)
            reason = _wrong_length(row, named_ns) or _too_few(row, n_interrupts)
            named = named if reason is None else WRONG_LENGTH
        else:
            others = {cause: found for cause, found in identities.items() if cause != row["cause"]}
            named, named_ns = _strongest(parts, others, lambda _cause: True)
            most = max(parts, key=lambda part: part["time_ns"], default=None)
            instead = "nothing" if most is None else f"{most['cause']} {most['detail']} for {_us(most['time_ns'])}"
            reason = (
                f"not named; the most was {' '.join(instead.split())} of {_us(row['t_end_ns'] - row['t_begin_ns'])}"
            )
    return {
        "number": row["number"],
        "cause": row["cause"],
        "named": named,
        "named_ns": named_ns,
        "found": reason is None,
        "reason": reason,
        "parts": list(parts),
    }


def _not_the_hosts(row: Mapping[str, Any]) -> Callable[[str], bool]:
    """In a control, which causes would be false: an interrupt that the kernel counted by itself is the host's own."""
    interrupts = row["identity"].get("host_call_function_interrupts")
    return lambda cause: cause != "interrupt" or interrupts == 0


def _strongest(
    parts: Sequence[_Part], identities: Mapping[str, Sequence[_Identity]], counts: Callable[[str], bool]
) -> tuple[str, int]:
    """The injected cause that has the most of the parts' time, and its time; ("nothing", 0) for none."""
    times = {
        cause: sum(part["time_ns"] for part in parts if any(_MATCHES[cause](part, identity) for identity in found))
        for cause, found in identities.items()
        if counts(cause)
    }
    cause = max(times, key=lambda name: times[name], default=NOTHING)
    return (cause, times[cause]) if times.get(cause) else (NOTHING, 0)


def _wrong_length(row: Mapping[str, Any], named_ns: int) -> str | None:
    low, high = row["held_ns"], row["held_max_ns"]
    if low - tolerance_ns(low) <= named_ns <= high + tolerance_ns(high):
        return None
    was = _us(low) if high - low < 1_000 else f"{_us(low)} to {_us(high)}"
    return f"named for {_us(named_ns)}, held for {was} by the injector's record"


def _too_few(row: Mapping[str, Any], n_interrupts: int | None) -> str | None:
    wanted = row["identity"].get("n_interrupts", 0)
    if n_interrupts is None or n_interrupts >= wanted:
        return None
    return f"{n_interrupts} interrupts from another CPU seen, {wanted} injected"


def tolerance_ns(held_ns: int) -> int:
    """By how much a length may be wrong."""
    return max(TOLERANCE_NS, int(held_ns * TOLERANCE_FRAC))


def allowed(trials: int, goal_frac: float = FALSE_GOAL_FRAC) -> int:
    """How many of so many trials may go wrong: the goal's share, and one where that is less than one."""
    return max(1, int(trials * goal_frac + 1e-9))


def score(causes_injected: Sequence[str], trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all trials, of however many Recordings: ``causes``, ``controls``, ``confusion``, ``misses``."""
    by_cause = {cause: [row for row in trials if row["cause"] == cause] for cause in (*causes_injected, CONTROL)}
    names = [*causes_injected, WRONG_LENGTH, NOTHING]
    confusion = {
        cause: {name: sum(row["named"] == name for row in rows) for name in names} for cause, rows in by_cause.items()
    }
    figures = []
    for cause in causes_injected:
        n, named = len(by_cause[cause]), sum(row["found"] for row in by_cause[cause])
        bounds = wilson(named, n)
        figures.append(
            {
                "cause": cause,
                "injected": n,
                "named": named,
                "recall_frac": named / n if n else None,
                "recall_low_frac": None if bounds is None else bounds[0],
                "recall_high_frac": None if bounds is None else bounds[1],
            }
        )
    n_controls, n_false = len(by_cause[CONTROL]), sum(not row["found"] for row in by_cause[CONTROL])
    false_bounds = wilson(n_false, n_controls)
    return {
        "causes": figures,
        "controls": {
            "trials": n_controls,
            "false_causes": n_false,
            "false_frac": n_false / n_controls if n_controls else None,
            "false_high_frac": None if false_bounds is None else false_bounds[1],
        },
        "confusion": confusion,
        "misses": [
            {key: row.get(key) for key in ("recording", "number", "cause", "named", "named_ns", "reason", "parts")}
            for row in trials
            if not row["found"]
        ],
    }


def below_goal(scored: Mapping[str, Any]) -> list[str]:
    """What of the goal the trials do not reach, in words."""
    reasons = []
    for row in scored["causes"]:
        missed = row["injected"] - row["named"]
        if missed > allowed(row["injected"]) or missed == row["injected"] > 0:
            reasons.append(f"{row['cause']}: {missed} of {row['injected']} not found")
    controls = scored["controls"]
    if controls["false_causes"] > allowed(controls["trials"]):
        reasons.append(f"{controls['false_causes']} false causes in {controls['trials']} controls")
    return reasons


def explained_frac(tail: Mapping[str, Any]) -> float | None:
    """Witnessed and inferred together; None where there is no tail."""
    if tail["witnessed_frac"] is None or tail["inferred_frac"] is None:
        return None
    return float(tail["witnessed_frac"] + tail["inferred_frac"])


def verdict(
    scored: Mapping[str, Any], tail: Mapping[str, Any] | None, losses: Sequence[str], is_whole: bool
) -> tuple[str, list[str]]:
    """The verdict and its reasons.

    Args:
        scored: of :func:`score`.
        tail: an ordinary run's ``tail``, see sysmeter.analysis.diagnosis; None where there was no such run.
        losses: of :func:`losses_of`, over all Recordings.
        is_whole: every trial that was planned came about.
    """
    missed = below_goal(scored)
    unproven = list(losses)
    if tail is not None:
        explained = explained_frac(tail)
        if explained is None:
            unproven.append("the ordinary run has no tail to explain")
        elif explained < EXPLAINED_GOAL_FRAC:
            missed.append(f"only {100 * explained:.2f} % of the ordinary run's tail is witnessed or inferred")
    if not any(row["injected"] for row in scored["causes"]):
        unproven.append("nothing was injected")
    if not is_whole:
        unproven.append("not every trial that was planned came about")
    if losses:
        return UNPROVEN, [*unproven, *missed]
    if missed:
        return MISSED, [*missed, *unproven]
    if unproven:
        return UNPROVEN, unproven
    is_full = all(row["injected"] >= FULL_TRIALS for row in scored["causes"] if row["injected"])
    return (MET if is_full else QUICK_PASSED), []


def losses_of(recording: Recording) -> list[str]:
    """Why a Recording's kernel events may not be whole: a probe that was not there, or lost events."""
    reasons = []
    for name, probe in usable_probes(recording.meta).items():
        if probe.get("status") != "ok":
            reasons.append(f"the probe {name} is {probe.get('status')}: {probe.get('reason') or 'no reason given'}")
        elif probe.get("lost"):
            reasons.append(f"the probe {name} lost {probe['lost']:,} events")
        elif probe.get("missed"):
            reasons.append(f"the kernel skipped the probe {name} {probe['missed']:,} times")
    return reasons


def _us(time_ns: int) -> str:
    return f"{time_ns / 1_000:,.1f} µs"
