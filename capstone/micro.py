"""What a book and a queue cost alone: ``python -m capstone.micro REQUEST``, one JSON object in, one out.

``REQUEST`` holds ``cache_dir``, ``feed``, ``instrument``, ``cpu``, ``book`` and ``queue``. Printed are
``update_ns`` (an update of the book and a look at its top, as the loop does for a batch of one message) and
``push_pop_ns`` (a message through the queue, as both threads of the loop do it, here by one thread).

A single thread meets no contention, and its memory stays in its cache, so the loop pays more. Blocks of a few
microseconds are timed and the median block is taken: a block that the host interrupted is left out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from capstone import combination, feedfile

_BLOCK = 64  # operations, some microseconds
_N_BLOCKS = 2_048
_ROUNDS = 5
_DELETE = feedfile.KIND_DELETE


def main() -> int:
    """Measure what the request on the command line names, and print the figures."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    from capstone.cache import use_cache

    chosen = {**combination.DEFAULTS, "book": request["book"], "queue": request["queue"]}
    # Both must stand before numba is imported.
    use_cache(Path(request["cache_dir"]), chosen)
    combination.choose(chosen)
    os.sched_setaffinity(0, {request["cpu"]})
    sys.stdout.write(json.dumps(_measure(request)) + "\n")
    return 0


def _measure(request: dict[str, Any]) -> dict[str, float | None]:
    from capstone.micro_loops import time_book, time_queue

    feed = feedfile.read(Path(request["feed"])).messages
    price = feed["price_ticks"]
    book_module, queue_module = combination.component("book"), combination.component("queue")
    # As in a run, memory is 0 at first: a component that is initialised frees what it finds.
    book = np.zeros(book_module.n_words(int(price.min()), int(price.max())), np.int64)
    book_module.initialize(book, int(price.min()), int(price.max()))
    queue = np.zeros(queue_module.n_words(), np.int64)
    queue_module.initialize(queue)
    own = feed[feed["instrument"] == request["instrument"]][: _BLOCK * _N_BLOCKS]
    updates = np.empty((len(own), 3), np.int64)
    updates[:, 0], updates[:, 1] = own["side"], own["price_ticks"]
    updates[:, 2] = np.where(own["kind"] == _DELETE, 0, own["quantity"])
    books, queues = [], []
    for _ in range(_ROUNDS):
        books.append(_median_ns(time_book, book, updates))
        queues.append(_median_ns(time_queue, queue.ctypes.data, queue))
    # The first round compiles and fills the caches.
    return {name: _least(found[1:]) for name, found in (("update_ns", books), ("push_pop_ns", queues))}


def _least(figures: list[float | None]) -> float | None:
    """The smallest; None where the feed has too few updates to fill a block."""
    known = [figure for figure in figures if figure is not None]
    return min(known, default=None)


def _median_ns(loop: Any, *arguments: Any) -> float | None:
    blocks_ns = np.zeros(_N_BLOCKS, np.int64)
    loop(*arguments, _BLOCK, blocks_ns)
    timed = blocks_ns[blocks_ns > 0]
    return float(np.median(timed)) / _BLOCK if len(timed) else None


if __name__ == "__main__":
    sys.exit(main())
