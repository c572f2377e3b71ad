"""The ring behind a real pthread_mutex: every push, look and release takes the lock.

Changes: the queue's synchronisation; the ring, its 4,096 slots and its order are the default's.
Breaks the zero "voluntary_switches": a thread that finds the mutex held sleeps in the kernel until it is free.
Should move: total, by two trips through the lock a message and now and then a sleep.
"""

from __future__ import annotations

import ctypes

from capstone.compiled import compiled
from capstone.swaps.queue import ring
from capstone.unsafe import mutex_lock, mutex_unlock

SLOTS = ring.SLOTS

PREDICTS = {"breaks": "voluntary_switches", "histogram": "total"}

# The mutex stands behind the ring, on cache lines of its own; a pthread_mutex_t has 40 bytes.
_MUTEX_AT_WORD = ring.n_words()
_MUTEX_WORDS = 32
_MUTEX_BYTES = _MUTEX_AT_WORD * 8


def n_words() -> int:
    """Words of shared memory the queue needs."""
    return _MUTEX_AT_WORD + _MUTEX_WORDS


def initialize(queue) -> None:
    """Make ``queue`` (int64 words) an empty one behind an open mutex, and touch all of it."""
    ring.initialize(queue[:_MUTEX_AT_WORD])
    queue[_MUTEX_AT_WORD:] = 0
    if ctypes.CDLL(None).pthread_mutex_init(ctypes.c_void_p(queue[_MUTEX_AT_WORD:].ctypes.data), None) != 0:
        raise OSError("pthread_mutex_init failed")


@compiled
def has_room(queue_at, queue):
    """Producer: may one message be pushed?"""
    mutex_lock(queue_at + _MUTEX_BYTES)
    is_free = ring.has_room(queue_at, queue)
    mutex_unlock(queue_at + _MUTEX_BYTES)
    return is_free


@compiled
def push(queue_at, queue, word0, word1, word2, t0_ns):
    """Producer: append one message; the caller has seen room."""
    mutex_lock(queue_at + _MUTEX_BYTES)
    ring.push(queue_at, queue, word0, word1, word2, t0_ns)
    mutex_unlock(queue_at + _MUTEX_BYTES)


@compiled
def available(queue_at, queue):
    """Consumer: how many messages lie between the tail and the head as seen now."""
    mutex_lock(queue_at + _MUTEX_BYTES)
    n = ring.available(queue_at, queue)
    mutex_unlock(queue_at + _MUTEX_BYTES)
    return n


@compiled
def first(queue):
    """Consumer: a cursor, two words, at the first message that is not released."""
    return ring.first(queue)


@compiled
def read(queue, cursor, unused):
    """Consumer: the message at the cursor; no lock, as what lies below the head seen is the consumer's alone."""
    return ring.read(queue, cursor, unused)


@compiled
def release(queue_at, queue, n):
    """Consumer: give the slots of the first ``n`` messages back."""
    mutex_lock(queue_at + _MUTEX_BYTES)
    ring.release(queue_at, queue, n)
    mutex_unlock(queue_at + _MUTEX_BYTES)
