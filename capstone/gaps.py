"""Gap records: two consecutive clock reads of one thread that lie further apart than its loop can explain."""

from __future__ import annotations

from capstone import keep_largest, layout
from capstone.compiled import compiled

# The longest gaps that are kept, a thread. An hour of ticks at 250 a second is 900,000 gaps, most of them
# the shortest; 131,072 of the longest are 5 MB.
CAPACITY = 1 << 17

_ENTRIES = keep_largest.n_words(CAPACITY)
_GAP_WORDS = layout.GAP_WORDS


def n_words() -> int:
    """Words of memory for one thread's gaps: the heap, then the entries by slot."""
    return _ENTRIES + CAPACITY * layout.GAP_WORDS


def initialize(gaps) -> None:
    """Make ``gaps`` (int64 words) empty, and touch all of it."""
    gaps[_ENTRIES:] = 0
    keep_largest.initialize(gaps[:_ENTRIES], CAPACITY)


@compiled
def keep_gap(gaps, t_start_ns, t_end_ns, where):
    """Record one gap, if it is among the longest."""
    slot = keep_largest.offer(gaps, t_end_ns - t_start_ns)
    if slot >= 0:
        at = _ENTRIES + slot * _GAP_WORDS
        gaps[at] = t_start_ns
        gaps[at + 1] = t_end_ns
        gaps[at + 2] = where


def kept(gaps):
    """The kept gaps as an array of shape (n, 3), by start: (t_start_ns, t_end_ns, where)."""
    held = int(gaps[keep_largest.HELD])
    slots = gaps[keep_largest.KEYS + CAPACITY :][:held]
    entries = gaps[_ENTRIES:].reshape(CAPACITY, layout.GAP_WORDS)[slots]
    return entries[entries[:, 0].argsort(kind="stable")]
