"""What held a thread at each instant: a partition of time into causes, exact to the nanosecond.

A timeline is built from layers, each a list of disjoint intervals with a cause. At any instant the first
layer that covers it decides, and where none does, the thread was doing its own work. So slices win over
gaps, and what is left of a gap is a cause of its own. Nothing is counted twice and nothing is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from sysmeter.analysis.causes import Cause
    from sysmeter.analysis.layers import Layer


@dataclass(frozen=True)
class Timeline:
    """One thread's time in ``[bounds_ns[0], bounds_ns[-1])``, in ``n`` segments.

    ``bounds_ns`` has shape ``(n + 1,)``, strictly ascending; segment ``i`` lies in
    ``[bounds_ns[i], bounds_ns[i + 1])`` and has ``causes[cause[i]]``.
    """

    thread: str
    bounds_ns: npt.NDArray[np.int64]
    cause: npt.NDArray[np.int64]
    causes: tuple[Cause, ...]

    def charge(self, t_start_ns: npt.NDArray[np.int64], t_end_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Time of each cause summed over the intervals ``[t_start_ns[i], t_end_ns[i])``, which may overlap.

        Shape ``(len(causes),)``. The sum of the result is the sum of the intervals' lengths, exactly.

        The time that a segment ``[a, b)`` has in common with all intervals is F(b) - F(a), where
        F(x) = sum over intervals of (max(0, x - start) - max(0, x - end)). With sorted edges and their
        cumulative sums F costs one search. The sums may pass 2**63: int64 wraps, and differences stay right.
        Where the intervals meet few segments, cutting them there is less work.
        """
        times = np.zeros(len(self.causes), np.int64)
        if int(self.spans(t_start_ns, t_end_ns)[1].sum()) < len(self.bounds_ns):
            _, cause, time = self.parts(t_start_ns, t_end_ns)
            np.add.at(times, cause, time)
            return times
        # Relative to the first bound: wrapping is sound, but small numbers are easier to look at.
        bounds = self.bounds_ns - self.bounds_ns[0]
        covered = _past(t_start_ns - self.bounds_ns[0], bounds) - _past(t_end_ns - self.bounds_ns[0], bounds)
        np.add.at(times, self.cause, np.diff(covered))
        return times

    def parts(
        self, t_start_ns: npt.NDArray[np.int64], t_end_ns: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cut intervals at the bounds: ``(interval, cause, time_ns)``, one row a piece, by interval and time.

        Intervals lie within the timeline; empty ones have no piece. Memory is linear in the pieces.
        """
        kept = np.flatnonzero(t_end_ns > t_start_ns)
        start, end = t_start_ns[kept], t_end_ns[kept]
        first, n_pieces = self.spans(start, end)
        row = np.repeat(np.arange(len(kept)), n_pieces)
        segment = np.repeat(first - (np.cumsum(n_pieces) - n_pieces), n_pieces) + np.arange(len(row))
        time = np.minimum(end[row], self.bounds_ns[segment + 1]) - np.maximum(start[row], self.bounds_ns[segment])
        return kept[row], self.cause[segment], time

    def spans(
        self, t_start_ns: npt.NDArray[np.int64], t_end_ns: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The first segment that each interval meets, and how many it meets: none if it is empty."""
        first = np.searchsorted(self.bounds_ns, t_start_ns, side="right") - 1
        n_pieces = np.searchsorted(self.bounds_ns, t_end_ns, side="left") - first
        return first, np.where(t_end_ns > t_start_ns, n_pieces, 0)


def _past(edges_ns: npt.NDArray[np.int64], x_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum over the edges of max(0, x - edge), for each x."""
    edges = np.sort(edges_ns)
    sums = np.append(np.int64(0), np.cumsum(edges))
    n_before = np.searchsorted(edges, x_ns, side="right")
    passed: npt.NDArray[np.int64] = n_before * x_ns - sums[n_before]
    return passed


def build_timeline(thread: str, t_start_ns: int, t_end_ns: int, layers: Sequence[Layer], rest: Cause) -> Timeline:
    """Partition ``[t_start_ns, t_end_ns)``: the first layer that covers an instant decides, else ``rest``."""
    edges = [np.array([t_start_ns, t_end_ns], np.int64)]
    for layer in layers:
        edges += [layer.t_start_ns, layer.t_end_ns]
    bounds = np.sort(np.concatenate(edges), kind="stable")  # the layers are sorted, so this mostly merges
    inside = (bounds >= t_start_ns) & (bounds <= t_end_ns)
    inside[1:] &= bounds[1:] != bounds[:-1]
    bounds = bounds[inside]
    starts = bounds[:-1]
    names: list[Cause] = [rest]
    cause = np.zeros(len(starts), np.int64)
    undecided = np.ones(len(starts), np.bool_)
    for layer in layers:
        if len(layer.t_start_ns):
            at = np.searchsorted(layer.t_start_ns, starts, side="right") - 1
            covered = undecided & (at >= 0) & (starts < layer.t_end_ns[at])
            cause[covered] = layer.cause[at[covered]] + len(names)
            undecided &= ~covered
        names += layer.causes
    return Timeline(thread, bounds, *merge_names(cause, names))


def merge_names(cause: npt.NDArray[np.int64], names: list[Cause]) -> tuple[npt.NDArray[np.int64], tuple[Cause, ...]]:
    """Codes and distinct causes, where ``names`` holds some more than once."""
    distinct = tuple(dict.fromkeys(names))
    place = {name: index for index, name in enumerate(distinct)}
    return np.array([place[name] for name in names], np.int64)[cause], distinct
