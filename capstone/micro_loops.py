"""The compiled loops of :mod:`capstone.micro`, specialised for the combination of the process."""

from __future__ import annotations

from capstone import combination
from capstone.compiled import compiled
from capstone.unsafe import clock_ns

_queue = combination.component("queue")
_has_room = _queue.has_room
_push = _queue.push
_available = _queue.available
_first = _queue.first
_read = _queue.read
_release = _queue.release
_book = combination.component("book")
_apply = _book.apply
_clear = _book.clear
_top = _book.top


@compiled
def time_book(book, updates, block, blocks_ns):
    """Apply ``updates`` (side, price, quantity) to an empty book, ``block`` of them between two clock reads."""
    _clear(book)
    kept = 0
    for b in range(min(len(blocks_ns), len(updates) // block)):
        begin_ns = clock_ns()
        for k in range(b * block, (b + 1) * block):
            _apply(book, updates[k, 0], updates[k, 1], updates[k, 2])
            bid_price, bid_quantity, ask_price, ask_quantity = _top(book)
            kept += bid_price + bid_quantity + ask_price + ask_quantity
        blocks_ns[b] = clock_ns() - begin_ns
    return kept


@compiled
def time_queue(queue_at, queue, block, blocks_ns):
    """Pass messages through the queue one at a time, ``block`` of them between two clock reads."""
    kept = 0
    for b in range(len(blocks_ns)):
        begin_ns = clock_ns()
        for k in range(block):
            if _has_room(queue_at, queue):
                _push(queue_at, queue, k, k, k, begin_ns)
            n = _available(queue_at, queue)
            cursor, rest = _first(queue)
            for _ in range(n):
                word0, word1, word2, _t0_ns, cursor, rest = _read(queue, cursor, rest)
                kept += word0 + word1 + word2
            _release(queue_at, queue, n)
        blocks_ns[b] = clock_ns() - begin_ns
    return kept
