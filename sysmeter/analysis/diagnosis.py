"""Where the tail comes from, schema ``sysmeter.diagnose/1``: what `diagnose` prints, and the last part of `run`.

Within the schema keys are only ever added. Times are integer nanoseconds, instants CLOCK_MONOTONIC, unknown values
null.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.attribution import Attribution, attribute, episode_parts, thread_times
from sysmeter.analysis.causes import EVIDENCE, Cause
from sysmeter.analysis.concurrency import concurrent_events
from sysmeter.analysis.corroboration import ANSWERS, NO
from sysmeter.analysis.interpreter import thread_name
from sysmeter.analysis.kernelevidence import kernel_evidence
from sysmeter.analysis.process import overlapping
from sysmeter.analysis.reads import column
from sysmeter.analysis.tail import SlowMessages, Threshold, beyond_bucket, find_tail, slow_messages, tail_histogram
from sysmeter.analysis.threadtime import why_not_inferred
from sysmeter.analysis.traps import MAX_TRAP_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from sysmeter.analysis.offcpu import OffCpu
    from sysmeter.analysis.timeline import Timeline
    from sysmeter.recording import Recording

SCHEMA = "sysmeter.diagnose/1"

# The slowest episodes are listed one by one; the causes of the whole tail have no such bound.
MAX_EPISODES = 100
MAX_EVENTS = 20

_NO_QUESTION = Cause("", "", "")


def diagnose(
    recording: Recording,
    above: int | str | None = None,
    n_episodes: int = MAX_EPISODES,
    evidence: tuple[Mapping[str, OffCpu], npt.NDArray[Any]] | None = None,
) -> dict[str, Any]:
    """The tail's causes and its slowest episodes, as JSON-ready values.

    Args:
        recording: of either workload.
        above: samples of at least this response time in ns, or from this percentile on (as text, such as ``"99"``), in
            place of those from p99.9 on.
        n_episodes: how many of the slowest episodes are listed.
        evidence: what :func:`kernel_evidence` gives, where the caller has it already.

    Raises:
        RecordingError: the Recording contradicts itself in a way that leaves no honest result.
    """
    off_cpu, events = kernel_evidence(recording) if evidence is None else evidence
    threshold, slow = _choose(recording, above)
    tail: dict[str, Any] = {
        "threshold_ns": threshold.ns,
        "threshold_source": threshold.source,
        "histogram": tail_histogram(recording),
        "samples": None,
        "n_episodes": None,
        "sample_time_ns": None,
        "wall_time_ns": None,
        **{f"{name}_frac": None for name in EVIDENCE},
        "wall": None,
        "n_reordered": None,
        "n_above_in_histogram": None,
        "n_above_found": None,
        "not_inferred_because": why_not_inferred(recording.meta),
    }
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "sysmeter_version": recording.meta["sysmeter_version"],
        "recording": None if recording.path is None else str(recording.path),
        "workload": recording.kind.name,
        "tail": tail,
        "causes": [],
        "episodes": [],
        "episodes_not_listed": 0,
        "concurrent": [],
        "corroboration": None,
        "edge_allowances": [],
    }
    if threshold.ns is None or slow is None:
        return result
    found = attribute(recording, off_cpu, slow, events)
    whole_ns, wall_ns = int(slow.total_ns.sum()), int(found.episodes.duration_ns.sum())
    tail["samples"], tail["n_episodes"] = len(slow), len(found.episodes)
    tail["sample_time_ns"], tail["wall_time_ns"] = whole_ns, wall_ns
    tail |= {f"{name}_frac": frac for name, frac in _fractions(found, "sample_time_ns", whole_ns).items()}
    tail["wall"] = {f"{name}_frac": frac for name, frac in _fractions(found, "wall_time_ns", wall_ns).items()}
    tail |= {f"{name}_ns": time_ns for name, time_ns in _times(found, "sample_time_ns").items()}
    tail["wall"] |= {f"{name}_ns": time_ns for name, time_ns in _times(found, "wall_time_ns").items()}
    tail["n_reordered"] = slow.n_reordered
    tail["n_above_in_histogram"], tail["n_above_found"] = beyond_bucket(recording, slow, threshold.ns)
    result["causes"] = _causes(found, whole_ns)
    listed = np.lexsort((found.episodes.t_start_ns, -found.episodes.peak_ns))[:n_episodes]
    result["episodes"] = _episodes(recording, found, events, listed)
    result["episodes_not_listed"] = len(found.episodes) - len(listed)
    result["concurrent"] = _concurrent(recording, found)
    result["corroboration"] = _corroborate(recording, found)
    result["edge_allowances"] = [
        {"thread": thread, "event": row.kind, "side": row.side, "allowance_ns": row.ns, "n_edges": row.n_edges}
        for thread, time_of in found.threads.items()
        for row in time_of.allowances
        if not row.is_pooled
    ]
    return result


def describe_tail(recording: Recording, off_cpu: Mapping[str, OffCpu], events: npt.NDArray[Any]) -> dict[str, Any]:
    """The ``tail`` of a run's result: the whole diagnosis in one object, with the shares as objects of their own."""
    found = diagnose(recording, evidence=(off_cpu, events))
    tail = found["tail"]
    described = {**tail, "sample_time": None, "wall_time": None}
    for key, shares, whole_ns in (
        ("sample_time", tail, tail["sample_time_ns"]),
        ("wall_time", tail["wall"], tail["wall_time_ns"]),
    ):
        if whole_ns is not None:
            parts = {f"{name}_{what}": shares[f"{name}_{what}"] for name in EVIDENCE for what in ("ns", "frac")}
            described[key] = {"whole_ns": whole_ns, **parts}
    lists = ("causes", "episodes", "episodes_not_listed", "concurrent", "corroboration", "edge_allowances")
    return {**described, **{key: found[key] for key in lists}}


def held(
    recording: Recording,
    thread: str,
    t_start_ns: int,
    t_end_ns: int,
    timelines: Mapping[str, Timeline] | None = None,
) -> list[dict[str, Any]]:
    """What held ``thread`` in ``[t_start_ns, t_end_ns)``: rows of ``cause``, ``detail``, ``evidence``, ``time_ns``.

    The rows add up to the interval's part within the thread's loop. For many intervals of one Recording, give the
    ``timelines`` of :func:`timelines_of`.
    """
    timeline = (timelines_of(recording) if timelines is None else timelines)[thread]
    start = np.array([max(t_start_ns, int(timeline.bounds_ns[0]))], np.int64)
    end = np.array([min(t_end_ns, int(timeline.bounds_ns[-1]))], np.int64)
    times = timeline.charge(start, np.maximum(start, end)).tolist()
    rows = [
        {**cause._asdict(), "time_ns": time_ns}
        for cause, time_ns in zip(timeline.causes, times, strict=True)
        if time_ns
    ]
    return sorted(rows, key=lambda row: -row["time_ns"])


def timelines_of(recording: Recording) -> dict[str, Timeline]:
    """The timeline of each measured thread over its whole loop."""
    off_cpu, events = kernel_evidence(recording)
    return {name: time_of.timeline for name, time_of in thread_times(recording, off_cpu, events).items()}


def _choose(recording: Recording, above: int | str | None) -> tuple[Threshold, SlowMessages | None]:
    if above is None:
        return find_tail(recording)
    if isinstance(above, str):
        return find_tail(recording, above)
    above_ns = above
    floor_ns = recording.meta["run"].get("tail_floor_ns") or 0
    if recording.meta["run"]["storage"] == "tail" and above_ns <= floor_ns:
        # The set of slow samples must be complete: slower ones than the slowest that was not kept.
        return Threshold(floor_ns + 1, "storage floor"), slow_messages(recording, floor_ns + 1)
    return Threshold(above_ns, "--above"), slow_messages(recording, above_ns)


def _times(found: Attribution, which: str) -> dict[str, int]:
    times = dict.fromkeys(EVIDENCE, 0)
    for (_, cause), charge in found.charges.items():
        times[cause.evidence] += getattr(charge, which)
    return times


def _fractions(found: Attribution, which: str, whole_ns: int) -> dict[str, float | None]:
    return {name: time_ns / whole_ns if whole_ns else None for name, time_ns in _times(found, which).items()}


def _causes(found: Attribution, whole_ns: int) -> list[dict[str, Any]]:
    rows = [
        {
            **cause._asdict(),
            "thread": thread,
            "sample_time_ns": charge.sample_time_ns,
            "wall_time_ns": charge.wall_time_ns,
            "share_frac": charge.sample_time_ns / whole_ns if whole_ns else None,
            "samples": charge.samples,
        }
        for (thread, cause), charge in found.charges.items()
    ]
    return sorted(rows, key=lambda row: (-row["sample_time_ns"], row["thread"], row["cause"], row["detail"]))


def _episodes(
    recording: Recording,
    found: Attribution,
    events: npt.NDArray[Any],
    listed: npt.NDArray[np.int64],
) -> list[dict[str, Any]]:
    episodes, parts = found.episodes, episode_parts(found, listed)
    durations_ns = episodes.duration_ns
    t_window_ns = recording.meta["run"].get("t_window_ns")
    rows = []
    for number in listed.tolist():
        t_start = int(episodes.t_start_ns[number])
        rows.append(
            {
                "t_start_ns": t_start,
                "since_window_ns": None if t_window_ns is None else t_start - t_window_ns,
                "duration_ns": int(durations_ns[number]),
                "peak_ns": int(episodes.peak_ns[number]),
                "n_messages": int(episodes.n_messages[number]),
                "parts": _part_rows(parts[number]),
                "late_tick": _late_tick(found, number),
                **_events_in(recording, found, events, number),
            }
        )
    return rows


def _part_rows(parts: dict[tuple[str, Cause], int]) -> list[dict[str, Any]]:
    rows = [{**cause._asdict(), "thread": thread, "time_ns": time} for (thread, cause), time in parts.items()]
    return sorted(rows, key=lambda row: (-row["time_ns"], row["thread"], row["cause"], row["detail"]))


def _late_tick(found: Attribution, number: int) -> str | None:
    """The strongest answer of the stretches outside the guest that held the episode's oldest message; None: no such."""
    given: set[int] = set()
    for thread, timeline in found.timelines.items():
        start, end = found.episodes.holds[thread].of(number)
        asked = replace(timeline, cause=found.threads[thread].late_tick, causes=())
        given |= set(np.unique(asked.parts(start, end)[1]).tolist())
    given.discard(-1)
    return ANSWERS[min(given)] if given else None


def _events_in(recording: Recording, found: Attribution, events: npt.NDArray[Any], number: int) -> dict[str, Any]:
    """Faults of the thread that held the message, at that time, and the process's collections.

    To threads that hold no interpreter lock a collection only ran beside them.
    """
    start, end = int(found.episodes.t_start_ns[number]), int(found.episodes.t_end_ns[number])
    low, high = np.searchsorted(events["t_ns"], np.array([start, end], np.uint64))
    during = events[low:high]
    rows: list[dict[str, Any]] = []
    for thread, timeline in found.timelines.items():
        held_from, held_until = found.episodes.holds[thread].of(number)
        tid = recording.meta["threads"][thread]["tid"]
        faults = during[(during["kind"] == records.EVENT_PAGE_FAULT) & (during["tid"] == tid)]
        hold = np.searchsorted(held_from, column(faults, "t_ns"), side="right") - 1
        for fault, at in zip(faults, hold.tolist(), strict=True):
            if at >= 0 and int(fault["t_ns"]) < held_until[at]:
                rows.append(_fault_row(thread, timeline, fault, int(fault["t_ns"])))
    rows += _collections_in(recording, start, end)
    rows.sort(key=lambda row: row["t_ns"])
    if not recording.kind.holds_interpreter_lock:
        return {"events": rows[:MAX_EVENTS], "n_events": len(rows)}
    # Python meets many faults; the few collections must not be lost among them.
    rows.sort(key=lambda row: row["event"] != "collection")
    n_faults = sum(row["event"] != "collection" for row in rows)
    return {"events": rows[:MAX_EVENTS], "n_events": len(rows), "n_page_faults": n_faults}


def _collections_in(recording: Recording, t_start_ns: int, t_end_ns: int) -> list[dict[str, Any]]:
    rows = []
    beside = recording["collections"][overlapping(recording["collections"], t_start_ns, t_end_ns)]
    for t_start, t_end, generation, tid in beside.tolist():
        row = {
            "event": "collection",
            "relation": "concurrent",
            "t_ns": t_start,
            "duration_ns": t_end - t_start,
            "generation": generation,
        }
        if recording.kind.holds_interpreter_lock:
            row["relation"] = "with the interpreter lock"
            row["thread"] = thread_name(recording.meta, tid)
        rows.append(row)
    return rows


def _fault_row(thread: str, timeline: Timeline, fault: Any, t_ns: int) -> dict[str, Any]:
    # A fault tracepoint has no end. The gap in which the trap lies bounds the fault from above.
    at = int(np.searchsorted(timeline.bounds_ns, t_ns, side="right")) - 1
    first = timeline.causes[int(timeline.cause[at])]
    is_known, until = first.cause == causes.PAGE_FAULT, at
    # The part that is witnessed, and what is inferred to be the same fault's.
    while until + 1 < len(timeline.cause) and timeline.causes[int(timeline.cause[until + 1])][:2] == first[:2]:
        until += 1
    return {
        "event": "page fault",
        "relation": "on the thread that held the message",
        "thread": thread,
        "t_ns": t_ns,
        "duration_ns": min(int(timeline.bounds_ns[until + 1]) - t_ns, MAX_TRAP_NS) if is_known else None,
        "address": int(fault["value"]) & (2**64 - 1),
        "mode": "kernel" if int(fault["flags"]) & records.FLAG_KERNEL_MODE else "user",
    }


def _concurrent(recording: Recording, found: Attribution) -> list[dict[str, Any]]:
    run = recording.meta["run"]
    window = (run.get("t_window_ns") or 0, run.get("t_end_ns") or 0)
    if window[1] <= window[0]:
        return []
    others = []
    if not recording.kind.holds_interpreter_lock:
        collections = np.sort(recording["collections"], order="t_start_ns")
        others.append(("collection", column(collections, "t_start_ns"), column(collections, "t_end_ns")))
    return concurrent_events(found.episodes, found.timelines, window, others)


def _corroborate(recording: Recording, found: Attribution) -> dict[str, Any]:
    """Signs of the hypervisor beside the gaps: late ticks over the tail's wall time, and the host's steal column."""
    times = dict.fromkeys(ANSWERS, 0)
    inferred: dict[str, int] = {}
    for thread, timeline in found.timelines.items():
        holds, answers = found.episodes.holds[thread], found.threads[thread].late_tick
        lengths = np.diff(timeline.bounds_ns)
        cpu = str(recording.meta["threads"][thread].get("cpu"))
        inferred[cpu] = inferred.get(cpu, 0) + int(lengths[(answers >= 0) & (answers != NO)].sum())
        # The same segments, named by their answer; the first name is for those that are no question.
        named = replace(timeline, cause=answers + 1, causes=(_NO_QUESTION,) * (1 + len(ANSWERS)))
        for name, time_ns in zip(ANSWERS, named.charge(holds.t_start_ns, holds.t_end_ns)[1:].tolist(), strict=True):
            times[name] += time_ns
    steal = recording.meta.get("steal_ns") or {}
    return {
        "late_tick": {f"{name.replace(' ', '_')}_ns": time_ns for name, time_ns in times.items()},
        "steal": [
            {"cpu": cpu, "outside_the_guest_ns": time_ns, "steal_column_ns": steal.get(cpu)}
            for cpu, time_ns in sorted(inferred.items())
        ],
    }
