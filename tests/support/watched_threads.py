"""One watched thread between two edges: the same interval as the probes and as the thread itself account for it.

Rules by which a *measurement* is taken again (never an assertion softened): an event fell into an edge, so that nobody
can say on which side it belongs; or, for a known number, the host disturbed the subject and the subject's own witness
says so.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sysmeter.kernel import DEFAULT_PROBES, ProbeResult, ProbeSet

MAX_MEASUREMENTS = 30


@dataclass
class Edge:
    t_before_ns: int
    usage: Any
    t_after_ns: int


def take_edge() -> Edge:
    t_before_ns = time.monotonic_ns()
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return Edge(t_before_ns, usage, time.monotonic_ns())


@dataclass
class Measurement:
    tid: int
    opened: Edge
    closed: Edge
    result: ProbeResult

    def events(self, kind: int, *, outer: bool = False) -> np.ndarray:
        """The subject's events of a kind between the edges; ``outer``: edges included."""
        start = self.opened.t_before_ns if outer else self.opened.t_after_ns
        end = self.closed.t_after_ns if outer else self.closed.t_before_ns
        all_events = self.result.events
        times = all_events["t_ns"].astype(np.int64)
        chosen = (all_events["kind"] == kind) & (all_events["tid"] == self.tid) & (times >= start) & (times <= end)
        return all_events[chosen]

    def edges_are_quiet(self, kind: int) -> bool:
        return len(self.events(kind)) == len(self.events(kind, outer=True))

    def witness(self, field: str) -> int:
        return getattr(self.closed.usage, field) - getattr(self.opened.usage, field)


def measure(
    action: Callable[[], object], names: tuple[str, ...] = DEFAULT_PROBES, cpu: int | None = None, **rings: int
) -> Measurement:
    """Run ``action`` in a thread of its own, watched by the probes, between two edges."""
    edges: list[Edge] = []
    tid: list[int] = []
    with ProbeSet.open(names, **rings) as probes:
        probes.self_test()
        assert probes.unavailable == {}

        def subject() -> None:
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            tid.append(threading.get_native_id())
            take_edge()
            probes.watch({tid[0]: "subject"})
            edges.append(take_edge())
            action()
            edges.append(take_edge())
            probes.unwatch_all()

        thread = threading.Thread(target=subject)
        thread.start()
        thread.join()
        result = probes.close()
    assert len(edges) == 2, "the subject failed"
    for name, status in result.statuses.items():
        assert status["status"] == "ok", (name, status)
    return Measurement(tid[0], edges[0], edges[1], result)


def measure_until(
    action: Callable[[], object], kind: int, accept: Callable[[Measurement], bool], **options: Any
) -> Iterator[Measurement]:
    """All measurements with quiet edges, up to and with the first one that ``accept`` takes."""
    for _ in range(MAX_MEASUREMENTS):
        measurement = measure(action, **options)
        if not measurement.edges_are_quiet(kind):
            continue
        yield measurement
        if accept(measurement):
            return
    pytest.fail(f"in {MAX_MEASUREMENTS} measurements the host never left the subject alone")


def is_preempted(switches: np.ndarray) -> np.ndarray:
    return (switches["value"] == 0) | (switches["value"] == 0x100)


def complete(measurement: Measurement, name: str) -> bool:
    status = measurement.result.statuses[name]
    return status["lost"] == 0 and status["missed"] == 0
