"""The schedule of a paced run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def intended_ns(t_start_ns: int, rate_hz: int, message: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Intended time of each message: ``t_start_ns + message * 10**9 // rate_hz``, without overflow."""
    seconds, rest = message // rate_hz, message % rate_hz
    return t_start_ns + seconds * NS_PER_S + rest * NS_PER_S // rate_hz
