"""The work of the live workload: an order message built, split, parsed and put into a cache of live orders.

Nothing here is done the fast way, on purpose: text is joined and split, each field becomes objects of its own, and
an order, its fills and its group refer to each other. When an order is replaced in the cache, these cycles keep its
group alive until the collector finds it, so that every generation, full collections included, has real work.
"""

from __future__ import annotations

# A group's first order is the parent of the rest: a cycle that becomes garbage as a whole.
GROUP = 8

_SEPARATOR = "|"
_SIDES = ("1", "2")
_SYMBOLS = ("EUR/USD", "GBP/USD", "USD/JPY", "AUD/USD", "EUR/GBP")


class Fill:
    """A part of an order that was executed. It knows its order, and the order knows it."""

    __slots__ = ("order", "price", "quantity")

    def __init__(self, order: Order, quantity: int, price: float) -> None:
        self.order = order
        self.quantity = quantity
        self.price = price


class Order:
    """An order in the cache: its fields as parsed, its fills, and its place in its group."""

    __slots__ = ("children", "client_id", "fields", "fills", "parent")

    def __init__(self, client_id: str, fields: dict[int, str], parent: Order | None) -> None:
        self.client_id = client_id
        self.fields = fields
        self.parent = parent
        self.children: list[Order] = []
        quantity, price = int(fields[38]), float(fields[44])
        self.fills = [Fill(self, quantity // 4, price), Fill(self, quantity - quantity // 4, price)]
        if parent is not None:
            parent.children.append(self)


def build_message(number: int) -> str:
    """A new-order message of tag=value fields; ``number`` decides what is in it."""
    fields = [
        "35=D",
        "49=SYSMETER",
        "56=EXCHANGE",
        "34=" + str(number),
        f"11=ORD-{number:010d}",
        "55=" + _SYMBOLS[number % len(_SYMBOLS)],
        "54=" + _SIDES[number & 1],
        "38=" + str(100_000 + number % 900),
        "40=2",
        f"44={1 + number % 10_000 / 100_000:.5f}",
        "59=3",
        "60=20260101-00:00:00.000",
    ]
    body = _SEPARATOR.join(fields)
    head = f"8=FIX.4.4{_SEPARATOR}9={len(body)}{_SEPARATOR}"
    return f"{head}{body}{_SEPARATOR}10={sum(body.encode()) % 256:03d}{_SEPARATOR}"


def split_message(text: str) -> list[str]:
    """The fields of a message, each still ``tag=value``."""
    return text.split(_SEPARATOR)[:-1]


def parse_fields(parts: list[str]) -> dict[int, str]:
    """Tag → value."""
    pairs = [part.split("=", 1) for part in parts]
    return {int(tag): value for tag, value in pairs}


class OrderCache:
    """The last ``capacity`` orders, by client id."""

    def __init__(self, capacity: int) -> None:
        self._ring: list[Order | None] = [None] * capacity
        self._by_id: dict[str, Order] = {}
        self._parent: Order | None = None
        self._n = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def n_stored(self) -> int:
        """How many orders were put into it: the number of the next one, which none of them has."""
        return self._n

    def store(self, fields: dict[int, str]) -> Order:
        """Put a new order into the cache; the oldest one leaves it once it is full."""
        place = self._n % len(self._ring)
        oldest = self._ring[place]
        if oldest is not None:
            del self._by_id[oldest.client_id]
        if self._n % GROUP == 0:
            self._parent = None
        order = Order(fields[11], fields, self._parent)
        if self._parent is None:
            self._parent = order
        self._by_id[order.client_id] = order
        self._ring[place] = order
        self._n += 1
        return order
