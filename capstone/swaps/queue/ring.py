"""The default queue: a bounded single-producer single-consumer ring of 4,096 messages, lock-free.

A slot holds four words: the three of a message record, and its t0. The two cursors only ever grow; each
lies on cache lines of its own. The producer keeps its last sight of the tail on a line that only it touches,
so that the consumer's line changes hands only when the room it saw is used up.
"""

from __future__ import annotations

from capstone.compiled import compiled
from capstone.unsafe import load_acquire, store_release

SLOTS = 4096
_MASK = SLOTS - 1
_SLOT_WORDS = 4

# Words: 0 head (written by the producer); 16 the producer's sight of the tail; 32 tail (written by the
# consumer); 48 the slots.
_TAIL_SEEN = 16
_TAIL = 32
_SLOTS = 48
_TAIL_BYTES = _TAIL * 8


def n_words() -> int:
    """Words of shared memory the queue needs."""
    return _SLOTS + SLOTS * _SLOT_WORDS


def initialize(queue) -> None:
    """Make ``queue`` (int64 words) an empty one, and touch all of it."""
    queue[:] = 0


@compiled
def has_room(queue_at, queue):
    """Producer: may one message be pushed?"""
    if queue[0] - queue[_TAIL_SEEN] < SLOTS:
        return True
    queue[_TAIL_SEEN] = load_acquire(queue_at + _TAIL_BYTES)
    return queue[0] - queue[_TAIL_SEEN] < SLOTS


@compiled
def push(queue_at, queue, word0, word1, word2, t0_ns):
    """Producer: append one message; the caller has seen room."""
    head = queue[0]
    at = _SLOTS + (head & _MASK) * _SLOT_WORDS
    queue[at] = word0
    queue[at + 1] = word1
    queue[at + 2] = word2
    queue[at + 3] = t0_ns
    store_release(queue_at, head + 1)


@compiled
def available(queue_at, queue):
    """Consumer: how many messages lie between the tail and the head as seen now."""
    head = load_acquire(queue_at)
    return head - queue[_TAIL]


@compiled
def first(queue):
    """Consumer: a cursor, two words, at the first message that is not released."""
    return queue[_TAIL], 0


@compiled
def read(queue, cursor, _unused):
    """Consumer: (word0, word1, word2, t0_ns) of the message at the cursor, and the cursor of the next, two words."""
    at = _SLOTS + (cursor & _MASK) * _SLOT_WORDS
    return queue[at], queue[at + 1], queue[at + 2], queue[at + 3], cursor + 1, 0


@compiled
def release(queue_at, queue, n):
    """Consumer: give the slots of the first ``n`` messages back."""
    store_release(queue_at + _TAIL_BYTES, queue[_TAIL] + n)
