"""The default book: two arrays of quantities indexed by price, preallocated for the feed's range of prices.

An update is one store, and a search for the next level only where the best one was deleted. Words: 0 lowest
price, 1 number of prices, 2 best bid's index or -1, 3 best ask's index or the number of prices, 4 lowest bid's
and 5 highest ask's index ever set; from 8 the quantities bid, then the quantities asked.
"""

from __future__ import annotations

from capstone.compiled import compiled

_LOWEST, _N_PRICES, _BEST_BID, _BEST_ASK, _WORST_BID, _WORST_ASK, _LEVELS = 0, 1, 2, 3, 4, 5, 8
_BID = 0


def n_words(lowest_price_ticks: int, highest_price_ticks: int) -> int:
    """Words of memory for a book of prices from lowest to highest, both included."""
    return _LEVELS + 2 * (highest_price_ticks - lowest_price_ticks + 1)


def initialize(book, lowest_price_ticks: int, highest_price_ticks: int) -> None:
    """Make ``book`` (int64 words) an empty one, and touch all of it."""
    book[:] = 0
    book[_LOWEST] = lowest_price_ticks
    book[_N_PRICES] = highest_price_ticks - lowest_price_ticks + 1
    book[_BEST_BID] = -1
    book[_BEST_ASK] = book[_N_PRICES]
    book[_WORST_BID] = book[_N_PRICES]
    book[_WORST_ASK] = -1


@compiled
def clear(book):
    """Forget every level: the feed starts over. Only what was ever set is cleared, not all the prices there are."""
    n_prices = book[_N_PRICES]
    for index in range(book[_WORST_BID], book[_BEST_BID] + 1):
        book[_LEVELS + index] = 0
    for index in range(book[_BEST_ASK], book[_WORST_ASK] + 1):
        book[_LEVELS + n_prices + index] = 0
    book[_BEST_BID] = -1
    book[_BEST_ASK] = n_prices
    book[_WORST_BID] = n_prices
    book[_WORST_ASK] = -1


@compiled
def apply(book, side, price_ticks, quantity):
    """Set the quantity of one level; 0 deletes it."""
    n_prices = book[_N_PRICES]
    index = price_ticks - book[_LOWEST]
    if side == _BID:
        book[_LEVELS + index] = quantity
        best = book[_BEST_BID]
        if quantity > 0:
            if index > best:
                book[_BEST_BID] = index
            if index < book[_WORST_BID]:
                book[_WORST_BID] = index
        elif index == best:
            while best >= 0 and book[_LEVELS + best] == 0:
                best -= 1
            book[_BEST_BID] = best
    else:
        asks = _LEVELS + n_prices
        book[asks + index] = quantity
        best = book[_BEST_ASK]
        if quantity > 0:
            if index < best:
                book[_BEST_ASK] = index
            if index > book[_WORST_ASK]:
                book[_WORST_ASK] = index
        elif index == best:
            while best < n_prices and book[asks + best] == 0:
                best += 1
            book[_BEST_ASK] = best


@compiled
def top(book):
    """(bid price, bid quantity, ask price, ask quantity) in ticks; price -1 and quantity 0 for an empty side."""
    n_prices = book[_N_PRICES]
    lowest = book[_LOWEST]
    bid = book[_BEST_BID]
    ask = book[_BEST_ASK]
    bid_price = -1
    bid_quantity = 0
    ask_price = -1
    ask_quantity = 0
    if bid >= 0:
        bid_price = lowest + bid
        bid_quantity = book[_LEVELS + bid]
    if ask < n_prices:
        ask_price = lowest + ask
        ask_quantity = book[_LEVELS + n_prices + ask]
    return bid_price, bid_quantity, ask_price, ask_quantity
