"""Layers of a small timeline, made by Hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sysmeter.analysis.causes import Cause
from sysmeter.analysis.layers import Layer

SPAN = 120  # ns
REST = Cause("own service", "", "witnessed")


@st.composite
def layers(draw: st.DrawFn) -> list[Layer]:
    found = []
    for number in range(draw(st.integers(0, 3))):
        cuts = sorted(draw(st.lists(st.integers(-10, SPAN + 10), max_size=12)))
        pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
        causes = tuple(Cause(f"layer {number}", str(k), "witnessed") for k in range(3))
        codes = draw(st.lists(st.integers(0, 2), min_size=len(pairs), max_size=len(pairs)))
        start = np.array([p[0] for p in pairs], np.int64)
        end = np.array([p[1] for p in pairs], np.int64)
        found.append(Layer(start, end, np.array(codes, np.int64), causes))
    return found
