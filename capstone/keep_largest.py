"""Bounded storage that keeps the entries with the largest keys, exactly: a binary heap of (key, slot).

Used for gaps (key: length) and, where not every batch is kept, for the slowest batches (key: peak response).
Memory is laid out as int64 words::

    word 0   capacity
    word 1   entries held
    word 2   floor: the largest key that was turned away or thrown out; -1 while everything is kept
    word 3   how many were turned away or thrown out
    from 4   capacity keys, heap-ordered, the smallest first
    then     capacity slots: where the entry of that key stands in a store beside this

What is kept is then every entry with a key above the floor, and some whose key is the floor itself. Both
operations are O(log capacity) at worst and O(1) on average while there is room.
"""

from __future__ import annotations

import numpy as np

from capstone.compiled import compiled

CAPACITY, HELD, FLOOR, N_DROPPED, KEYS = 0, 1, 2, 3, 4


def n_words(capacity: int) -> int:
    """Words of memory that a heap of this capacity takes."""
    return KEYS + 2 * capacity


def initialize(heap, capacity: int) -> None:
    """Make ``heap`` (int64 words) an empty one, and touch all of it."""
    heap[:] = 0
    heap[CAPACITY] = capacity
    heap[FLOOR] = -1
    # Slots are handed out in this order while there is room; a full heap reuses the slot it frees.
    heap[KEYS + capacity :] = np.arange(capacity)


@compiled
def push(heap, key):
    """Add a key where there is room (the caller has looked); returns the slot for its entry."""
    capacity = heap[CAPACITY]
    n = heap[HELD]
    slots = KEYS + capacity
    slot = heap[slots + n]
    heap[HELD] = n + 1
    child = n
    while child > 0:
        parent = (child - 1) >> 1
        if heap[KEYS + parent] <= key:
            break
        heap[KEYS + child] = heap[KEYS + parent]
        heap[slots + child] = heap[slots + parent]
        child = parent
    heap[KEYS + child] = key
    heap[slots + child] = slot
    return slot


@compiled
def pop_smallest(heap):
    """Throw the entry with the smallest key out, raising the floor; returns its slot, which is free again."""
    slots = KEYS + heap[CAPACITY]
    slot = heap[slots]
    if heap[KEYS] > heap[FLOOR]:
        heap[FLOOR] = heap[KEYS]
    heap[N_DROPPED] += 1
    n = heap[HELD] - 1
    heap[HELD] = n
    key = heap[KEYS + n]
    moved = heap[slots + n]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= n:
            break
        if child + 1 < n and heap[KEYS + child + 1] < heap[KEYS + child]:
            child += 1
        if heap[KEYS + child] >= key:
            break
        heap[KEYS + parent] = heap[KEYS + child]
        heap[slots + parent] = heap[slots + child]
        parent = child
    heap[KEYS + parent] = key
    heap[slots + parent] = moved
    # The freed slot stands just behind the held ones, where push takes the next from.
    heap[slots + n] = slot
    return slot


@compiled
def turn_away(heap, key):
    """Note that an entry with this key was not kept."""
    if key > heap[FLOOR]:
        heap[FLOOR] = key
    heap[N_DROPPED] += 1


@compiled
def offer(heap, key):
    """Keep ``key`` if it is among the largest; the slot for its entry, or -1."""
    if key <= heap[FLOOR]:
        heap[N_DROPPED] += 1
        return -1
    if heap[HELD] == heap[CAPACITY]:
        if key <= heap[KEYS]:
            turn_away(heap, key)
            return -1
        pop_smallest(heap)
    return push(heap, key)
