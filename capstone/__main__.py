"""The workload process of ``sysmeter run``: ``python -m capstone COMMAND_FD REPORT_FD PARENT_TGID``.

Speaks the protocol of :mod:`sysmeter.workload`. Not meant to be started by hand.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from sysmeter.workload import Reporter, serve


def _carry_out(reporter: Reporter) -> None:
    request = reporter.receive("prepare")
    if request is None:
        return
    settings: dict[str, Any] = request["settings"]
    from capstone.cache import use_cache

    # Both must stand before numba is imported.
    cache = use_cache(Path(settings["cache_dir"]), {slot: settings[slot] for slot in ("book", "queue", "stall")})
    os.environ["NUMBA_NRT_STATS"] = "1"
    if cache.problem:
        reporter.note(cache.problem)
    if cache.is_cold:
        reporter.progress("compiling the measured loop; takes some 10 s, and once where the cache can be written")
    from capstone.measured_run import MeasuredRun

    run = MeasuredRun(settings, reporter.note)
    reporter.report("ready", **run.prepare())
    if reporter.receive("go") is None:
        return
    reporter.report("done", **run.go())
    reporter.receive("exit")


if __name__ == "__main__":
    sys.exit(serve(_carry_out))
