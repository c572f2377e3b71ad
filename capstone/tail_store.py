"""The slowest batches, with the release of each of their messages, in bounded memory.

Runs too long to keep every batch keep these: a heap of batches by peak response, and the releases in chunks
taken from a free list. A batch that finds no free chunk throws out the least slow ones, so what is kept is
every batch whose peak is above the heap's floor, and some whose peak is the floor itself.

Memory, as int64 words: the heap; then a batch record and its first chunk's number by slot; then the free
list (its length, then chunk numbers); then the number of the next chunk, by chunk; then the chunks.
"""

from __future__ import annotations

import numpy as np

from capstone import keep_largest, layout
from capstone.compiled import compiled

CAPACITY = 1 << 14
N_CHUNKS = 1 << 15

_ENTRY_WORDS = layout.BATCH_WORDS + 1
_CHUNK = layout.CHUNK_MESSAGES
_BATCH_WORDS = layout.BATCH_WORDS
_ENTRIES = keep_largest.n_words(CAPACITY)
_FREE = _ENTRIES + CAPACITY * _ENTRY_WORDS
_NEXT = _FREE + 1 + N_CHUNKS
_CHUNKS = _NEXT + N_CHUNKS


def n_words() -> int:
    """Words of memory that the store takes."""
    return _CHUNKS + N_CHUNKS * _CHUNK


def initialize(store) -> None:
    """Make ``store`` (int64 words) an empty one, and touch all of it."""
    store[_ENTRIES:] = 0
    keep_largest.initialize(store[:_ENTRIES], CAPACITY)
    store[_FREE] = N_CHUNKS
    store[_FREE + 1 : _FREE + 1 + N_CHUNKS] = np.arange(N_CHUNKS)


@compiled
def _free_chunks(store, slot):
    at = _ENTRIES + slot * _ENTRY_WORDS
    n = (store[at + 3] + _CHUNK - 1) // _CHUNK
    chunk = store[at + _BATCH_WORDS]
    n_free = store[_FREE]
    for _ in range(n):
        store[_FREE + 1 + n_free] = chunk
        n_free += 1
        chunk = store[_NEXT + chunk]
    store[_FREE] = n_free


@compiled
def offer_batch(store, peak_ns, batch, releases, release_mask):
    """Keep a batch (6 words, of which word 2 is the first message and word 3 how many) if it is slow enough.

    ``releases[m & release_mask]`` is the release of message m.
    """
    if peak_ns <= store[keep_largest.FLOOR]:
        store[keep_largest.N_DROPPED] += 1
        return
    n_messages = batch[3]
    n_chunks = (n_messages + _CHUNK - 1) // _CHUNK
    if n_chunks > N_CHUNKS or n_messages > release_mask:
        # More than the store, or than the releases that are still there, can hold: emptying it would not help.
        keep_largest.turn_away(store, peak_ns)
        return
    while store[_FREE] < n_chunks or store[keep_largest.HELD] == CAPACITY:
        if store[keep_largest.HELD] == 0 or store[keep_largest.KEYS] >= peak_ns:
            keep_largest.turn_away(store, peak_ns)
            return
        _free_chunks(store, keep_largest.pop_smallest(store))
    at = _ENTRIES + keep_largest.push(store, peak_ns) * _ENTRY_WORDS
    for k in range(_BATCH_WORDS):
        store[at + k] = batch[k]
    link = at + _BATCH_WORDS
    first_message = batch[2]
    n_free = store[_FREE]
    for k in range(n_messages):
        if k % _CHUNK == 0:
            n_free -= 1
            chunk = store[_FREE + 1 + n_free]
            store[link] = chunk
            link = _NEXT + chunk
            to = _CHUNKS + chunk * _CHUNK
        store[to + k % _CHUNK] = releases[(first_message + k) & release_mask]
    store[_FREE] = n_free


def kept(store):
    """The kept batches, by time: (batches of shape (n, 6), releases of all of them, offsets of shape (n,))."""
    held = int(store[keep_largest.HELD])
    slots = store[keep_largest.KEYS + CAPACITY :][:held]
    entries = store[_ENTRIES:_FREE].reshape(CAPACITY, _ENTRY_WORDS)[slots]
    entries = entries[entries[:, 0].argsort(kind="stable")]
    n_messages = entries[:, 3]
    offsets = np.concatenate(([0], np.cumsum(n_messages)[:-1])) if held else np.empty(0, np.int64)
    chunks = store[_CHUNKS:].reshape(N_CHUNKS, _CHUNK)
    releases = np.empty(int(n_messages.sum()), np.int64)
    for offset, n, first_chunk in zip(offsets.tolist(), n_messages.tolist(), entries[:, 6].tolist(), strict=True):
        chunk = first_chunk
        for done in range(0, n, _CHUNK):
            part = min(_CHUNK, n - done)
            releases[offset + done : offset + done + part] = chunks[chunk, :part]
            chunk = int(store[_NEXT + chunk])
    return entries[:, :6], releases, offsets.astype(np.int64)
