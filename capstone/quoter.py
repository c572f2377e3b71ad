"""The quoter: the quote it wants, as a function of the top of the book and of its inventory alone."""

from __future__ import annotations

from capstone.compiled import compiled

# Price of a side on which no quote is wanted.
NO_QUOTE = -1

# The wanted prices move one tick down for each such quantity held, and up for each one owed.
_INVENTORY_PER_TICK = 100


@compiled
def wanted_quote(bid_price, ask_price, inventory):
    """(wanted bid, wanted ask) in ticks: one tick inside a spread of three or more, else at the top.

    With a side of the book empty nothing is wanted. The skew keeps the wanted bid below the wanted ask.
    """
    if bid_price < 0 or ask_price < 0:
        return NO_QUOTE, NO_QUOTE
    skew = inventory // _INVENTORY_PER_TICK
    inside = 1 if ask_price - bid_price >= 3 else 0
    return bid_price + inside - skew, ask_price - inside - skew
