"""``sysmeter verify``, without its words: the runs of a comparison in their order, and the verdicts on them.

The combinations take turns, each swap between two runs of the default, so that a host that drifts does not look
like a swap. These are the timing passes. After them each combination has one short audit pass, in which calls
of libc's allocator are counted by uprobes, which cost microseconds each: nothing is timed there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysmeter import __version__, decisions, session
from sysmeter.analysis import claims as claim_rules
from sysmeter.analysis import swaps as verdicts
from sysmeter.analysis.intervals import CONFIDENCE_PERCENT
from sysmeter.analysis.summary import summarize
from sysmeter.analysis.swapruns import DEFAULT, SwapRun, facts_of
from sysmeter.errors import KernelError
from sysmeter.workload import die_with_parent, own_python

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.claims import Claim
    from sysmeter.analysis.swaps import Prediction
    from sysmeter.recording import Recording
    from sysmeter.session import RunListener, RunSettings

SCHEMA = "sysmeter.verify/1"

METHOD = (
    "Each run has one figure a histogram (think: one sample a batch; total: one a message): the mean of the "
    "middle half of the samples shorter than the gap threshold. Where only each N-th message pays, it is how much "
    "these are above the others, divided by N; for the stall, the mean response of the messages intended within "
    "the stalls' planned instants, in the default's runs as well. Each swap's run is set against the mean of the "
    "default runs just before and just after it, and the interval is Student's t, "
    f"{CONFIDENCE_PERCENT} %, over the rounds' differences."
)

_FIGURES = re.compile(r"\d[\d,.]*")

_AUDIT_SECONDS = 1.0
_AUDIT_WARMUP_SECONDS = 0.25
_MICRO_PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Combination:
    """A swap as a comparison makes it: what it changes in the settings, and what it predicts."""

    prediction: Prediction
    changes: Mapping[str, Any]


@dataclass
class Comparison:
    """What to compare. ``place`` is an existing directory; Recordings stay in it where ``keep`` says so.

    ``stall`` is period and length of the stalls, ns. ``on_run`` is told of each run that is done: its number
    from 1, of how many, and what it told.
    """

    settings: RunSettings
    swaps: Sequence[Combination]
    stall: tuple[int, int]
    rounds: int
    place: Path
    keep: bool = False
    claims: Sequence[Claim] = ()
    listener: RunListener = field(default_factory=session.RunListener)
    on_run: Callable[[int, int, SwapRun], None] = lambda _number, _total, _run: None


def schedule(swaps: Sequence[str], rounds: int) -> list[str]:
    """The order of the timing passes. Each swap's run stands between two default runs that no other of its has.

    >>> schedule(["tree", "channel"], 1)
    ['default', 'tree', 'default', 'channel', 'default']
    """
    order = []
    for _ in range(rounds):
        for swap in swaps:
            order += [DEFAULT, swap]
        if len(swaps) == 1:
            order.append(DEFAULT)
    return order if len(swaps) == 1 else [*order, DEFAULT]


def verify(comparison: Comparison) -> dict[str, Any]:
    """Carry out all passes and judge them; the result is of schema ``sysmeter.verify/1``.

    Raises:
        Interrupted: by the user; the Recordings so far stay where they were to be kept.
        SysmeterError: a run failed.
    """
    return _Verification(comparison).carry_out()


def exit_code(result: dict[str, Any]) -> int:
    """0: all as predicted and every claim holds; 3: something is otherwise; 4: something is not proven."""
    by_verdict = {verdicts.NOT_AS_PREDICTED: claim_rules.FAILS, verdicts.UNPROVEN: claim_rules.UNPROVEN}
    found = [row["verdict"] for row in result["claims"]]
    return claim_rules.exit_code([*found, by_verdict.get(result["verdict"], claim_rules.HOLDS)])


class _Verification:
    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._changes = {DEFAULT: {}, **{swap.prediction.name: swap.changes for swap in comparison.swaps}}
        self._runs: list[SwapRun] = []
        self._reference: npt.NDArray[Any] | None = None
        self._host: dict[str, Any] = {}
        self._notes: list[str] = []
        self._noted: set[str] = set()
        self._no_audit: str | None = None

    def carry_out(self) -> dict[str, Any]:
        names = [swap.prediction.name for swap in self._comparison.swaps]
        pieces = self._measure_pieces()
        plan = [(name, False) for name in schedule(names, self._comparison.rounds)]
        plan += [(name, True) for name in (DEFAULT, *names)]
        for number, (name, is_audit) in enumerate(plan, start=1):
            run = self._audit(number, name) if is_audit else self._time(number, name)
            if run is not None:
                self._runs.append(run)
                self._comparison.on_run(number, len(plan), run)
        return self._result(pieces)

    def _time(self, number: int, name: str) -> SwapRun:
        try:
            return self._run(number, name)
        except KernelError as error:
            if number > 1:
                raise
            # What can be measured without the kernel still is; nothing will be proven.
            self._no_audit = error.message
            self._comparison.listener.note(f"without probes: {error.message}; {error.hint}")
            return self._run(number, name)

    def _audit(self, number: int, name: str) -> SwapRun | None:
        if self._no_audit is not None:
            return None
        settings = self._comparison.settings
        assert settings.seconds is not None  # verify's option has a default
        size = {
            "seconds": min(_AUDIT_SECONDS, settings.seconds),
            "warmup_seconds": min(_AUDIT_WARMUP_SECONDS, settings.warmup_seconds),
        }
        try:
            return self._run(number, name, audit=True, **size)
        except KernelError as error:
            self._no_audit = error.message
            return None

    def _run(self, number: int, name: str, **changes: Any) -> SwapRun:
        comparison = self._comparison
        settings = replace(comparison.settings, **self._changes[name], probes=self._no_audit is None)
        place = comparison.place / f"{number:02}-{name}{'-audit' if changes else ''}"
        recording = session.run(replace(settings, **changes), place, comparison.listener)
        if recording.meta["interrupted"] or recording.was_signalled:
            raise session.Interrupted(f"interrupted in run {number}: there is no verdict")
        try:
            return self._reduce(recording, name)
        finally:
            if not comparison.keep:
                shutil.rmtree(place, ignore_errors=True)

    def _reduce(self, recording: Recording, name: str) -> SwapRun:
        result = summarize(recording)
        self._host = result["host"]
        if not recording.meta["settings"]["audit"]:
            for note in result["notes"]:
                # Runs of one combination differ in figures; the first one's note stands for all.
                alike = _FIGURES.sub("#", f"{name}: {note}")
                if alike not in self._noted:
                    self._noted.add(alike)
                    self._notes.append(f"{name}: {note}")
        compared = None
        if self._reference is None:
            self._reference = recording["decisions"]
        else:
            compared = decisions.compare(self._reference, recording["decisions"])
        predictions = [swap.prediction for swap in self._comparison.swaps]
        one_in = sorted({prediction.one_in for prediction in predictions if prediction.one_in is not None})
        facts = facts_of(recording, result, name, self._comparison.stall, one_in, compared)
        own = claim_rules.claims_for(self._comparison.claims, name)
        # Without an audit pass a timing pass says what it can of allocations too.
        chosen = [
            claim for claim in own if claim.needs_audit == facts.is_audit or (claim.needs_audit and self._no_audit)
        ]
        return replace(facts, claims=claim_rules.check(chosen, result))

    def _measure_pieces(self) -> dict[str, dict[str, float | None]]:
        """By combination, what its book and its queue cost alone, each in a process of its own."""
        pieces = {}
        for name, changes in self._changes.items():
            if name == DEFAULT or {"book", "queue"} & set(changes):
                try:
                    pieces[name] = self._measure_piece(replace(self._comparison.settings, **changes))
                except subprocess.CalledProcessError as error:
                    said = (error.stderr or "").strip().splitlines()
                    self._notes.append(f"{name} was not measured alone: {said[-1] if said else 'no reason given'}")
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    self._notes.append(f"{name} was not measured alone: {error}")
        return pieces

    @staticmethod
    def _measure_piece(settings: RunSettings) -> dict[str, float | None]:
        request = {key: getattr(settings, key) for key in ("cache_dir", "feed", "instrument", "book", "queue")}
        done = subprocess.run(
            [*own_python("capstone.micro"), json.dumps({**request, "cpu": settings.cpus[1]})],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MICRO_PATIENCE_SECONDS,
            check=True,
            preexec_fn=die_with_parent,
        )
        figures: dict[str, float | None] = json.loads(done.stdout)
        return figures

    def _alone_ns(self, prediction: Prediction, pieces: dict[str, dict[str, float | None]]) -> float | None:
        if prediction.figure == "stall":
            # Messages come evenly, so they wait from nothing to the whole stall.
            return self._comparison.stall[1] / 2
        default, own = pieces.get(DEFAULT), pieces.get(prediction.name)
        if default is None or own is None:
            return None
        # A swap changes one piece, so the other's difference is noise and is left out.
        key = "update_ns" if "book" in self._changes[prediction.name] else "push_pop_ns"
        with_it, without = own[key], default[key]
        return None if with_it is None or without is None else with_it - without

    def _result(self, pieces: dict[str, dict[str, float | None]]) -> dict[str, Any]:
        comparison = self._comparison
        predictions = [verdicts.Prediction(DEFAULT)]
        for swap in comparison.swaps:
            predictions.append(replace(swap.prediction, by_ns=self._alone_ns(swap.prediction, pieces)))
        judged = [verdicts.judge(prediction, self._runs, self._no_audit) for prediction in predictions]
        claims = [row for prediction in predictions for row in claim_rules.merge(self._runs_claims(prediction.name))]
        claims += self._claims_without_a_run(claims)
        return {
            "schema": SCHEMA,
            "sysmeter_version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": {
                **asdict(comparison.settings),
                "cpus": list(comparison.settings.cpus),
                "rounds": comparison.rounds,
                "stall_every_ns": comparison.stall[0],
                "stall_for_ns": comparison.stall[1],
            },
            "host": self._host,
            "method": METHOD,
            "alone": pieces,
            "swaps": judged,
            "claims": claims,
            "verdict": verdicts.worst([entry["verdict"] for entry in judged]),
            "runs": [_describe_run(run) for run in self._runs],
            "notes": self._notes,
        }

    def _claims_without_a_run(self, judged: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A claim that no run was there to check is not proven; it does not vanish."""
        found = {(row["combination"], row["key"], row["operator"]) for row in judged}
        rows = []
        for name in dict.fromkeys([*self._changes, *(claim.combination for claim in self._comparison.claims)]):
            if not name:
                continue
            for claim in claim_rules.claims_for(self._comparison.claims, name):
                if (name, claim.key, claim.operator) not in found:
                    was_run = name in self._changes
                    reason = f"no audit pass: {self._no_audit}" if was_run else "this combination was not run"
                    rows.append({**claim_rules.unproven(claim, reason), "combination": name})
        return rows

    def _runs_claims(self, name: str) -> list[list[dict[str, Any]]]:
        rows = [run.claims for run in self._runs if run.combination == name]
        return [[{**row, "combination": name} for row in own] for own in rows]


def _describe_run(run: SwapRun) -> dict[str, Any]:
    return {
        "combination": run.combination,
        "audit": run.is_audit,
        "levels_ns": run.levels_ns,
        "total_p99_9_ns": (run.latency.get("total") or {}).get("p99_9_ns"),
        "decisions": None if run.decisions is None else {key: run.decisions[key] for key in ("common", "equal")},
    }
