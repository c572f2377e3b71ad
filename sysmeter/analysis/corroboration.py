"""Second signs that the hypervisor had the CPU, apart from the kernel's having seen nothing.

The clock interrupt of a busy CPU comes at fixed instants. If one of them lies in a stretch that is inferred to be
outside the guest, the interrupt must come late, at the end of the stretch: the guest could not take it before. If it
did not, something is odd about the inference. Where no such instant lies in the stretch, this says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.analysis.reads import CLOCK_SLACK_NS, column
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.analysis.timeline import Timeline

YES, NO, NOT_POSSIBLE = range(3)
ANSWERS = ("yes", "no", "not possible")

# Ticks that must be seen before their period is believed, and how much of them must keep to it.
_MIN_TICKS = 20
_MIN_REGULAR_PART = 0.5
_REGULAR_NS = 50_000
# How long after the stretch the late interrupt may have its entry: as an interrupt's own edge, see gapcauses.
_LATE_WITHIN_NS = 100_000


def late_ticks(
    timeline: Timeline, events: npt.NDArray[Any], tid: int, t_out_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each segment of ``timeline``: -1 where it is not outside the guest, else an index into :data:`ANSWERS`.

    ``t_out_ns`` are the thread's switches away from the CPU, by time: an interrupt that came late, but after such a
    switch, was another task's and is not among the events.
    """
    answer = np.full(len(timeline.cause), -1, np.int64)
    is_outside = np.array([cause.cause == causes.OUTSIDE_GUEST for cause in timeline.causes], np.bool_)
    segment = np.flatnonzero(is_outside[timeline.cause])
    answer[segment] = NOT_POSSIBLE
    is_tick = (events["kind"] == records.EVENT_INTERRUPT) & (events["detail"] == records.INTERRUPT_LOCAL_TIMER)
    ticks = column(events[is_tick & (events["tid"] == tid)], "t_ns")
    rhythm = _rhythm(ticks)
    if rhythm is None or not len(segment):
        return answer
    period_ns, phase_ns = rhythm
    start, end = timeline.bounds_ns[segment], timeline.bounds_ns[segment + 1]
    due = start + (phase_ns - start) % period_ns
    before = np.append(ticks, np.iinfo(np.int64).min // 2)[np.searchsorted(ticks, start) - 1]
    # An interrupt a little early by this rhythm has been taken; the next one counts.
    due = np.where(before > due - period_ns // 2, due + period_ns, due)
    is_due = due < end - CLOCK_SLACK_NS
    next_tick = np.searchsorted(ticks, end - CLOCK_SLACK_NS)
    came_late = next_tick < len(ticks)
    came_late[came_late] = ticks[next_tick[came_late]] <= end[came_late] + _LATE_WITHIN_NS
    left = np.searchsorted(t_out_ns, start)
    stayed = left == np.searchsorted(t_out_ns, end + _LATE_WITHIN_NS)
    # Without the interrupt before it, nobody knows that the next one would have come: the tick may be switched off.
    stayed &= before > due - period_ns - period_ns // 2
    answer[segment[is_due & stayed]] = NO
    answer[segment[is_due & came_late]] = YES
    return answer


def _rhythm(ticks: npt.NDArray[np.int64]) -> tuple[int, int] | None:
    """Period and phase of the clock interrupt, or None where it is not regular (a tickless CPU)."""
    if len(ticks) < _MIN_TICKS:
        return None
    intervals = np.diff(ticks)
    usual_ns = float(np.median(intervals))
    if usual_ns < 1:
        return None
    # The kernel's own arithmetic, so that the phase does not drift over many periods (TICK_NSEC in linux/jiffies.h).
    hz = max(round(NS_PER_S / usual_ns), 1)
    period_ns = (NS_PER_S + hz // 2) // hz
    is_regular = np.abs(intervals - period_ns) < _REGULAR_NS
    if np.mean(is_regular) < _MIN_REGULAR_PART:
        return None
    # Late ones are a minority, so the median is the phase; taken relative to one in time, so that it cannot wrap.
    one = int(ticks[int(np.argmax(is_regular)) + 1])
    offsets = (ticks - one + period_ns // 2) % period_ns - period_ns // 2
    return period_ns, int(one + np.median(offsets)) % period_ns
