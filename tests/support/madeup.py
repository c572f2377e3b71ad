"""Whole runs made by Hypothesis: both threads away or interrupted at any times, for any reason, seen or not."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sysmeter import records
from tests.support.kernelevents import fault, interrupt, migration, softirq, syscall
from tests.support.loop import ASLEEP, PREEMPTED, STOPPED, THROTTLED
from tests.support.runs import CPUS, T_START, Away, Run

MOVER = (12, b"two")
FUTEX, NANOSLEEP = 202, 35
# Events keep so far from a gap's edges that the clocks' slack does not blur in which gap they are.
MARGIN_NS = 2_000


@st.composite
def on_cpu_events(draw: st.DrawFn, thread: str, t_start_ns: int, length_ns: int) -> list[np.void]:
    """Interrupts, softirqs with interrupts nested in them, faults and system calls within a stretch."""
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        t = t_start_ns + draw(st.integers(MARGIN_NS, length_ns - MARGIN_NS - 1))
        room = t_start_ns + length_ns - MARGIN_NS - t
        length = draw(st.integers(1, min(room, 40_000)))
        match draw(st.sampled_from(["interrupt", "device", "softirq", "fault", "syscall"])):
            case "interrupt":
                rows.append(interrupt(thread, t, length))
            case "device":
                rows.append(interrupt(thread, t, length, records.INTERRUPT_DEVICE, draw(st.sampled_from([27, 28]))))
            case "softirq":
                rows.append(softirq(thread, t, length, draw(st.sampled_from([1, 9]))))
                inside = draw(st.integers(0, length - 1))
                rows.append(interrupt(thread, t + inside, draw(st.integers(1, length - inside))))
            case "fault":
                rows.append(fault(thread, t, draw(st.sampled_from([0x7F0000001000, 0x7F0000002000, 2**64 - 4096]))))
            case "syscall":
                rows.append(syscall(thread, t, draw(st.sampled_from([FUTEX, NANOSLEEP])), 0x7F0000003000))
    return rows


@st.composite
def runs(draw: st.DrawFn, **fixed: object) -> Run:
    """Any run; ``fixed`` are fields of it that are not drawn."""
    away, extra = [], []
    for thread in ("feed", "strategy"):
        t = T_START
        for _ in range(draw(st.integers(0, 4))):
            t += draw(st.integers(10_000, 1_500_000))
            length = draw(st.integers(6_000, 900_000))
            stolen = draw(st.booleans())
            state = draw(st.sampled_from([PREEMPTED, PREEMPTED, THROTTLED, ASLEEP, STOPPED]))
            cut = draw(st.integers(1, length - 2_001))
            taken = [(11, b"one", cut), (*MOVER, length - 2_000 - cut)]
            woken = draw(st.integers(1, length - 2_001)) if state in (ASLEEP, STOPPED) and draw(st.booleans()) else None
            lose = draw(st.sampled_from([None, None, 1]))
            lost_in = draw(st.booleans()) and draw(st.booleans())
            away.append(Away(thread, t, length, None if stolen else taken, state, woken, lost_in, lose))
            extra += draw(on_cpu_events(thread, t, length))
            if draw(st.booleans()):
                at = t + draw(st.integers(0, length - 1))
                extra.append(migration(thread, at, CPUS[thread], 1 - CPUS[thread], MOVER))
            t += length
            # Short ones leave no gap.
            extra += [interrupt(thread, t + 3_000, 900)] if draw(st.booleans()) else []
    drawn = {
        "n_messages": draw(st.integers(130, 900)),
        "n_warmup": draw(st.integers(0, 20)),
        "mode": draw(st.sampled_from(["paced", "paced", "flat"])),
        "ring_slots": draw(st.sampled_from([16, 4_096])),
        "probes": draw(st.sampled_from([True, True, True, False])),
        "lost": draw(st.sampled_from([0, 0, 0, 3])),
        "throttled_periods": draw(st.sampled_from([{}, {"/limited": 3}])),
        "tail_batches": draw(st.sampled_from([None, None, 5, 40])),
        "collections": [(T_START + 500_000, T_START + 900_000, 0)] if draw(st.booleans()) else [],
    }
    return Run(away=away, extra_events=extra, **{**drawn, **fixed})  # type: ignore[arg-type]
