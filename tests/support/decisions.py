"""Decisions made up for tests, and their text by the plainest means."""

from __future__ import annotations

from typing import Any

import numpy as np

from sysmeter.records import DECISION

HEADER = "seq,bid_price,bid_quantity,ask_price,ask_quantity,wanted_bid,wanted_ask"


def some_decisions(n: int) -> np.ndarray[Any, Any]:
    """``n`` decisions whose numbers ascend from below 0 and leave some out; the same for the same ``n``."""
    random = np.random.default_rng(n)
    found = np.zeros(n, DECISION)
    found["seq"] = np.cumsum(random.integers(1, 3, n)) - n
    for name in (DECISION.names or ())[1:]:
        found[name] = random.integers(-1, 120_000, n)
    return found


def text_of(found: np.ndarray[Any, Any]) -> bytes:
    """The whole decisions file, a line a row."""
    return "".join([HEADER + "\n", *(",".join(map(str, row)) + "\n" for row in found.tolist())]).encode()
