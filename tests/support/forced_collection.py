"""The live workload with one full collection forced amid its work: ``python -m tests.support.forced_collection``.

Started in place of ``sysmeter.live``; everything else is as there. The collection is forced at the order that stands
in SYSMETER_TEST_COLLECT_AT, counted from the process's first.
"""

from __future__ import annotations

import gc
import os
import sys

from sysmeter.live import __main__ as live
from sysmeter.live.orders import Order, OrderCache
from sysmeter.workload import serve

_store = OrderCache.store
_left = [int(os.environ["SYSMETER_TEST_COLLECT_AT"])]


def _store_and_collect(self: OrderCache, fields: dict[int, str]) -> Order:
    order = _store(self, fields)
    _left[0] -= 1
    if _left[0] == 0:
        gc.collect()
    return order


if __name__ == "__main__":
    OrderCache.store = _store_and_collect  # type: ignore[method-assign]
    sys.exit(serve(live._carry_out))
