"""The strategy thread spins before it looks into the queue, at start + k·period, k >= 1.

Changes: nothing of a message's path; the thread that would take it is away.
Breaks no zero: the thread spins, it does not sleep.
Should move: total's tail, by up to the stall's length, while think stays.
"""

from __future__ import annotations

from typing import Any

from capstone.compiled import compiled
from capstone.gaps import keep_gap
from capstone.plan import MAX_STALLS
from capstone.unsafe import clock_ns
from sysmeter.records import GAP_IN_SPIN

PREDICTS = {"breaks": None, "histogram": "total"}

# Words: 0 the next stall's instant; 1 period; 2 length; 3 stalls so far; from 8 three words for each of them
# that is kept: begin, end, messages that waited in the queue at its end.
_NEXT, _PERIOD, _LENGTH, _N, _RECORDS = 0, 1, 2, 3, 8
_RECORD_WORDS = 3
_CAPACITY = MAX_STALLS + 1
_NEVER_NS = 1 << 62
_GAP_IN_SPIN = GAP_IN_SPIN


def n_words(_settings: dict[str, Any]) -> int:
    """Words of shared memory needed."""
    return _RECORDS + _CAPACITY * _RECORD_WORDS


def initialize(stall, settings: dict[str, Any]) -> None:
    """Make ``stall`` (int64 words) ready for a run, and touch all of it."""
    stall[:] = 0
    stall[_NEXT] = _NEVER_NS
    stall[_PERIOD] = settings["stall_every_ns"]
    stall[_LENGTH] = settings["stall_for_ns"]


def kept(stall) -> list[tuple[int, int, int]]:
    """The stalls that happened: (t_start_ns, duration_ns, messages that waited)."""
    n = min(int(stall[_N]), _CAPACITY)
    rows = stall[_RECORDS:].reshape(-1, _RECORD_WORDS)[:n].tolist()
    return [(begin, end - begin, n_waiting) for begin, end, n_waiting in rows]


@compiled
def arm(stall, t_start_ns):
    """Plan the first stall, one period after the run's start."""
    stall[_NEXT] = t_start_ns + stall[_PERIOD]


@compiled
def is_due(stall, now_ns):
    """Is it time?"""
    return now_ns >= stall[_NEXT]


@compiled
def spin(stall, gaps, last_ns, gap_threshold_ns):
    """Spin for the stall's length, recording gaps as every spin does; returns the last clock read."""
    begin_ns = last_ns
    end_ns = begin_ns + stall[_LENGTH]
    while last_ns < end_ns:
        now_ns = clock_ns()
        if now_ns - last_ns > gap_threshold_ns:
            keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
        last_ns = now_ns
    n = stall[_N]
    if n < _CAPACITY:
        at = _RECORDS + n * _RECORD_WORDS
        stall[at] = begin_ns
        stall[at + 1] = last_ns
    stall[_N] = n + 1
    while stall[_NEXT] <= last_ns:
        stall[_NEXT] += stall[_PERIOD]
    return last_ns


@compiled
def note_waiting(stall, n_waiting):
    """Note how many messages waited in the queue when the stall just over ended."""
    n = stall[_N] - 1
    if n < _CAPACITY:
        stall[_RECORDS + n * _RECORD_WORDS + 2] = n_waiting
