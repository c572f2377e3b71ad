"""``sysmeter selftest``, without its words: an ordinary run, runs with injected causes, and the verdict on both."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysmeter import __version__, session
from sysmeter.analysis import selftest as judgement
from sysmeter.analysis.diagnosis import diagnose
from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_INTERRUPTED, EXIT_NOT_PROVEN, EXIT_OK, SysmeterError
from sysmeter.selftest import plan
from sysmeter.selftest.driver import Driver
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    from sysmeter.recording import Recording
    from sysmeter.selftest.plan import Step
    from sysmeter.session import LiveSettings, RunListener, RunSettings

SCHEMA = "sysmeter.selftest/1"

ORDINARY_SECONDS = 10.0
ORDINARY_WARMUP_SECONDS = 1.0

# The live workload: a cache so small that a full collection takes some 50 ms, and time enough to catch up after it.
LIVE_RATE_HZ = 5_000
LIVE_ORDERS = 5_000

# Slow enough that the backlog of the longest injection stays far from filling the queue, and runs long enough
# to be few: up to 3,000,000 messages, of which every batch is kept (of up to 4,000,000 it is).
RATE_HZ = 50_000
WARMUP_SECONDS = 0.5
_MAX_RUN_NS = 58 * NS_PER_S
# Steps take what they take: the run goes on for so much longer than they should.
_SPARE_PART = 0.03
_SPARE_SECONDS = 1.0
# Steps that did not come about are tried again in a further run, so often at most.
_MAX_EXTRA_RUNS = 2
# Start, self-test of the probes and analysis of one run, roughly; only for the estimate that is printed.
_AROUND_A_RUN_SECONDS = 3.0


@dataclass
class SelfTest:
    """What to do. ``place`` is an existing directory; the Recordings stay in it where ``keep`` says so.

    ``settings`` are those of the ordinary run. ``on_run`` is told of each run of injections that is judged: its name,
    its trials, and how many of them were found.
    """

    settings: RunSettings
    causes: Sequence[str]
    trials: int
    seed: int
    place: Path
    keep: bool = False
    with_ordinary_run: bool = True
    listener: RunListener = field(default_factory=session.RunListener)
    on_run: Callable[[str, int, int], None] = lambda _name, _trials, _found: None


def expected_seconds(test: SelfTest) -> float:
    """How long it will take, roughly."""
    runs = [run for part in _parts(test) for run in plan.split(part.steps, _MAX_RUN_NS)]
    seconds = sum(_run_seconds(run) + _AROUND_A_RUN_SECONDS for run in runs)
    return seconds + (ORDINARY_SECONDS + _AROUND_A_RUN_SECONDS) * test.with_ordinary_run


def selftest(test: SelfTest) -> dict[str, Any]:
    """Carry out all runs and judge them; the result is of schema ``sysmeter.selftest/1``.

    An interrupt ends it early: what was done is judged all the same, and ``interrupted`` is set.

    Raises:
        Interrupted: by the user, before there was anything to judge.
        SysmeterError: a run failed.
    """
    return _SelfTest(test).carry_out()


def exit_code(result: dict[str, Any]) -> int:
    """0 the goal is met, 3 it is not, 4 that is not proven, 130 interrupted."""
    if result["interrupted"]:
        return EXIT_INTERRUPTED
    by_verdict = {judgement.MET: EXIT_OK, judgement.QUICK_PASSED: EXIT_OK, judgement.MISSED: EXIT_CLAIM_FAILED}
    return by_verdict.get(result["verdict"], EXIT_NOT_PROVEN)


@dataclass(frozen=True)
class _Part:
    """What is injected into one kind of workload: the name of its runs, the thread that is held, the steps."""

    name: str
    thread: str
    steps: Sequence[Step]
    settings: RunSettings | LiveSettings


def _parts(test: SelfTest) -> list[_Part]:
    capstone = replace(test.settings, rate_hz=RATE_HZ, warmup_seconds=WARMUP_SECONDS, loop=True, stall="injected")
    live = session.LiveSettings(
        cpus=(test.settings.cpus[1],),
        rate_hz=LIVE_RATE_HZ,
        warmup_seconds=WARMUP_SECONDS,
        orders=LIVE_ORDERS,
        takes_commands=True,
    )
    parts = []
    for name, causes, settings in (("injected", plan.CAPSTONE_CAUSES, capstone), ("live", plan.LIVE_CAUSES, live)):
        chosen = [cause for cause in causes if cause in test.causes]
        if chosen:
            steps = plan.make_plan(chosen, test.trials, test.seed)
            parts.append(_Part(name, settings.workload.worker, steps, settings))
    return parts


def _run_seconds(steps: Sequence[Step]) -> float:
    seconds = plan.duration_ns(steps) / NS_PER_S * (1 + _SPARE_PART)
    return round(WARMUP_SECONDS + seconds + _SPARE_SECONDS, 2)


class _SelfTest:
    def __init__(self, test: SelfTest) -> None:
        self._test = test
        self._trials: list[dict[str, Any]] = []
        self._skipped: dict[str, str] = {}
        self._failed: list[dict[str, Any]] = []
        self._losses: list[str] = []
        self._tail: dict[str, Any] | None = None
        self._host: dict[str, Any] = {}
        self._notes: list[str] = []
        self._recordings: list[str] = []
        self._interrupted = False
        self._n_pending = 0

    def carry_out(self) -> dict[str, Any]:
        try:
            self._run_all()
        except (KeyboardInterrupt, session.Interrupted):
            if not self._recordings:
                raise
            self._interrupted = True
        except SysmeterError as error:
            # One run of many failed: what came about before it is judged, and not all that was planned came about.
            if not self._trials:
                raise
            self._test.listener.note(f"a run failed, and the rest is left out: {error.message}")
            self._n_pending += 1
        return self._result()

    def _run_all(self) -> None:
        test = self._test
        if test.with_ordinary_run:
            self._run_ordinary()
        for part in _parts(test):
            self._run_part(part)

    def _run_part(self, part: _Part) -> None:
        pending = list(part.steps)
        n_runs = len(plan.split(pending, _MAX_RUN_NS))
        for number in range(1, n_runs + _MAX_EXTRA_RUNS + 1):
            if not pending or self._interrupted:
                break
            done = self._run_injections(part, number, plan.split(pending, _MAX_RUN_NS)[0])
            pending = [step for step in pending if step.number not in done and step.cause not in self._skipped]
        self._n_pending += len(pending)

    def _run_ordinary(self) -> None:
        settings = replace(
            self._test.settings, seconds=ORDINARY_SECONDS, warmup_seconds=ORDINARY_WARMUP_SECONDS, loop=True
        )
        recording = self._record("ordinary", settings, None)
        self._tail = diagnose(recording, n_episodes=0)["tail"]

    def _run_injections(self, part: _Part, number: int, steps: Sequence[Step]) -> set[int]:
        """The numbers of the steps that came about."""
        settings = replace(part.settings, seconds=_run_seconds(steps))
        name = f"{part.name}-{number}"
        recording = self._record(name, settings, Driver(steps, part.thread, round(WARMUP_SECONDS * NS_PER_S)))
        for cause, reason in recording.meta["injections_missing"].items():
            if cause not in self._skipped:
                self._skipped[cause] = reason
                self._test.listener.note(f"{cause} cannot be injected here: {reason}")
        self._failed += recording.meta["injections_failed"]
        judged = [{**row, "recording": name} for row in judgement.judge_recording(recording)]
        self._trials += judged
        self._test.on_run(name, len(judged), sum(row["found"] for row in judged))
        return {row["number"] for row in judged}

    def _record(
        self, name: str, settings: RunSettings | LiveSettings, companion: session.Companion | None
    ) -> Recording:
        place = self._test.place / name
        recording = session.run(settings, place, self._test.listener, companion)
        if not self._test.keep:
            shutil.rmtree(place, ignore_errors=True)
        self._recordings.append(name)
        self._host = recording.meta["host"]
        self._notes += [note for note in recording.meta["notes"] if note not in self._notes]
        self._losses += [f"{name}: {reason}" for reason in judgement.losses_of(recording)]
        self._interrupted = self._interrupted or recording.meta["interrupted"] or recording.was_signalled
        return recording

    def _result(self) -> dict[str, Any]:
        test = self._test
        chosen = [cause for cause in test.causes if cause not in self._skipped]
        scored = judgement.score(chosen, self._trials)
        is_whole = not self._interrupted and not self._n_pending and set(self._skipped) <= set(plan.MAY_BE_SKIPPED)
        verdict, reasons = judgement.verdict(scored, self._tail, self._losses, is_whole)
        tail = self._tail or {}
        return {
            "schema": SCHEMA,
            "sysmeter_version": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": {
                **asdict(test.settings),
                "cpus": list(test.settings.cpus),
                "causes": list(test.causes),
                "trials": test.trials,
                "seed": test.seed,
                "injections_rate_hz": RATE_HZ,
            },
            "host": self._host,
            "goal": {
                "recall_frac": judgement.RECALL_GOAL_FRAC,
                "false_frac": judgement.FALSE_GOAL_FRAC,
                "explained_frac": judgement.EXPLAINED_GOAL_FRAC,
                "is_full": test.trials >= judgement.FULL_TRIALS,
            },
            **scored,
            "skipped": [{"cause": cause, "reason": reason} for cause, reason in self._skipped.items()],
            "not_carried_out": self._failed,
            "ordinary_run": self._tail,
            "witnessed_frac": tail.get("witnessed_frac"),
            "inferred_frac": tail.get("inferred_frac"),
            "unexplained_frac": tail.get("unexplained_frac"),
            "recordings": [str(test.place / name) for name in self._recordings] if test.keep else [],
            "verdict": verdict,
            "reasons": reasons,
            "interrupted": self._interrupted,
            "notes": self._notes,
        }
