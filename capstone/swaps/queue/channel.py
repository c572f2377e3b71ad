"""An unbounded linked channel: blocks of 31 messages, allocated as it grows and freed when read.

Changes: the queue. No message ever waits for room, and a batch drains up to the head seen.
Breaks the zero "allocations": the feed thread allocates a block for each 31 messages, the strategy frees it.
Should move: total, by the cost of allocating and of memory that is cold.
"""

from __future__ import annotations

from capstone.compiled import compiled, words
from capstone.unsafe import allocate, free, load_acquire, store_release

# No bound: the feed thread never finds it full.
SLOTS = None

# The message that opens a block pays for it; the others find it there.
PREDICTS = {"breaks": "allocations", "histogram": "total", "one_in": 31}

_BLOCK_MESSAGES = 31
_SLOT_WORDS = 4
# A block: the address of the next one, then the messages; 1,000 bytes.
_BLOCK_WORDS = 1 + _BLOCK_MESSAGES * _SLOT_WORDS
_BLOCK_BYTES = _BLOCK_WORDS * 8

# Words: 0 messages pushed (written by the producer); 16 and 17 the producer's block and its next slot;
# 32 messages released (written by the consumer); 48 and 49 the consumer's block and its next slot.
_PRODUCER_BLOCK, _PRODUCER_SLOT = 16, 17
_RELEASED = 32
_CONSUMER_BLOCK, _CONSUMER_SLOT = 48, 49


def n_words() -> int:
    """Words of shared memory the queue needs; its blocks come from the heap."""
    return 64


def initialize(queue) -> None:
    """Make ``queue`` (int64 words) an empty one, with one block."""
    _start(queue)


@compiled
def _start(queue):
    block = queue[_CONSUMER_BLOCK]
    while block != 0:
        following = words(block, _BLOCK_WORDS)[0]
        free(block)
        block = following
    block = allocate(_BLOCK_BYTES)
    words(block, _BLOCK_WORDS)[0] = 0
    queue[:] = 0
    queue[_PRODUCER_BLOCK] = block
    queue[_CONSUMER_BLOCK] = block


@compiled
def has_room(_queue_at, _queue):
    """Producer: may one message be pushed? Always."""
    return True


@compiled
def push(queue_at, queue, word0, word1, word2, t0_ns):
    """Producer: append one message, in a new block where the last one is full."""
    slot = queue[_PRODUCER_SLOT]
    if slot == _BLOCK_MESSAGES:
        following = allocate(_BLOCK_BYTES)
        words(following, _BLOCK_WORDS)[0] = 0
        words(queue[_PRODUCER_BLOCK], _BLOCK_WORDS)[0] = following
        queue[_PRODUCER_BLOCK] = following
        slot = 0
    block = words(queue[_PRODUCER_BLOCK], _BLOCK_WORDS)
    at = 1 + slot * _SLOT_WORDS
    block[at] = word0
    block[at + 1] = word1
    block[at + 2] = word2
    block[at + 3] = t0_ns
    queue[_PRODUCER_SLOT] = slot + 1
    # The link above is written before this, so whoever sees the message can follow it.
    store_release(queue_at, queue[0] + 1)


@compiled
def available(queue_at, queue):
    """Consumer: how many messages were pushed and are not released yet."""
    return load_acquire(queue_at) - queue[_RELEASED]


@compiled
def first(queue):
    """Consumer: a cursor, block and slot, at the first message that is not released."""
    return queue[_CONSUMER_BLOCK], queue[_CONSUMER_SLOT]


@compiled
def read(_queue, block, slot):
    """Consumer: (word0, word1, word2, t0_ns) of the message at the cursor, and the cursor of the next, two words."""
    if slot == _BLOCK_MESSAGES:
        block = words(block, _BLOCK_WORDS)[0]
        slot = 0
    messages = words(block, _BLOCK_WORDS)
    at = 1 + slot * _SLOT_WORDS
    return messages[at], messages[at + 1], messages[at + 2], messages[at + 3], block, slot + 1


@compiled
def release(queue_at, queue, n):
    """Consumer: the first ``n`` messages are read; blocks that held nothing else are freed."""
    block = queue[_CONSUMER_BLOCK]
    slot = queue[_CONSUMER_SLOT]
    left = n
    while left > 0:
        if slot == _BLOCK_MESSAGES:
            following = words(block, _BLOCK_WORDS)[0]
            free(block)
            block = following
            slot = 0
        step = min(left, _BLOCK_MESSAGES - slot)
        slot += step
        left -= step
    queue[_CONSUMER_BLOCK] = block
    queue[_CONSUMER_SLOT] = slot
    queue[_RELEASED] += n
