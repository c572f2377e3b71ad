"""What went on beside the tail, on threads that did not hold the message: never a cause, however often it coincides.

Overlap alone proves nothing, and a long episode overlaps much. So the question is whether the tail overlaps such events
more often than the rest of the run would: an interval as long, laid at random into the rest, meets one with a
probability that follows from where the events lie. The ratio of the two, with its interval, is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis import causes
from sysmeter.analysis.intervals import wilson

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from sysmeter.analysis.episodes import Episodes
    from sysmeter.analysis.timeline import Timeline

# What a thread may meet while another one holds the message.
_BESIDE = (
    *(causes.PREEMPTED, causes.VOLUNTARY, causes.STOPPED, causes.THROTTLED, causes.MIGRATED, causes.INTERRUPT),
    *(causes.SOFTIRQ, causes.PAGE_FAULT, causes.OUTSIDE_GUEST),
)


@dataclass(frozen=True)
class _Intervals:
    """Disjoint ``[start, end)``, ascending."""

    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def concurrent_events(
    episodes: Episodes,
    timelines: dict[str, Timeline],
    t_window_ns: tuple[int, int],
    others: Iterable[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = (),
) -> list[dict[str, Any]]:
    """One row for each kind of event that overlaps an episode without holding its message.

    ``others`` are kinds of the whole process: a name, starts and ends, by start. Rows: ``thread`` (null for those),
    ``event``, ``n_episodes``, ``n_overlapping``, ``tail_frac``, ``rest_frac`` (chance in the rest of the window),
    ``ratio`` with ``ratio_low`` and ``ratio_high``, null where the rest holds no such event.
    """
    rows = []
    for thread, timeline in timelines.items():
        beside = _not_held(episodes, thread)
        classes = np.array([_BESIDE.index(c.cause) if c.cause in _BESIDE else -1 for c in timeline.causes], np.int64)
        of_segment = classes[timeline.cause]
        for number in np.unique(of_segment[of_segment >= 0]).tolist():
            chosen = np.flatnonzero(of_segment == number)
            events = _Intervals(timeline.bounds_ns[chosen], timeline.bounds_ns[chosen + 1])
            rows.append(_row(thread, _BESIDE[number], events, beside, episodes, t_window_ns))
    for name, start, end in others:
        whole = (np.arange(len(episodes)), episodes.t_start_ns, episodes.t_end_ns)
        rows.append(_row(None, name, _Intervals(start, end), whole, episodes, t_window_ns))
    rows = [row for row in rows if row["n_overlapping"]]
    return sorted(rows, key=lambda row: (-row["n_overlapping"], row["thread"] or "", row["event"]))


def _not_held(
    episodes: Episodes, thread: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where ``thread`` did not hold an episode's oldest message: ``(episode, start, end)``, by time."""
    holds = [held for name, held in episodes.holds.items() if name != thread]
    episode = np.concatenate([held.episode for held in holds]) if holds else np.empty(0, np.int64)
    start = np.concatenate([held.t_start_ns for held in holds]) if holds else episode
    end = np.concatenate([held.t_end_ns for held in holds]) if holds else episode
    order = start.argsort(kind="stable")
    return episode[order], start[order], end[order]


def _row(
    thread: str | None,
    event: str,
    events: _Intervals,
    beside: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    episodes: Episodes,
    t_window_ns: tuple[int, int],
) -> dict[str, Any]:
    episode, start, end = beside
    first = np.searchsorted(events.end, start, side="right")
    last = np.searchsorted(events.start, end, side="left")
    hit = np.zeros(len(episodes), np.bool_)
    hit[episode[last > first]] = True
    length = np.zeros(len(episodes), np.int64)
    np.add.at(length, episode, end - start)
    exposed = length > 0
    n, n_hits = int(exposed.sum()), int(hit.sum())
    chance = _chance(events, episodes, t_window_ns, length[exposed])
    low, high = wilson(n_hits, n) or (0.0, 1.0)
    tail_frac = n_hits / n if n else None
    comparable = tail_frac is not None and chance
    return {
        "thread": thread,
        "event": event,
        "n_episodes": n,
        "n_overlapping": n_hits,
        "tail_frac": tail_frac,
        "rest_frac": chance,
        "ratio": tail_frac / chance if comparable else None,  # type: ignore[operator]
        "ratio_low": low / chance if comparable else None,  # type: ignore[operator]
        "ratio_high": high / chance if comparable else None,  # type: ignore[operator]
    }


def _chance(
    events: _Intervals, episodes: Episodes, t_window_ns: tuple[int, int], lengths_ns: npt.NDArray[np.int64]
) -> float | None:
    """Mean probability that intervals of these lengths, at random outside the episodes, meet one of the events.

    The episodes are cut out of the window, with the events they overlap, and what is left is closed up. There, an
    interval of length L meets an event ``[a, b)`` if it starts in ``(a - L, b)``; the union of these over the events is
    their own length plus, before each, the free time back to the event before, at most L.
    """
    inside = np.searchsorted(episodes.t_end_ns, events.start, side="right")
    in_episode = np.zeros(len(events.start), np.bool_)
    some = inside < len(episodes)
    in_episode[some] = episodes.t_start_ns[inside[some]] < events.end[some]
    kept = ~in_episode & (events.end > t_window_ns[0]) & (events.start < t_window_ns[1])
    start, end = np.maximum(events.start[kept], t_window_ns[0]), np.minimum(events.end[kept], t_window_ns[1])
    # How much of the window the episodes before each event take: they may reach over the window's edges.
    within = np.minimum(episodes.t_end_ns, t_window_ns[1]) - np.maximum(episodes.t_start_ns, t_window_ns[0])
    cut_out = np.append(0, np.cumsum(np.maximum(within, 0)))
    rest_ns = t_window_ns[1] - t_window_ns[0] - int(cut_out[-1])
    if not len(start) or rest_ns <= 0 or not len(lengths_ns):
        return None
    closed_by = cut_out[inside[kept]]
    free = np.sort(np.diff(start - closed_by, prepend=t_window_ns[0]) - np.append(0, (end - start)[:-1]))
    sums = np.append(0, np.cumsum(free))
    shorter = np.searchsorted(free, lengths_ns, side="right")
    covered = (end - start).sum() + sums[shorter] + lengths_ns * (len(free) - shorter)
    return float(np.mean(covered / rest_ns))
