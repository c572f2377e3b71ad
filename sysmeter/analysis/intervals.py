"""How far a latency moved, and how sure that is: one figure a run, compared within pairs of neighbours.

The figure of a run is the *undisturbed interquartile mean* of a histogram. Undisturbed: samples shorter than the
run's gap threshold (5 µs), since a longer one holds a gap or waited behind one, and on a busy host that may be most
of them. Interquartile mean: of the samples between the first and the third quartile, which is as deaf as the median
to what is slow, and unlike the median does not stick to the clock's steps of some 10 ns.

Runs differ by more than their samples do (where memory came to lie, what the host did), so a run counts once,
however many samples it has. The difference of a run is taken to the mean of the default runs beside it, which
takes out whatever drifted slowly, and the interval is Student's over those differences, one a round. A run that
the host spoiled widens the interval; it cannot make it exclude 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sysmeter.hist import bucket_index, bucket_upper_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sysmeter.hist import LatencyHistogram

CONFIDENCE_PERCENT = 95

# With fewer undisturbed samples than this the loop itself is slow, and all samples are taken.
MIN_UNDISTURBED_PART = 0.1

_Z_95 = 1.959963984540054  # of the normal distribution, two-sided

# Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1; beyond 30 the last one is kept, which
# makes the interval a little too wide. Source: any table, such as NIST/SEMATECH e-Handbook, 1.3.6.7.2.
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Move:
    """By how much a figure moved, ns: the mean of the rounds' differences and its 95 % interval.

    ``low_ns`` and ``high_ns`` are None with fewer than two rounds: one difference has no spread.
    ``base_ns`` is the mean of the figure in the default runs beside.
    """

    by_ns: float
    low_ns: float | None
    high_ns: float | None
    base_ns: float
    n_rounds: int

    @property
    def interval_ns(self) -> list[float] | None:
        """``[low, high]``, or None."""
        return None if self.low_ns is None or self.high_ns is None else [self.low_ns, self.high_ns]

    def excludes_zero(self) -> bool:
        """The whole interval lies on one side of 0."""
        return self.low_ns is not None and self.high_ns is not None and (self.low_ns > 0 or self.high_ns < 0)

    def within(self, margin_ns: float) -> bool:
        """The whole interval lies within ``margin_ns`` of 0: no move larger than that."""
        return self.low_ns is not None and self.high_ns is not None and max(-self.low_ns, self.high_ns) < margin_ns


def interquartile_mean_ns(histogram: LatencyHistogram, below_ns: int | None = None) -> float | None:
    """The mean of the samples between the first and the third quartile, from the middles of their buckets.

    Of the samples below ``below_ns`` only, where these are at least a tenth of all; of all samples otherwise. A
    bucket on a quartile counts with the part of it that lies inside. None with fewer than four samples.
    """
    if histogram.count < 4:
        return None
    filled = np.flatnonzero(histogram.counts)
    if below_ns is not None:
        chosen = filled[: np.searchsorted(filled, bucket_index(below_ns, histogram.sub_bits))]
        if histogram.counts[chosen].sum() >= max(4, histogram.count * MIN_UNDISTURBED_PART):
            filled = chosen
    counts = histogram.counts[filled].astype(np.float64)
    ends = counts.cumsum()
    low, high = ends[-1] / 4, ends[-1] * 3 / 4
    inside = np.clip(np.minimum(ends, high) - np.maximum(ends - counts, low), 0, None)
    used = np.flatnonzero(inside)
    middles = [_middle_ns(int(filled[k]), histogram.sub_bits) for k in used]
    return float(np.dot(inside[used], middles) / inside[used].sum())


def _middle_ns(index: int, sub_bits: int) -> float:
    below = bucket_upper_bound(index - 1, sub_bits) if index else -1
    return (below + 1 + bucket_upper_bound(index, sub_bits)) / 2


def paired_move(pairs: Sequence[tuple[float, Sequence[float]]]) -> Move | None:
    """The move over rounds: each pair is a run's figure and the figures of the default runs beside it.

    No default run may stand in two pairs, else the differences would not be independent. None without a pair.
    """
    bases = [sum(beside) / len(beside) for _, beside in pairs]
    differences = [figure - base for (figure, _), base in zip(pairs, bases, strict=True)]
    n = len(differences)
    if not n:
        return None
    by_ns, base_ns = sum(differences) / n, sum(bases) / n
    if n == 1:
        return Move(by_ns, None, None, base_ns, 1)
    variance = sum((difference - by_ns) ** 2 for difference in differences) / (n - 1)
    half_ns = _T_95[min(n - 1, len(_T_95)) - 1] * math.sqrt(variance / n)
    return Move(by_ns, by_ns - half_ns, by_ns + half_ns, base_ns, n)


def wilson(successes: int, trials: int) -> tuple[float, float] | None:
    """Bounds of a success rate at 95 % confidence; None without a trial.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209.

    >>> [round(bound, 4) for bound in wilson(30, 30)]
    [0.8865, 1.0]
    """
    if not trials:
        return None
    rate, z2 = successes / trials, _Z_95**2 / trials
    middle = (rate + z2 / 2) / (1 + z2)
    half = _Z_95 * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials)) / (1 + z2)
    # At the ends the formula is exact, but for the last digit of its floats.
    return 0.0 if successes == 0 else middle - half, 1.0 if successes == trials else middle + half
