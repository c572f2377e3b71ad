"""The two-thread loop, simulated: when each message is released and decided, with the threads away as told."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.support.kernelevents import COMM, CPUS, TIDS, fault, switch, wakeup

T_START = 1_000_000_000
READ_NS = 40  # between two clock reads of a spinning thread
SERVICE_NS = 150  # a batch of one message
PER_MESSAGE_NS = 20

# prev_state of a switch-out: in user mode, where a thread that spins is preempted or runs out of its quota (the latter
# in the kernel's work on the way back there), asleep, stopped by a signal.
PREEMPTED, THROTTLED, ASLEEP, STOPPED = 0, 0x100, 0x1, 0x4


@dataclass
class Away:
    """A stretch in which a thread does not run. ``runners`` None: stolen, no guest event is left by it.

    ``runners`` are ``(tid, comm, duration_ns)``; durations add up to the length less ``entry_ns`` and
    ``exit_ns``, which pass between the thread's clock reads and the switch events.
    """

    thread: str
    t_start_ns: int
    length_ns: int
    runners: list[tuple[int, bytes, int]] | None = None
    prev_state: int = PREEMPTED
    woken_after_ns: int | None = None  # from the switch-out
    lose_switch_in: bool = False
    lose_switch_between: int | None = None  # index of the runner whose switch-in is not seen
    faults: list[tuple[int, int, int]] = field(default_factory=list)  # (offset_ns, address, flags)
    entry_ns: int = 1_200
    exit_ns: int = 800


def away_events(away: Away) -> list[np.void]:
    """The kernel events of one stretch, with links broken as asked."""
    rows: list[np.void] = []
    cpu, me = CPUS[away.thread], (TIDS[away.thread], COMM)
    if away.runners is not None:
        t = away.t_start_ns + away.entry_ns
        t_out = t
        previous = me
        for index, (tid, comm, duration) in enumerate(away.runners):
            if index != away.lose_switch_between:
                rows.append(switch(t, cpu, previous, (tid, comm), away.prev_state if previous == me else 0))
            previous = (tid, comm)
            t += duration
        if not away.lose_switch_in:
            rows.append(switch(t, cpu, previous, me))
        if away.woken_after_ns is not None:
            rows.append(wakeup(away.thread, t_out + away.woken_after_ns))
    rows += [fault(away.thread, away.t_start_ns + offset, address, flags) for offset, address, flags in away.faults]
    return rows


@dataclass
class Run:
    """What :func:`build` makes a Recording of."""

    n_messages: int = 3_000
    n_warmup: int = 500
    rate_hz: int = 100_000
    mode: str = "paced"
    ring_slots: int = 4_096
    away: list[Away] = field(default_factory=list)
    extra_events: list[np.void] = field(default_factory=list)
    collections: list[tuple[int, int, int]] = field(default_factory=list)  # (start, end, generation)
    probes: bool = True
    lost: int = 0
    missed: int = 0
    throttled_periods: dict[str, int] = field(default_factory=dict)  # control group → its quotas used up meanwhile
    tail_batches: int | None = None  # keep only so many of the slowest batches


def intended(run: Run, message: int) -> int:
    return T_START + message * 10**9 // run.rate_hz


def _free_at(t_ns: int, away: list[Away]) -> int:
    """The first instant from ``t_ns`` on at which the thread is there."""
    for part in away:
        if part.t_start_ns <= t_ns < part.t_start_ns + part.length_ns:
            t_ns = part.t_start_ns + part.length_ns
    return t_ns


def _work(t_ns: int, work_ns: int, away: list[Away]) -> int:
    """When work of a length begun at ``t_ns`` is done, with the thread away meanwhile as told."""
    end = t_ns + work_ns
    for part in away:
        if t_ns < part.t_start_ns < end:
            end += part.length_ns
    return end


def simulate(run: Run) -> tuple[list[int], list[tuple[int, int, int, int]], int]:
    """Releases by message, batches ``(popped, decided, first, n)``, and how often the ring was full."""
    feed = sorted((a for a in run.away if a.thread == "feed"), key=lambda a: a.t_start_ns)
    strategy = sorted((a for a in run.away if a.thread == "strategy"), key=lambda a: a.t_start_ns)
    releases: list[int] = []
    batches: list[tuple[int, int, int, int]] = []
    done_at: list[int] = []  # by message: when its slot came back
    full_waits = 0
    t_feed = T_START - 1_000
    t_strategy = T_START - 1_000
    popped_next = 0
    for message in range(run.n_messages):
        t = _work(t_feed, READ_NS, feed)
        if run.mode == "paced":
            t = max(t, intended(run, message))
        while True:
            blocker = message - run.ring_slots
            # Take batches until the slot this message needs is known to be free, or none is needed.
            while blocker >= len(done_at):
                t_strategy, popped_next = _take(releases, batches, done_at, strategy, t_strategy, popped_next)
            break
        if blocker >= 0 and done_at[blocker] > t:
            full_waits += 1
            t = done_at[blocker] + READ_NS
        t = _free_at(t, feed)
        releases.append(t)
        t_feed = t
        # Whatever the strategy pops before the next release is decided now.
        while popped_next < len(releases):
            t_pop = _pop_time(releases, strategy, t_strategy, popped_next)
            t_next = intended(run, message + 1) if run.mode == "paced" else t_feed + READ_NS
            t_next = _free_at(max(t_next, t_feed + READ_NS), feed)
            if t_pop >= t_next and message + 1 < run.n_messages:
                break
            t_strategy, popped_next = _take(releases, batches, done_at, strategy, t_strategy, popped_next)
    return releases, batches, full_waits


def _pop_time(releases: list[int], strategy: list[Away], t_strategy: int, first: int) -> int:
    return _free_at(max(t_strategy, releases[first] + READ_NS), strategy)


def _take(
    releases: list[int],
    batches: list[tuple[int, int, int, int]],
    done_at: list[int],
    strategy: list[Away],
    t_strategy: int,
    first: int,
) -> tuple[int, int]:
    t_pop = _pop_time(releases, strategy, t_strategy, first)
    n = int(np.searchsorted(np.array(releases[first:]), t_pop - READ_NS, side="right"))
    n = max(n, 1)
    decided = _work(t_pop, SERVICE_NS + n * PER_MESSAGE_NS, strategy)
    batches.append((t_pop, decided, first, n))
    done_at += [decided + READ_NS] * n
    return decided + READ_NS, first + n
