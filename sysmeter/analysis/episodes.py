"""Episodes: busy periods in which at least one slow message was on its way, and who held it when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.tail import Hold, SlowMessages


@dataclass(frozen=True)
class Episodes:
    """Connected components of ``[t0, decided]`` over the slow messages: int64 arrays, by time."""

    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]
    peak_ns: npt.NDArray[np.int64]
    n_messages: npt.NDArray[np.int64]  # slow ones
    holds: dict[str, Holds]  # by thread

    def __len__(self) -> int:
        return len(self.t_start_ns)

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        """Lengths. Episodes are disjoint, so their sum is the wall time of the tail."""
        return self.t_end_ns - self.t_start_ns


@dataclass(frozen=True)
class Holds:
    """Intervals in which one thread held the oldest undecided slow message of an episode: int64, by time.

    ``wait`` says what the message waited for, as ``tail.Wait``. The holds of all threads together partition each
    episode.
    """

    episode: npt.NDArray[np.int64]
    wait: npt.NDArray[np.int64]
    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]

    def of(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Start and end of the holds of one episode. Episodes are disjoint, so their numbers ascend with the time."""
        low, high = np.searchsorted(self.episode, (number, number + 1))
        return self.t_start_ns[low:high], self.t_end_ns[low:high]


def find_episodes(slow: SlowMessages) -> Episodes:
    """Join the slow messages to episodes and split each among the threads.

    At each instant the oldest undecided slow message counts (a younger one waits behind it): the strategy
    thread holds it while the queue has no room for it and from its release on, the feed thread in between. Where
    one thread does everything, it holds the whole.
    """
    if len(slow) == 0:
        empty = np.empty(0, np.int64)
        holds = Holds(empty, empty, empty, empty)
        return Episodes(empty, empty, empty, empty, dict.fromkeys(slow.kind.threads, holds))
    # Messages are decided in their order; the accumulated maximum makes that certain.
    done = np.maximum.accumulate(slow.t_decided_ns)
    is_first = np.append(True, slow.t0_ns[1:] > done[:-1])
    episode = np.cumsum(is_first) - 1
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(slow)) - 1

    # What was the oldest message's before is cut off; what is left of this one's own course keeps its order.
    cut = np.where(is_first, slow.t0_ns, np.append(slow.t0_ns[:1], done[:-1]))
    course = replace(
        slow,
        t0_ns=np.clip(slow.t0_ns, cut, done),
        t_room_ns=np.clip(slow.t_room_ns, cut, done),
        t_free_ns=np.clip(slow.t_free_ns, cut, done),
        t_released_ns=np.clip(slow.t_released_ns, cut, done),
        t_taken_ns=np.clip(slow.t_taken_ns, cut, done),
        t_decided_ns=done,
    )
    return Episodes(
        slow.t0_ns[first],
        done[last],
        np.maximum.reduceat(slow.total_ns, first),
        last - first + 1,
        {thread: _holds(episode, course.holds(thread)) for thread in slow.kind.threads},
    )


def _holds(episode: npt.NDArray[np.int64], parts: list[Hold]) -> Holds:
    start = np.concatenate([part.t_start_ns for part in parts])
    end = np.concatenate([part.t_end_ns for part in parts])
    wait = np.repeat(np.array([part.wait for part in parts], np.int64), len(episode))
    owner = np.tile(episode, len(parts))
    kept = np.flatnonzero(end > start)
    kept = kept[start[kept].argsort(kind="stable")]
    return Holds(owner[kept], wait[kept], start[kept], end[kept])
