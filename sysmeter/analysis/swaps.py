"""The verdict on each swap: did it break the zero and move the histogram it should, and change nothing else?

Three words, for the default and for each swap:

- *as predicted*: everything the swap predicts was seen by two sources that agree, or by an interval that
  excludes 0.
- *not as predicted*: something was shown to be otherwise. A decision differs or a message is lost; the zero
  that should break held, by both sources; the histogram moved the other way, or the interval is so narrow
  around 0 that a move of a fiftieth of the default's level would have shown.
- *not proven*: neither was shown, and ``reason`` says why. A counter of one source, or of two that differ; an
  interval that includes 0 and is wide; a mutex that never had to sleep, since that takes chance.

One thing shown to be wrong decides, however much else is not proven. Zeros that broke beyond the prediction
are listed and change no verdict of a swap. For the default, which predicts nothing, each zero is a claim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sysmeter.analysis.intervals import CONFIDENCE_PERCENT, Move, paired_move
from sysmeter.analysis.swapruns import DEFAULT, ZEROS
from sysmeter.analysis.zeros import (
    ALLOCATIONS,
    BROKEN_BY_CHANCE,
    describe_counters,
    extra_breaks,
    is_broken,
    parts,
    why_not_audited,
    why_unproven,
)
from sysmeter.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sysmeter.analysis.swapruns import SwapRun

AS_PREDICTED, NOT_AS_PREDICTED, UNPROVEN = "as predicted", "not as predicted", "not proven"

# A move smaller than this part of the default's level is "did not move", where the interval is as narrow.
NO_MOVE_PART = 0.02
# Of what a stall adds to the messages that it holds, think may have this part: the backlog's one large batch.
STAYS_PART = 0.05
# And the level of what must stay is not to move by more than this part of itself.
STAYS_UNPROVEN_PART = 0.5  # an interval wider than this either way shows nothing
STAYS_LEVEL_PART = 0.1


@dataclass(frozen=True)
class Prediction:
    """What a swap predicts. ``figure`` names the level that is compared, see :class:`SwapRun`.

    ``one_in``: only each N-th message pays. ``stays``: the histogram that must not move with it. ``by_ns`` is what
    the piece costs more when measured alone (a stall: half its length), for comparison only.
    """

    name: str
    breaks: str | None = None
    histogram: str | None = None
    figure: str | None = None
    one_in: int | None = None
    stays: str | None = None
    by_ns: float | None = None


@dataclass
class _Findings:
    """What is wrong and what is open, in words."""

    wrong: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return NOT_AS_PREDICTED if self.wrong else UNPROVEN if self.open else AS_PREDICTED

    @property
    def reason(self) -> str | None:
        return "; ".join(self.wrong + self.open) or None


def judge(prediction: Prediction, runs: Sequence[SwapRun], no_audit: str | None = None) -> dict[str, Any]:
    """One entry of the result's ``swaps``.

    ``runs`` are all runs of the comparison in the order they were made, those of the other combinations
    included; ``no_audit`` says why there was no audit pass.
    """
    findings = _Findings()
    own = [run for run in runs if run.combination == prediction.name]
    default = [run for run in runs if run.combination == DEFAULT]
    decisions = _decisions(own, findings)
    _check_flow(own, default, findings)
    figures = dict.fromkeys(figure for run in runs for figure in run.levels_ns)
    moves = {figure: _move(prediction.name, figure, runs) for figure in figures}
    if prediction.name == DEFAULT:
        moves = dict.fromkeys(moves)
        for name in ZEROS:
            _check_default_zero(name, own, no_audit, findings)
    else:
        _check_break(prediction.breaks, own, default, no_audit, findings)
        _check_move(prediction, moves, findings)
        if prediction.figure == "stall" and not all(run.n_stalls for run in own if not run.is_audit):
            findings.open.append("no stall fell into a run, which was too short")
    move = moves.get(prediction.figure or "")
    has_moved = move is not None and move.excludes_zero()
    return {
        "name": prediction.name,
        "predicts": {
            "breaks": prediction.breaks,
            "histogram": prediction.histogram,
            "by_ns": prediction.by_ns,
            "figure": prediction.figure,
            "one_in": prediction.one_in,
            "stays": prediction.stays,
        },
        "observed": {
            "counters": describe_counters(own),
            "extra_breaks": extra_breaks(own, prediction.breaks),
            "histogram": prediction.histogram if has_moved else None,
            "by_ns": None if move is None else move.by_ns,
            "interval_ns": None if move is None else move.interval_ns,
            "base_ns": None if move is None else move.base_ns,
            "moves": {figure: _described(found) for figure, found in moves.items()},
            "total_p99_9_ns": _tails(own),
            "n_runs": sum(not run.is_audit for run in own),
        },
        "decisions": decisions,
        "verdict": findings.verdict,
        "reason": findings.reason,
    }


def worst(verdicts: Sequence[str]) -> str:
    """The verdict on all: one wrong decides, then one that is open."""
    for verdict in (NOT_AS_PREDICTED, UNPROVEN):
        if verdict in verdicts:
            return verdict
    return AS_PREDICTED


def _decisions(own: Sequence[SwapRun], findings: _Findings) -> dict[str, Any]:
    """Every run's decisions against the first default run's: common lines, equal ones, the first that differs."""
    compared = [run.decisions for run in own if run.decisions is not None]
    common = sum(found["common"] for found in compared)
    equal = sum(found["equal"] for found in compared)
    first = next((found["first_difference"] for found in compared if found["equal"] != found["common"]), None)
    if common != equal:
        findings.wrong.append(f"{common - equal:,} of {common:,} common decisions differ")
    if not compared:
        findings.open.append("there were no decisions to compare")
    elif any(found["common"] == 0 for found in compared):
        findings.open.append("a run has no decision in common with the default")
    return {"common": common, "equal": equal, "n_runs": len(compared), "first_difference": first}


def _check_flow(own: Sequence[SwapRun], default: Sequence[SwapRun], findings: _Findings) -> None:
    for run in own:
        reference = next((other for other in default if other.is_audit == run.is_audit), run)
        for key, value in run.flow.items():
            if value != reference.flow.get(key):
                text = f"{key} is {value} where the default has {reference.flow.get(key)}"
                if text not in findings.wrong:
                    findings.wrong.append(text)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _check_default_zero(name: str, own: Sequence[SwapRun], no_audit: str | None, findings: _Findings) -> None:
    counters = parts(own, name)
    if is_broken(counters):
        total = sum(part["value"] or 0 for part in counters)
        findings.wrong.append(f"{_words(name)}: {total:,}")
        return
    reason = why_unproven(counters)
    if name == ALLOCATIONS:
        reason = why_not_audited(own, no_audit) or reason
        timing = [run.counters["process"][name]["value"] or 0 for run in own if not run.is_audit]
        if sum(timing):
            findings.wrong.append(f"{_words(name)}: {sum(timing):,} in the timing passes, by numba's counter")
    if reason is not None:
        findings.open.append(f"{_words(name)}: {reason}")


def _check_break(
    name: str | None, own: Sequence[SwapRun], default: Sequence[SwapRun], no_audit: str | None, findings: _Findings
) -> None:
    if name is None:
        return
    for who, runs in (("the default", default), ("the swap", own)):
        not_audited = why_not_audited(runs, no_audit) if name == ALLOCATIONS else None
        if not_audited is not None:
            findings.open.append(not_audited)
            return
        counters = parts(runs, name)
        broken, unproven = is_broken(counters), why_unproven(counters)
        if runs is default:
            if broken:
                findings.open.append(f"{who} breaks the zero of {_words(name)} itself")
            elif unproven is not None:
                findings.open.append(f"{_words(name)} of {who}: {unproven}")
        elif not broken and unproven is not None:
            findings.open.append(f"{_words(name)}: {unproven}")
        elif not broken and name in BROKEN_BY_CHANCE:
            findings.open.append(f"{_words(name)} stayed 0: {BROKEN_BY_CHANCE[name]}")
        elif not broken:
            findings.wrong.append(f"{_words(name)} stayed 0, by both sources")


def _check_move(prediction: Prediction, moves: dict[str, Move | None], findings: _Findings) -> None:
    what = f"{prediction.histogram}"
    move = moves.get(prediction.figure or "")
    if move is None:
        findings.open.append(f"{what} has too few samples to compare")
        return
    if move.low_ns is None or move.high_ns is None:
        findings.open.append("one round gives no interval: ask for more --rounds")
        return
    if move.high_ns < 0:
        findings.wrong.append(f"{what} moved the other way, by {format_ns(round(move.by_ns, 1))}")
    elif not move.excludes_zero():
        level = moves.get(what)
        margin_ns = NO_MOVE_PART * (move if level is None else level).base_ns
        if move.within(margin_ns):
            words = f"{what} did not move, by {format_ns(round(margin_ns, 1))} or more ({CONFIDENCE_PERCENT} % sure)"
            findings.wrong.append(words)
        else:
            findings.open.append(
                f"the interval of {what}'s move includes 0: the host is too noisy for so small a move in "
                f"{move.n_rounds} rounds; more --rounds or --seconds may tell"
            )
    whole = moves.get(what)
    if prediction.figure not in (what, "stall") and whole is not None and (whole.high_ns or 0) < 0:
        # The contrast within a run says one thing and the level between runs the other: neither is then proven.
        findings.open.append(f"{what} as a whole moved the other way, by {format_ns(round(whole.by_ns, 1))}")
    if prediction.stays is not None:
        _check_stays(prediction.stays, move, moves, findings)


def _check_stays(name: str, move: Move, moves: dict[str, Move | None], findings: _Findings) -> None:
    """Of the messages that a stall holds, and of all batches: think must not be what moved."""
    held, level = moves.get(f"stall {name}"), moves.get(name)
    if level is not None and level.low_ns is not None and level.high_ns is not None:
        margin_ns = STAYS_LEVEL_PART * level.base_ns
        if level.low_ns >= margin_ns or level.high_ns <= -margin_ns:
            findings.wrong.append(f"{name} moved too, by {format_ns(round(level.by_ns, 1))}")
        elif not level.within(STAYS_UNPROVEN_PART * level.base_ns):
            findings.open.append(f"{name}'s interval is too wide to show that it stayed")
    else:
        findings.open.append(f"{name}'s level has no interval")
    if held is None or held.low_ns is None or held.high_ns is None:
        findings.open.append(f"{name} has too few samples to compare")
    elif held.low_ns > STAYS_PART * move.by_ns:
        findings.wrong.append(f"{name} of the messages held moved too, by {format_ns(round(held.by_ns, 1))}")
    elif held.high_ns > STAYS_PART * move.by_ns:
        findings.open.append(f"{name} of the messages held may have moved too, by up to {format_ns(held.high_ns)}")


def _move(name: str, figure: str, runs: Sequence[SwapRun]) -> Move | None:
    """Each of the swap's timing runs against the default runs made just before and just after it."""
    timing = [run for run in runs if not run.is_audit]
    pairs = []
    for at, run in enumerate(timing):
        level = run.levels_ns.get(figure)
        if run.combination != name or level is None:
            continue
        beside = [
            other.levels_ns.get(figure)
            for other in timing[max(0, at - 1) : at + 2 : 1]
            if other is not run and other.combination == DEFAULT
        ]
        known = [value for value in beside if value is not None]
        if known:
            pairs.append((level, known))
    return paired_move(pairs)


def _described(move: Move | None) -> dict[str, Any] | None:
    if move is None:
        return None
    return {"by_ns": move.by_ns, "interval_ns": move.interval_ns, "base_ns": move.base_ns, "n_rounds": move.n_rounds}


def _tails(own: Sequence[SwapRun]) -> list[int | None]:
    """p99.9 of total in each timing run: what the host adds stands in it too."""
    return [(run.latency.get("total") or {}).get("p99_9_ns") for run in own if not run.is_audit]
