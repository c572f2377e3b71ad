"""An ordered tree of price levels, whose nodes are really allocated and freed as levels come and go.

Changes: the book. Each side is a treap: ordered by price, balanced by a random priority per node.
Breaks the zero "allocations": an add allocates a node, a delete frees one.
Should move: think, by the search from the root and by the allocator.
"""

from __future__ import annotations

from capstone.compiled import compiled, words
from capstone.unsafe import allocate, free

PREDICTS = {"breaks": "allocations", "histogram": "think"}

# Words of the book: the roots of both sides (0: empty), and the state of the priorities' generator.
_ROOTS = 0
_RANDOM = 2
_N_WORDS = 16
_SEED = 88172645463325252

# Words of a node.
_PRICE, _QUANTITY, _LEFT, _RIGHT, _PRIORITY = 0, 1, 2, 3, 4
_NODE_WORDS = 5
_NODE_BYTES = _NODE_WORDS * 8


def n_words(_lowest_price_ticks: int, _highest_price_ticks: int) -> int:
    """Words of shared memory for a book; its nodes come from the heap."""
    return _N_WORDS


def initialize(book, _lowest_price_ticks: int, _highest_price_ticks: int) -> None:
    """Make ``book`` (int64 words) an empty one."""
    clear(book)
    book[_RANDOM] = _SEED


@compiled
def _node(address):
    return words(address, _NODE_WORDS)


@compiled
def _join(links, link, left, right):
    """Hang the merger of two trees, all of one priced below the other, at ``links[link]``."""
    while left != 0 and right != 0:
        if _node(left)[_PRIORITY] > _node(right)[_PRIORITY]:
            links[link] = left
            links, link = _node(left), _RIGHT
            left = links[_RIGHT]
        else:
            links[link] = right
            links, link = _node(right), _LEFT
            right = links[_LEFT]
    links[link] = left if left != 0 else right


@compiled
def _insert(book, side, price_ticks, quantity):
    # Marsaglia's xorshift64 (Journal of Statistical Software 8(14), 2003), masked to stay positive.
    random = book[_RANDOM]
    random ^= (random << 13) & 0x7FFFFFFFFFFFFFFF
    random ^= random >> 7
    random ^= (random << 17) & 0x7FFFFFFFFFFFFFFF
    book[_RANDOM] = random
    links, link = book, _ROOTS + side
    below = links[link]
    while below != 0 and _node(below)[_PRIORITY] >= random:
        links = _node(below)
        link = _RIGHT if links[_PRICE] < price_ticks else _LEFT
        below = links[link]
    address = allocate(_NODE_BYTES)
    node = _node(address)
    node[_PRICE] = price_ticks
    node[_QUANTITY] = quantity
    node[_PRIORITY] = random
    links[link] = address
    # Split what was below by price, and hang both parts under the new node.
    lower, lower_link = node, _LEFT
    upper, upper_link = node, _RIGHT
    while below != 0:
        here = _node(below)
        if here[_PRICE] < price_ticks:
            lower[lower_link] = below
            lower, lower_link = here, _RIGHT
            below = here[_RIGHT]
        else:
            upper[upper_link] = below
            upper, upper_link = here, _LEFT
            below = here[_LEFT]
    lower[lower_link] = 0
    upper[upper_link] = 0


@compiled
def apply(book, side, price_ticks, quantity):
    """Set the quantity of one level; 0 deletes it."""
    links, link = book, _ROOTS + side
    address = links[link]
    while address != 0:
        node = _node(address)
        if node[_PRICE] == price_ticks:
            if quantity > 0:
                node[_QUANTITY] = quantity
            else:
                _join(links, link, node[_LEFT], node[_RIGHT])
                free(address)
            return
        links = node
        link = _RIGHT if node[_PRICE] < price_ticks else _LEFT
        address = node[link]
    if quantity > 0:
        _insert(book, side, price_ticks, quantity)


@compiled
def clear(book):
    """Free every node."""
    for side in range(2):
        while book[_ROOTS + side] != 0:
            address = book[_ROOTS + side]
            node = _node(address)
            _join(book, _ROOTS + side, node[_LEFT], node[_RIGHT])
            free(address)


@compiled
def top(book):
    """(bid price, bid quantity, ask price, ask quantity) in ticks; price -1 and quantity 0 for an empty side."""
    bid_price = -1
    bid_quantity = 0
    ask_price = -1
    ask_quantity = 0
    address = book[_ROOTS]
    while address != 0:
        node = _node(address)
        bid_price = node[_PRICE]
        bid_quantity = node[_QUANTITY]
        address = node[_RIGHT]
    address = book[_ROOTS + 1]
    while address != 0:
        node = _node(address)
        ask_price = node[_PRICE]
        ask_quantity = node[_QUANTITY]
        address = node[_LEFT]
    return bid_price, bid_quantity, ask_price, ask_quantity
