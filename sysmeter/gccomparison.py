"""``sysmeter live --compare-gc``, without its words: the same workload under several collector policies, in turns.

A round runs each policy once, and each round begins with another one, so that a host that drifts does not look like
a policy. Every figure of a policy is the median over its runs, beside the lowest and the highest of them.

The result has schema ``sysmeter.live-gc/1``. ``policies`` holds one entry each: ``policy``, ``n_runs``, ``service`` and
``response`` with the percentiles as in ``sysmeter.live/1``, ``collections`` by generation, ``gc_time_ns``,
``rss_growth_bytes``; a figure is ``{"median", "low", "high"}``, null where a run has none. ``runs`` holds the single
figures in the order of the runs. Within the schema keys are only ever added.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sysmeter import __version__, session
from sysmeter.analysis.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path

    from sysmeter.session import LiveSettings, RunListener

SCHEMA = "sysmeter.live-gc/1"
DEFAULT_POLICIES = ("default", "off", "freeze", "threshold:10000")
SERVICE_KEYS = RESPONSE_KEYS = ("p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "max_ns")


@dataclass
class GcComparison:
    """What to compare. ``place`` is an existing directory; Recordings stay in it where ``keep`` says so.

    ``on_run`` is told of each run that is done: its number from 1, of how many, and its entry of ``runs``.
    """

    settings: LiveSettings
    policies: Sequence[str]
    rounds: int
    place: Path
    keep: bool = False
    listener: RunListener = field(default_factory=session.RunListener)
    on_run: Callable[[int, int, dict[str, Any]], None] = lambda _number, _total, _run: None


def schedule(policies: Sequence[str], rounds: int) -> list[str]:
    """The order of the runs.

    >>> schedule(["default", "off", "freeze"], 2)
    ['default', 'off', 'freeze', 'off', 'freeze', 'default']
    """
    order: list[str] = []
    for number in range(rounds):
        at = number % len(policies)
        order += [*policies[at:], *policies[:at]]
    return order


def compare(comparison: GcComparison) -> dict[str, Any]:
    """Carry out all runs; an interrupt ends it, and what was measured until then is the result.

    Raises:
        Interrupted: before any run was done.
        SysmeterError: a run failed.
    """
    plan = schedule(comparison.policies, comparison.rounds)
    runs: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    was_interrupted = False
    try:
        for number, policy in enumerate(plan, start=1):
            result = _run(comparison, number, policy)
            results.append(result)
            runs.append(_reduce(policy, result))
            comparison.on_run(number, len(plan), runs[-1])
    except (session.Interrupted, KeyboardInterrupt):
        was_interrupted = True
    if not runs:
        raise session.Interrupted("interrupted before the first run was done: there is nothing to compare")
    return {
        "schema": SCHEMA,
        "sysmeter_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {
            **asdict(comparison.settings),
            "cpus": list(comparison.settings.cpus),
            "rounds": comparison.rounds,
            "policies": list(comparison.policies),
        },
        "host": results[0]["host"],
        "clock": results[0]["clock"],
        "policies": [
            _summarize(policy, [run for run in runs if run["policy"] == policy]) for policy in comparison.policies
        ],
        "runs": runs,
        "n_runs_planned": len(plan),
        "interrupted": was_interrupted,
        "notes": _notes(results),
    }


def _run(comparison: GcComparison, number: int, policy: str) -> dict[str, Any]:
    """The result of one run. One that was cut short is none: its window is another one than that of the others."""
    place = comparison.place / f"{number:02}-{policy.replace(':', '-')}"
    recording = session.run(replace(comparison.settings, gc=policy), place, comparison.listener)
    try:
        if recording.meta["interrupted"] or recording.was_signalled:
            raise session.Interrupted(f"interrupted in run {number}")
        return summarize(recording)
    finally:
        if not comparison.keep:
            shutil.rmtree(place, ignore_errors=True)


def _reduce(policy: str, result: dict[str, Any]) -> dict[str, Any]:
    gc = result["gc"]
    return {
        "policy": policy,
        "service": {key: result["latency"]["service"][key] for key in SERVICE_KEYS},
        "response": {key: result["latency"]["response"][key] for key in RESPONSE_KEYS},
        "collections": gc["collections"],
        "gc_time_ns": None if gc["time_ns"] is None else sum(gc["time_ns"]),
        "rss_growth_bytes": result["memory"]["rss_growth_bytes"],
        "gc_agrees": result["counters"]["process"]["gc_collections"]["agrees"],
        "recording": result["recording"],
    }


def _summarize(policy: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    generations = [run["collections"] for run in runs if run["collections"] is not None]
    return {
        "policy": policy,
        "n_runs": len(runs),
        "service": {key: _spread([run["service"][key] for run in runs]) for key in SERVICE_KEYS},
        "response": {key: _spread([run["response"][key] for run in runs]) for key in RESPONSE_KEYS},
        "collections": [_spread(list(counts)) for counts in zip(*generations, strict=True)] or None,
        "gc_time_ns": _spread([run["gc_time_ns"] for run in runs]),
        "rss_growth_bytes": _spread([run["rss_growth_bytes"] for run in runs]),
    }


def _spread(values: list[int | None]) -> dict[str, float | int] | None:
    """Median, lowest and highest; None without a run, or where one of them has no such figure."""
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        return None
    return {"median": statistics.median(known), "low": min(known), "high": max(known)}


def _notes(results: list[dict[str, Any]]) -> list[str]:
    """Each run's notes with its policy; runs of one policy differ in figures, so a note of the first stands for all."""
    notes: dict[str, None] = {}
    told: set[str] = set()
    for result in results:
        policy = result["settings"]["gc"]
        if policy not in told:
            told.add(policy)
            notes.update(dict.fromkeys(f"{policy}: {note}" for note in result["notes"]))
    return list(notes)
