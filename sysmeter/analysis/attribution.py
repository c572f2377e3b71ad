"""The tail with its causes: slow messages and episodes charged to what held the thread that held them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.episodes import Episodes, find_episodes
from sysmeter.analysis.tail import Wait
from sysmeter.analysis.threadtime import ThreadTime, thread_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from sysmeter.analysis.offcpu import OffCpu
    from sysmeter.analysis.tail import Hold, SlowMessages
    from sysmeter.analysis.timeline import Timeline
    from sysmeter.recording import Recording

# What a thread's own work is to the message, by what the message waits for meanwhile.
_OWN_WORK = {
    Wait.BACKLOG: (causes.BACKLOG, "behind older messages of its episode"),
    Wait.QUEUE_FULL: (causes.QUEUE_FULL, "no room until an older message was done"),
}

# Messages in order need two or three chains; a damaged Recording must not cost a chain for each message.
_MAX_CHAINS = 8


@dataclass
class Charge:
    """What one cause on one thread has taken: of all slow samples, of all episodes, and of how many samples."""

    sample_time_ns: int = 0
    wall_time_ns: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Attribution:
    """Slow messages, episodes, the timelines they are charged to, and the charges by thread and cause."""

    slow: SlowMessages
    episodes: Episodes
    threads: dict[str, ThreadTime]
    charges: dict[tuple[str, Cause], Charge]

    @property
    def timelines(self) -> dict[str, Timeline]:
        """Each thread's."""
        return {thread: time_of.timeline for thread, time_of in self.threads.items()}

    def check(self) -> None:
        """Conservation: the parts are the whole, in sample time and in wall time.

        Raises:
            ArithmeticError: they are not, which is a defect of the analysis.
        """
        wholes = (int(self.slow.total_ns.sum()), int(self.episodes.duration_ns.sum()))
        charges = self.charges.values()
        sums = (sum(charge.sample_time_ns for charge in charges), sum(charge.wall_time_ns for charge in charges))
        if sums != wholes:
            raise ArithmeticError(f"the tail's parts add up to {sums} ns and not to {wholes} ns")


def thread_times(
    recording: Recording, off_cpu: Mapping[str, OffCpu], events: npt.NDArray[Any], until_ns: int = 0, from_ns: int = 0
) -> dict[str, ThreadTime]:
    """The timeline of each measured thread over its whole loop; ``events`` are the kernel events, by time.

    Over more where ``from_ns`` or ``until_ns`` lie outside the loop.
    """
    found = {}
    for thread, parts in off_cpu.items():
        reads = parts.reads
        start = reads.t_loop_start_ns or from_ns
        end = max(reads.t_loop_end_ns, until_ns, int(reads.gap_end_ns[-1]) if len(reads.gap_end_ns) else 0)
        start = min(start, from_ns or start, int(reads.gap_start_ns[0]) if len(reads.gap_start_ns) else start)
        found[thread] = thread_time(recording, thread, parts, events, start, max(end, start + 1))
    return found


def attribute(
    recording: Recording, off_cpu: Mapping[str, OffCpu], slow: SlowMessages, events: npt.NDArray[Any]
) -> Attribution:
    """Charge the slow messages to their causes; ``off_cpu`` has each measured thread's slices and reads."""
    episodes = find_episodes(slow)
    t_first_ns = int(slow.t0_ns.min()) if len(slow) else 0
    t_last_ns = int(episodes.t_end_ns.max()) if len(slow) else 0
    threads = thread_times(recording, off_cpu, events, t_last_ns, t_first_ns)
    charges = charge_tail(slow, episodes, {thread: time_of.timeline for thread, time_of in threads.items()})
    result = Attribution(slow, episodes, threads, charges)
    result.check()
    return result


def charge_tail(
    slow: SlowMessages, episodes: Episodes, timelines: Mapping[str, Timeline]
) -> dict[tuple[str, Cause], Charge]:
    """What each cause on each thread has taken of the slow messages and of their episodes."""
    charges: dict[tuple[str, Cause], Charge] = {}
    for thread, timeline in timelines.items():
        holds = slow.holds(thread)
        for hold in holds:
            names = _names(timeline, hold.wait)
            for name, time_ns in zip(names, timeline.charge(hold.t_start_ns, hold.t_end_ns).tolist(), strict=True):
                if time_ns:
                    charges.setdefault((thread, name), Charge()).sample_time_ns += time_ns
        of_thread = episodes.holds[thread]
        for wait in Wait:
            chosen = of_thread.wait == wait
            times = timeline.charge(of_thread.t_start_ns[chosen], of_thread.t_end_ns[chosen])
            for name, time_ns in zip(_names(timeline, wait), times.tolist(), strict=True):
                if time_ns:
                    charges.setdefault((thread, name), Charge()).wall_time_ns += time_ns
        _count_samples(thread, timeline, holds, charges)
    return charges


def episode_parts(found: Attribution, listed: npt.NDArray[np.int64]) -> dict[int, dict[tuple[str, Cause], int]]:
    """For each listed episode what held its oldest message, with the times; they add up to its duration."""
    parts: dict[int, dict[tuple[str, Cause], int]] = {int(number): {} for number in listed}
    for thread, timeline in found.timelines.items():
        holds = found.episodes.holds[thread]
        chosen = np.flatnonzero(np.isin(holds.episode, listed))
        hold, code, time = timeline.parts(holds.t_start_ns[chosen], holds.t_end_ns[chosen])
        owner, waits = holds.episode[chosen][hold].tolist(), holds.wait[chosen][hold].tolist()
        names = {wait: _names(timeline, wait) for wait in Wait}
        for number, wait, cause, time_ns in zip(owner, waits, code.tolist(), time.tolist(), strict=True):
            key = (thread, names[Wait(wait)][cause])
            parts[number][key] = parts[number].get(key, 0) + time_ns
    return parts


def _names(timeline: Timeline, wait: Wait) -> tuple[Cause, ...]:
    """The timeline's causes as a message meets them that waits for ``wait``: others' work is not its service."""
    if wait not in _OWN_WORK:
        return timeline.causes
    cause, detail = _OWN_WORK[wait]
    return tuple(
        Cause(cause, detail, name.evidence) if name.cause == causes.OWN_SERVICE else name for name in timeline.causes
    )


def _count_samples(
    thread: str, timeline: Timeline, holds: Sequence[Hold], charges: dict[tuple[str, Cause], Charge]
) -> None:
    """How many slow samples each cause has taken time of; a sample that meets it in several holds counts once."""
    members: dict[Cause, list[npt.NDArray[np.int64]]] = {}
    for hold in holds:
        names = _names(timeline, hold.wait)
        for code, samples in _samples_by_cause(timeline, hold.t_start_ns, hold.t_end_ns):
            members.setdefault(names[code], []).append(samples)
    for name, parts in members.items():
        charges[thread, name].samples = len(parts[0]) if len(parts) == 1 else len(np.unique(np.concatenate(parts)))


def _samples_by_cause(
    timeline: Timeline, t_start_ns: npt.NDArray[np.int64], t_end_ns: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Codes of causes, each with the indices of intervals that meet it; none twice with the same code.

    Memory is linear in such pairs, though an interval may meet a cause in very many segments: where the intervals'
    edges ascend, a segment is met by a range of them, and so is a cause by the union of its segments' ranges.
    """
    kept = np.flatnonzero(t_end_ns > t_start_ns)
    first, n_segments = timeline.spans(t_start_ns[kept], t_end_ns[kept])
    last = first + n_segments - 1
    *chains, unordered = _ascending_chains(first, last)
    for chain in chains:
        segment = np.arange(first[chain[0]], last[chain[-1]] + 1)
        low, high = np.searchsorted(last[chain], segment), np.searchsorted(first[chain], segment, side="right")
        order = np.argsort(timeline.cause[segment], kind="stable")
        code, low, high = timeline.cause[segment][order], low[order], high[order]
        is_first = np.append(True, code[1:] != code[:-1])
        # What the cause's segment before has met already is left out.
        low = np.maximum(low, np.where(is_first, 0, np.append(0, high[:-1])))
        n_met = np.maximum(high - low, 0)
        ends = np.cumsum(n_met)
        met = kept[chain[np.arange(int(ends[-1])) + np.repeat(low - (ends - n_met), n_met)]]
        cuts = np.append((ends - n_met)[is_first], len(met))
        for number, begin, end in zip(code[is_first].tolist(), cuts[:-1], cuts[1:], strict=True):
            if end > begin:
                yield number, met[begin:end]
    interval, cause, _ = timeline.parts(t_start_ns[kept[unordered]], t_end_ns[kept[unordered]])
    for number in np.unique(cause).tolist():
        yield number, kept[unordered[np.unique(interval[cause == number])]]


def _ascending_chains(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Indices in chains within which both edges ascend, and at the end what is left over, mostly nothing.

    In the order of the messages the edges of one hold ascend but for some steps back: the first message of a batch may
    have waited for older ones and the next not, so its own time begins later than the next one's.
    """
    left = np.arange(len(first))
    chains: list[npt.NDArray[np.int64]] = []
    while len(left) and len(chains) < _MAX_CHAINS:
        ascends = first[left] == np.maximum.accumulate(first[left])
        ascends &= last[left] == np.maximum.accumulate(last[left])
        chains.append(left[ascends])
        left = left[~ascends]
    return [*chains, left]
