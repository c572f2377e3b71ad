"""What is injected, in which order, how strongly, and with which pauses: drawn from a seed, known before the run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sysmeter.units import NS_PER_MS, NS_PER_US

# What is injected into the strategy thread of the capstone, in the order of the printed table.
PREEMPTION = "preemption"
SLEEP = "sleep"
MUTEX = "mutex"
PAGE_FAULT = "page_fault"
STALL = "stall"
INTERRUPT = "interrupt"
STOP = "stop"
MIGRATION = "migration"
QUOTA = "quota"
CAPSTONE_CAUSES = (PREEMPTION, SLEEP, MUTEX, PAGE_FAULT, STALL, INTERRUPT, STOP, MIGRATION, QUOTA)
# And into the worker of `sysmeter live`, whose runs have controls of their own.
COLLECTION = "collection"
LIVE_CAUSES = (COLLECTION,)
CAUSES = (*CAPSTONE_CAUSES, *LIVE_CAUSES)
# What a host need not allow; every other cause that cannot be injected leaves the goal unproven.
MAY_BE_SKIPPED = (QUOTA,)
# Nothing is injected, and nothing of the above may be named.
CONTROL = "control"

# The argument of each: nanoseconds it is to last, or how many (pages, interrupts, the generation). Long enough to be a
# tail, short enough that the feed handler's queue of 4,096 messages never fills.
_ARGUMENTS = {
    PREEMPTION: (300 * NS_PER_US, 2_500 * NS_PER_US),
    SLEEP: (300 * NS_PER_US, 3 * NS_PER_MS),
    MUTEX: (300 * NS_PER_US, 3 * NS_PER_MS),
    PAGE_FAULT: (64, 256),
    STALL: (300 * NS_PER_US, 3 * NS_PER_MS),
    INTERRUPT: (1, 8),
    STOP: (500 * NS_PER_US, 3 * NS_PER_MS),
    MIGRATION: (300 * NS_PER_US, NS_PER_MS),
    QUOTA: (15 * NS_PER_MS, 30 * NS_PER_MS),
    COLLECTION: (2, 2),
    CONTROL: (300 * NS_PER_US, 3 * NS_PER_MS),
}
# Between two windows, so that the backlog of one is worked off long before the next begins.
_PAUSE_NS = (20 * NS_PER_MS, 60 * NS_PER_MS)
# What a step takes beside its pause, at most as a rule: to plan a run's length with. A move into a cgroup takes some
# 5 ms, and there and back twice that.
_TAKES_NS = {QUOTA: 45 * NS_PER_MS, COLLECTION: 80 * NS_PER_MS}
_TAKES_NS_OTHERWISE = 8 * NS_PER_MS


@dataclass(frozen=True)
class Step:
    """One trial: ``number`` is unique in a plan, ``argument`` as its cause takes it, ``pause_ns`` comes before it."""

    number: int
    cause: str
    argument: int
    pause_ns: int

    @property
    def takes_ns(self) -> int:
        """How long it takes, its pause included."""
        return self.pause_ns + _TAKES_NS.get(self.cause, _TAKES_NS_OTHERWISE)


def make_plan(causes: Iterable[str], trials: int, seed: int) -> list[Step]:
    """``trials`` steps of each cause and as many controls, in random order. The same seed gives the same plan."""
    chosen = random.Random(seed)
    drawn = [cause for cause in (*causes, CONTROL) for _ in range(trials)]
    chosen.shuffle(drawn)
    return [
        Step(number, cause, chosen.randint(*_ARGUMENTS[cause]), chosen.randint(*_PAUSE_NS))
        for number, cause in enumerate(drawn)
    ]


def split(steps: Sequence[Step], max_ns: int) -> list[list[Step]]:
    """The steps in their order, cut into as few runs of about equal length as are of at most ``max_ns`` each."""
    total_ns = duration_ns(steps)
    n_runs = max(1, -(-total_ns // max_ns))
    while True:
        runs: list[list[Step]] = []
        taken_ns = 0
        for step in steps:
            if taken_ns >= len(runs) * total_ns // n_runs:
                runs.append([])
            runs[-1].append(step)
            taken_ns += step.takes_ns
        # A run ends with the step that fills its share, so it may be longer by as much as one.
        if n_runs >= len(steps) or all(duration_ns(run) <= max_ns for run in runs):
            return runs
        n_runs += 1


def duration_ns(steps: Iterable[Step]) -> int:
    """How long the steps take, one after the other."""
    return sum(step.takes_ns for step in steps)
