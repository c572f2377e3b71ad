"""The pieces a timeline is built from: lists of disjoint intervals, each with a cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.causes import Cause


@dataclass(frozen=True)
class Layer:
    """Disjoint intervals ``[t_start_ns[i], t_end_ns[i])``, ascending; ``cause`` indexes ``causes``."""

    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]
    cause: npt.NDArray[np.int64]
    causes: tuple[Cause, ...]


def disjoint_layer(
    t_start_ns: npt.NDArray[np.int64],
    t_end_ns: npt.NDArray[np.int64],
    cause: npt.NDArray[np.int64],
    causes: tuple[Cause, ...],
) -> Layer:
    """A layer of intervals in order of their starts. Should two overlap, the earlier one keeps what both claim."""
    end = np.maximum.accumulate(t_end_ns) if len(t_end_ns) else t_end_ns
    start = t_start_ns.copy()
    start[1:] = np.maximum(start[1:], end[:-1])
    return Layer(start, np.maximum(start, end), cause, causes)
