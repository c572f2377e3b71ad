"""The tail with its causes: slow messages and episodes charged to what held the thread that held them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.causes import EVIDENCE, GAP, Cause
from sysmeter.analysis.episodes import Episodes, find_episodes
from sysmeter.analysis.interpreter import collection_layers, lock_layers, thread_name
from sysmeter.analysis.process import overlapping
from sysmeter.analysis.tail import SlowMessages, beyond_bucket, find_tail
from sysmeter.analysis.timeline import Layer, Timeline, stall_layer, thread_timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from sysmeter.analysis.offcpu import OffCpu
    from sysmeter.recording import Recording

# The slowest episodes are listed one by one; the causes of the whole tail have no such bound.
MAX_EPISODES = 100
MAX_EVENTS = 20


@dataclass(frozen=True)
class Attribution:
    """Slow messages, episodes and the timelines they are charged to."""

    slow: SlowMessages
    episodes: Episodes
    timelines: dict[str, Timeline]
    sample_time_ns: dict[str, npt.NDArray[np.int64]]  # by thread, one a cause of its timeline
    wall_time_ns: dict[str, npt.NDArray[np.int64]]

    def check(self) -> None:
        """Conservation: the parts are the whole, in sample time and in wall time.

        Raises:
            ArithmeticError: they are not, which is a defect of the analysis.
        """
        wholes = (int(self.slow.total_ns.sum()), int(self.episodes.duration_ns.sum()))
        sums = tuple(
            sum(int(times.sum()) for times in by_thread.values())
            for by_thread in (self.sample_time_ns, self.wall_time_ns)
        )
        if sums != wholes:
            raise ArithmeticError(f"the tail's parts add up to {sums} ns and not to {wholes} ns")


def attribute(recording: Recording, off_cpu: Mapping[str, OffCpu], slow: SlowMessages) -> Attribution:
    """Charge the slow messages to their causes; ``off_cpu`` has each measured thread's slices and reads."""
    episodes = find_episodes(slow)
    t_start_ns = int(slow.t0_ns.min()) if len(slow) else 0
    t_end_ns = int(episodes.t_end_ns.max()) if len(slow) else 0
    timelines = {
        thread: thread_timeline(
            recording.meta, parts.reads, parts.slices, t_start_ns, t_end_ns, *_own_layers(recording, thread, parts)
        )
        for thread, parts in off_cpu.items()
    }
    sample_time, wall_time = {}, {}
    for thread, timeline in timelines.items():
        sample_time[thread] = timeline.charge(*slow.held_by(thread))
        holds = episodes.holds[thread]
        wall_time[thread] = timeline.charge(holds.t_start_ns, holds.t_end_ns)
    result = Attribution(slow, episodes, timelines, sample_time, wall_time)
    result.check()
    return result


def _own_layers(recording: Recording, thread: str, parts: OffCpu) -> tuple[list[Layer], list[Layer]]:
    """The layers that only this kind of workload has: before the slices, and before the gaps."""
    if recording.kind.holds_interpreter_lock:
        waits = parts.lock_waits
        before = [] if waits is None else lock_layers(recording, thread, waits, parts.slices)
        return before, collection_layers(recording, thread, parts.reads)
    if thread == recording.kind.worker:
        return [stall_layer(recording["stalls"], recording.meta["settings"].get("stall_for_ns") or 0)], []
    return [], []


def describe_tail(recording: Recording, off_cpu: Mapping[str, OffCpu], events: npt.NDArray[Any]) -> dict[str, Any]:
    """The result's ``tail``. ``events`` are the kernel events, by time."""
    threshold, slow = find_tail(recording)
    tail: dict[str, Any] = {
        "threshold_ns": threshold.ns,
        "threshold_source": threshold.source,
        "samples": None,
        "n_episodes": None,
        "n_reordered": None,
        "n_above_in_histogram": None,
        "n_above_found": None,
        "sample_time": None,
        "wall_time": None,
        "causes": [],
        "episodes": [],
        "episodes_not_listed": 0,
    }
    if threshold.ns is None or slow is None:
        return tail
    found = attribute(recording, off_cpu, slow)
    listed = np.lexsort((found.episodes.t_start_ns, -found.episodes.peak_ns))[:MAX_EPISODES]
    tail["samples"] = len(found.slow)
    tail["n_episodes"] = len(found.episodes)
    tail["n_reordered"] = found.slow.n_reordered
    above = beyond_bucket(recording, found.slow, threshold.ns)
    tail["n_above_in_histogram"], tail["n_above_found"] = above
    tail["sample_time"] = _shares(found.timelines, found.sample_time_ns)
    tail["wall_time"] = _shares(found.timelines, found.wall_time_ns)
    tail["causes"] = _causes(found)
    tail["episodes"] = _list_episodes(recording, found, events, listed)
    tail["episodes_not_listed"] = len(found.episodes) - len(listed)
    return tail


def _shares(timelines: dict[str, Timeline], times: dict[str, npt.NDArray[np.int64]]) -> dict[str, Any]:
    by_evidence = dict.fromkeys(EVIDENCE, 0)
    for thread, timeline in timelines.items():
        for cause, time_ns in zip(timeline.causes, times[thread].tolist(), strict=True):
            by_evidence[cause.evidence] += time_ns
    whole = sum(by_evidence.values())
    shares: dict[str, Any] = {"whole_ns": whole}
    for evidence, time_ns in by_evidence.items():
        shares[f"{evidence}_ns"] = time_ns
        shares[f"{evidence}_frac"] = time_ns / whole if whole else None
    return shares


def _causes(found: Attribution) -> list[dict[str, Any]]:
    rows = []
    for thread, timeline in found.timelines.items():
        sample_time, wall_time = found.sample_time_ns[thread].tolist(), found.wall_time_ns[thread].tolist()
        for cause, sample_ns, wall_ns in zip(timeline.causes, sample_time, wall_time, strict=True):
            if sample_ns or wall_ns:
                row = {
                    **cause._asdict(),
                    "thread": thread,
                    "sample_time_ns": sample_ns,
                    "wall_time_ns": wall_ns,
                }
                rows.append(row)
    whole = sum(row["sample_time_ns"] for row in rows)
    for row in rows:
        row["share_frac"] = row["sample_time_ns"] / whole if whole else None
    return sorted(rows, key=lambda row: (-row["sample_time_ns"], row["thread"], row["cause"], row["detail"]))


def _list_episodes(
    recording: Recording, found: Attribution, events: npt.NDArray[Any], listed: npt.NDArray[np.int64]
) -> list[dict[str, Any]]:
    episodes = found.episodes
    parts: dict[int, dict[tuple[str, Cause], int]] = {int(number): {} for number in listed}
    for thread, timeline in found.timelines.items():
        holds = episodes.holds[thread]
        chosen = np.flatnonzero(np.isin(holds.episode, listed))
        hold, cause, time = timeline.parts(holds.t_start_ns[chosen], holds.t_end_ns[chosen])
        owner = holds.episode[chosen][hold]
        for number, code, time_ns in zip(owner.tolist(), cause.tolist(), time.tolist(), strict=True):
            key = (thread, timeline.causes[code])
            parts[number][key] = parts[number].get(key, 0) + time_ns
    t_window_ns = recording.meta["run"].get("t_window_ns")
    rows = []
    for number in listed.tolist():
        t_start = int(episodes.t_start_ns[number])
        rows.append(
            {
                "t_start_ns": t_start,
                "since_window_ns": None if t_window_ns is None else t_start - t_window_ns,
                "duration_ns": int(episodes.duration_ns[number]),
                "peak_ns": int(episodes.peak_ns[number]),
                "n_messages": int(episodes.n_messages[number]),
                "parts": _part_rows(parts[number]),
                **_events_in(recording, found, events, number),
            }
        )
    return rows


def _part_rows(parts: dict[tuple[str, Cause], int]) -> list[dict[str, Any]]:
    rows = [{**cause._asdict(), "thread": thread, "time_ns": time} for (thread, cause), time in parts.items()]
    return sorted(rows, key=lambda row: (-row["time_ns"], row["thread"], row["cause"], row["detail"]))


def _events_in(recording: Recording, found: Attribution, events: npt.NDArray[Any], number: int) -> dict[str, Any]:
    """Faults of the thread that held the message, at that time, and the process's collections.

    To threads that hold no interpreter lock a collection only ran beside them.
    """
    start, end = int(found.episodes.t_start_ns[number]), int(found.episodes.t_end_ns[number])
    low, high = np.searchsorted(events["t_ns"], np.array([start, end], np.uint64))
    during = events[low:high]
    rows: list[dict[str, Any]] = []
    for thread, timeline in found.timelines.items():
        holds = found.episodes.holds[thread]
        tid = recording.meta["threads"][thread]["tid"]
        faults = during[(during["kind"] == records.EVENT_PAGE_FAULT) & (during["tid"] == tid)]
        own = holds.episode == number
        for fault in faults:
            t_ns = int(fault["t_ns"])
            if bool(((holds.t_start_ns[own] <= t_ns) & (t_ns < holds.t_end_ns[own])).any()):
                rows.append(_fault_row(thread, timeline, fault, t_ns))
    beside = recording["collections"][overlapping(recording["collections"], start, end)]
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
    rows.sort(key=lambda row: row["t_ns"])
    if not recording.kind.holds_interpreter_lock:
        return {"events": rows[:MAX_EVENTS], "n_events": len(rows)}
    # Python meets many faults; the few collections must not be lost among them.
    rows.sort(key=lambda row: row["event"] != "collection")
    n_faults = sum(row["event"] != "collection" for row in rows)
    return {"events": rows[:MAX_EVENTS], "n_events": len(rows), "n_page_faults": n_faults}


def _fault_row(thread: str, timeline: Timeline, fault: Any, t_ns: int) -> dict[str, Any]:
    # A fault tracepoint has no end. The gap in which the trap lies bounds the fault from above.
    at = int(np.searchsorted(timeline.bounds_ns, t_ns, side="right")) - 1
    in_gap = timeline.causes[int(timeline.cause[at])].cause == GAP
    return {
        "event": "page fault",
        "relation": "on the thread that held the message",
        "thread": thread,
        "t_ns": t_ns,
        "duration_ns": int(timeline.bounds_ns[at + 1] - timeline.bounds_ns[at]) if in_gap else None,
        "address": int(fault["value"]) & (2**64 - 1),
        "mode": "kernel" if int(fault["flags"]) & records.FLAG_KERNEL_MODE else "user",
    }
