"""Runs the real capstone in its real child process, without probes, on a small message file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from capstone import feedfile
from sysmeter import host
from sysmeter.cli.provisions import cache_directory
from sysmeter.session import RunSettings
from sysmeter.workload import Workload, own_python


def settings_for(feed: Path, **changes: Any) -> dict[str, Any]:
    """The settings of a run of ``feed``, flat and without warm-up unless changed."""
    base = {"mode": "flat", "warmup_seconds": 0.0, "cpus": host.choose_cpus(None), **changes}
    settings = RunSettings(feed=str(feed), cache_dir=str(cache_directory()), **base)
    return {**settings.__dict__, "cpus": list(settings.cpus), "housekeeping_cpus": []}


def run_capstone(feed: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """(the "done" event, the arrays) of one run."""
    with Workload(own_python("capstone"), lambda _text: None) as workload:
        workload.send("prepare", settings=settings_for(feed, **changes))
        workload.receive("ready")
        workload.send("go")
        done = workload.receive("done")
        assert done is not None
        return done, workload.read_arrays(done["arrays"])


def write_feed(path: Path, rows: list[tuple[int, int, int, int, int, int]], n_instruments: int = 64) -> Path:
    """A message file of rows (seq, instrument, side, kind, price_ticks, quantity)."""
    messages = np.zeros(len(rows), feedfile.MESSAGE)
    for name, column in zip(
        ("seq", "instrument", "side", "kind", "price_ticks", "quantity"), zip(*rows, strict=True), strict=True
    ):
        messages[name] = column
    feedfile.write(path, messages, n_instruments)
    return path


class OracleBook:
    """A book as two dictionaries, and the quote as the specification words it: slow, and obviously right."""

    def __init__(self) -> None:
        self.levels: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def apply(self, side: int, kind: int, price_ticks: int, quantity: int) -> None:
        if kind == feedfile.KIND_DELETE:
            self.levels[side].pop(price_ticks, None)
        else:
            self.levels[side][price_ticks] = quantity

    def decision(self) -> tuple[int, int, int, int, int, int]:
        """(bid price, bid quantity, ask price, ask quantity, wanted bid, wanted ask)."""
        bids, asks = self.levels
        bid, ask = max(bids, default=-1), min(asks, default=-1)
        wanted = (-1, -1)
        if bids and asks:
            wanted = (bid + 1, ask - 1) if ask - bid >= 3 else (bid, ask)
        return bid, bids.get(bid, 0), ask, asks.get(ask, 0), *wanted
