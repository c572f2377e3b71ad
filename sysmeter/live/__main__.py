"""The workload process of ``sysmeter live``: ``python -m sysmeter.live COMMAND_FD REPORT_FD PARENT_TGID``.

Speaks the protocol of :mod:`sysmeter.workload`. Not meant to be started by hand.
"""

from __future__ import annotations

import sys

from sysmeter.live.measured import MeasuredRun
from sysmeter.workload import Reporter, serve


def _carry_out(reporter: Reporter) -> None:
    request = reporter.receive("prepare")
    if request is None:
        return
    run = MeasuredRun(request["settings"], reporter.note)
    reporter.report("ready", **run.prepare())
    if reporter.receive("go") is None:
        return
    reporter.report("done", **run.go())
    reporter.receive("exit")


if __name__ == "__main__":
    sys.exit(serve(_carry_out))
