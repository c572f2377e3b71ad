"""The tail: which responses were slow, and who held each message when."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.reads import CLOCK_SLACK_NS, column, disjoint_gaps
from sysmeter.buckets import exact_percentile
from sysmeter.errors import RecordingError
from sysmeter.hist import LatencyHistogram, bucket_index, bucket_upper_bound, percentile_rank
from sysmeter.records import CAPSTONE, WorkloadKind
from sysmeter.schedule import intended_ns

if TYPE_CHECKING:
    import numpy.typing as npt

    from sysmeter.recording import Recording

TAIL_PERCENTILE = "99.9"
# Where too few samples stand behind p99.9, the next lower percentile that has enough takes its place.
_FALLBACK_PERCENTILES = ("99", "90", "50")


@dataclass(frozen=True)
class Threshold:
    """From which response time on a sample is slow; ``ns`` is None where no sample is known."""

    ns: int | None
    source: str  # "p99.9", a lower percentile, or "storage floor"


class Wait(enum.IntEnum):
    """What a message waits for while a thread holds it."""

    OWN = 0  # nothing but its own service, or the thread
    BACKLOG = 1  # the thread is at work on messages before it
    QUEUE_FULL = 2  # the queue has no room for it


@dataclass(frozen=True)
class Hold:
    """The intervals in which one thread held each slow message for one reason; both edges in message order."""

    wait: Wait
    t_start_ns: npt.NDArray[np.int64]
    t_end_ns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class SlowMessages:
    """The slow samples, by message number: int64 arrays of one length, nanoseconds on CLOCK_MONOTONIC.

    ``t0_ns <= t_room_ns <= t_free_ns <= t_released_ns <= t_taken_ns <= t_decided_ns``. The strategy thread holds a
    message before ``t_room_ns`` (the queue was full of messages it had not taken) and after ``t_released_ns``, the
    feed thread between the two. Up to ``t_free_ns`` the feed thread was still busy with the message before, up to
    ``t_taken_ns`` the strategy thread with older batches. Where one thread does everything, the first four are equal
    and it holds all of it.
    """

    message: npt.NDArray[np.int64]
    t0_ns: npt.NDArray[np.int64]
    t_room_ns: npt.NDArray[np.int64]
    t_free_ns: npt.NDArray[np.int64]
    t_released_ns: npt.NDArray[np.int64]
    t_taken_ns: npt.NDArray[np.int64]
    t_decided_ns: npt.NDArray[np.int64]
    n_reordered: int = 0  # of those looked at: releases outside [t0, decided], drawn to the nearer end
    kind: WorkloadKind = CAPSTONE

    def __len__(self) -> int:
        return len(self.message)

    @property
    def total_ns(self) -> npt.NDArray[np.int64]:
        """Response times."""
        return self.t_decided_ns - self.t0_ns

    def at_least(self, threshold_ns: int) -> SlowMessages:
        """Those of them with a response time of ``threshold_ns`` or more."""
        kept = self.total_ns >= threshold_ns
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        chosen: dict[str, Any] = {name: value[kept] for name, value in columns.items() if isinstance(value, np.ndarray)}
        return replace(self, **chosen)

    def holds(self, thread: str) -> list[Hold]:
        """In which intervals ``thread`` held each message, and what the message waited for; they may overlap.

        The holds of all threads together are each message's whole response time.
        """
        if thread == self.kind.feeder:
            return [
                Hold(Wait.BACKLOG, self.t_room_ns, self.t_free_ns),
                Hold(Wait.OWN, self.t_free_ns, self.t_released_ns),
            ]
        return [
            Hold(Wait.QUEUE_FULL, self.t0_ns, self.t_room_ns),
            Hold(Wait.BACKLOG, self.t_released_ns, self.t_taken_ns),
            Hold(Wait.OWN, self.t_taken_ns, self.t_decided_ns),
        ]


def histogram(recording: Recording, name: str) -> LatencyHistogram:
    """The recorded histogram ``name``, one of its workload's."""
    meta = recording.meta["histograms"][name]
    return LatencyHistogram.from_parts(
        recording[f"{name}_counts"],
        meta["sub_bits"],
        meta["count"],
        meta["min_ns"],
        meta["max_ns"],
        meta["sum_ns"],
        meta.get("n_negative", 0),
    )


def tail_histogram(recording: Recording) -> str:
    """The histogram that the tail is taken from: response times, or service times where there are no others.

    A live run without a schedule intends no message for any instant, so nothing can answer late.
    """
    kind = recording.kind
    has_response = kind is CAPSTONE or recording.meta["settings"]["mode"] == "paced"
    return kind.response if has_response else kind.service


def find_tail(recording: Recording, percentile: str = TAIL_PERCENTILE) -> tuple[Threshold, SlowMessages | None]:
    """The responses from ``percentile`` on (the slowest 0.1 %), and from which response time on they are.

    Where too few samples stand behind it, the next lower one of a few takes its place.
    The threshold is the exact p99.9 sample, which lies in the bucket that the histogram's p99.9 bounds from
    above: where the whole tail lies in one bucket, the bound itself would leave next to nothing beyond it.
    Where only the slowest batches were kept, the threshold is raised above the slowest one that was not, so
    that the set of slow samples is always complete.

    Raises:
        RecordingError: as :func:`slow_messages`.
    """
    total = histogram(recording, tail_histogram(recording))
    lower = [other for other in _FALLBACK_PERCENTILES if exact_percentile(other) < exact_percentile(percentile)]
    for chosen in (percentile, *lower):
        upper_ns = total.reportable_percentile(chosen)
        if upper_ns is None:
            continue
        index = bucket_index(upper_ns, total.sub_bits)
        lower_ns = bucket_upper_bound(index - 1, total.sub_bits) + 1 if index else 0
        floor_ns = recording.meta["run"].get("tail_floor_ns") or 0
        is_cut = recording.meta["run"]["storage"] == "tail" and lower_ns <= floor_ns
        least_ns = floor_ns + 1 if is_cut else lower_ns
        slow = slow_messages(recording, least_ns)
        n_wanted = total.count - percentile_rank(chosen, total.count) + 1
        if len(slow) < n_wanted:
            return Threshold(least_ns, "storage floor" if is_cut else f"p{chosen}"), slow
        exact_ns = int(np.partition(slow.total_ns, len(slow) - n_wanted)[len(slow) - n_wanted])
        return Threshold(exact_ns, f"p{chosen}"), slow.at_least(exact_ns)
    return Threshold(None, "no samples" if total.count == 0 else "too few samples"), None


def beyond_bucket(recording: Recording, slow: SlowMessages, threshold_ns: int) -> tuple[int, int]:
    """How many samples lie above the threshold's bucket: by the loop's own histogram, and by ``slow``.

    The loop counted each response as it happened; ``slow`` is worked out from batches and releases. The two
    must be equal, or the Recording does not say what the tail is made of.
    """
    total = histogram(recording, tail_histogram(recording))
    index = bucket_index(threshold_ns, total.sub_bits)
    upper_ns = bucket_upper_bound(index, total.sub_bits)
    return int(total.counts[index + 1 :].sum()), int(np.count_nonzero(slow.total_ns > upper_ns))


def slow_messages(recording: Recording, threshold_ns: int) -> SlowMessages:
    """Every message of the window whose response time is ``threshold_ns`` or more.

    Messages without a decision have no response time.

    Raises:
        RecordingError: a batch names messages whose release was not stored.
    """
    batches = recording["batches"]
    run = recording.meta["run"]
    decided, first_message = column(batches, "t_decided_ns"), column(batches, "first_message")
    n_messages, offsets = column(batches, "n_messages"), np.asarray(recording["release_offsets"], np.int64)
    releases = recording["releases"]
    _check_bounds(recording, n_messages, offsets)
    # Both t0 and the decisions ascend, so a batch's first message in the window is its slowest.
    first = np.maximum(first_message, run["n_warmup"])
    n_in_window = np.maximum(first_message + n_messages - first, 0)
    slow = np.flatnonzero((decided >= 0) & (n_in_window > 0))
    t0_first = _t0(recording, first[slow], offsets[slow] + first[slow] - first_message[slow])
    slow = slow[decided[slow] - t0_first >= threshold_ns]

    row = np.repeat(slow, n_in_window[slow])
    begin = np.cumsum(n_in_window[slow]) - n_in_window[slow]
    message = np.arange(len(row)) + np.repeat(first[slow] - begin, n_in_window[slow])
    at = offsets[row] + message - first_message[row]
    released = np.asarray(releases[at], np.int64)
    t0, t_decided = _t0(recording, message, at), decided[row]
    above = t_decided - t0 >= threshold_ns
    message, t0, released, t_decided = message[above], t0[above], released[above], t_decided[above]
    row, at = row[above], at[above]
    popped = column(batches, "t_popped_ns")
    # Where the batch before was kept, it tells whether the thread was still busy with it.
    follows = (row > 0) & (first_message[row - 1] + n_messages[row - 1] == first_message[row])
    done_before = np.where(follows, np.maximum(decided, popped)[row - 1], 0)
    if recording.kind.feeder is None:
        taken = np.where(done_before > t0, np.clip(popped[row], t0, t_decided), t0)
        return SlowMessages(message, t0, t0, t0, t0, taken, t_decided, kind=recording.kind)
    released = pushed_ns(recording, released, popped[row])
    inside = np.clip(released, t0, t_decided)
    room = _t_room(recording, message, t0, inside, batches)
    has_before = (message > first_message[row]) | (follows & (offsets[row - 1] + n_messages[row - 1] == offsets[row]))
    free = np.where(has_before, np.asarray(releases[np.maximum(at - 1, 0)], np.int64), room)
    taken = np.where(done_before > inside, popped[row], inside)
    return SlowMessages(
        message,
        t0,
        room,
        np.clip(free, room, inside),
        inside,
        np.clip(taken, inside, t_decided),
        t_decided,
        int((inside != released).sum()),
        recording.kind,
    )


def pushed_ns(
    recording: Recording, released: npt.NDArray[np.int64], popped: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """When each message was in the queue at the latest: its release, or the end of a gap that begins with it.

    The release is the feed thread's last clock read before the push. A gap that begins at this very read may
    have come before the push, with the message still in the feed thread's hands, or after it. A strategy
    thread that went on spinning and did not find the message tells: it was not there. Only where the strategy
    thread was itself away at the release, and took the message as soon as it was back, both remain possible,
    and its own gap, which it had in either case, is charged.
    """
    gaps = disjoint_gaps(recording, "feed")
    start, end = column(gaps, "t_start_ns"), column(gaps, "t_end_ns")
    at = np.minimum(np.searchsorted(start, released), max(len(start) - 1, 0))
    if not len(start):
        return released
    begins_gap = start[at] == released
    pushed = np.where(begins_gap, np.clip(popped, released, end[at]), released)
    away = disjoint_gaps(recording, "strategy")
    if len(away):
        away_start, away_end = column(away, "t_start_ns"), column(away, "t_end_ns")
        last = np.searchsorted(away_start, released + CLOCK_SLACK_NS, side="right") - 1
        was_away = (last >= 0) & (away_end[last] > released) & (popped <= away_end[last] + CLOCK_SLACK_NS)
        pushed = np.where(was_away, released, pushed)
    return pushed


def _t0(
    recording: Recording, message: npt.NDArray[np.int64], release_at: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    settings = recording.meta["settings"]
    if settings["mode"] != "paced":
        return np.asarray(recording["releases"][release_at], np.int64)
    return intended_ns(recording.meta["run"]["t_start_ns"], int(settings["rate_hz"]), message)


def _t_room(
    recording: Recording,
    message: npt.NDArray[np.int64],
    t0: npt.NDArray[np.int64],
    released: npt.NDArray[np.int64],
    batches: npt.NDArray[Any],
) -> npt.NDArray[np.int64]:
    """When the queue had room for each message: not before the one a queue's length ahead was decided.

    The strategy thread gives a batch's slots back when it is done with the batch. Until then the feed thread
    could not have released the message, whatever held it, so that time is the strategy's. Where that batch
    was not kept no such claim is made.
    """
    if recording.meta["settings"]["mode"] != "paced" or not recording.meta["run"].get("ring_full_waits"):
        return t0
    ahead = message - recording.meta["settings"]["ring_slots"]
    first_message, n_messages = column(batches, "first_message"), column(batches, "n_messages")
    at = np.searchsorted(first_message, ahead, side="right") - 1
    known = (at >= 0) & (ahead >= 0)
    known[known] = ahead[known] < (first_message + n_messages)[at[known]]
    # A batch without a decision is still done with at some time after its pop.
    done = np.maximum(column(batches, "t_decided_ns"), column(batches, "t_popped_ns"))
    room = t0.copy()
    room[known] = np.clip(done[at[known]], t0[known], released[known])
    return room


def _check_bounds(recording: Recording, n_messages: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
    if len(offsets) and (
        int(offsets.min()) < 0
        or int(n_messages.min()) < 0
        or int((offsets + n_messages).max()) > len(recording["releases"])
    ):
        raise RecordingError("the Recording is damaged: a batch names messages whose release was not stored")
