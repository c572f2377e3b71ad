"""A deterministic order-book feed: levels are added, changed and deleted, and the best price moves.

The bytes depend on nothing but the number of messages, the seed and the instrument. Random numbers come
from Marsaglia's xorshift128 ("Xorshift RNGs", Journal of Statistical Software 8(14), 2003), held in four
32-bit words so that Python's integers, numpy's and compiled code agree, and seeded by splitmix64 (Steele,
Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). No floating point is used.

The generator keeps the book it describes, so that each message makes sense to a reader that applied the
ones before: an add names a level that is not there, a change and a delete one that is, and the best bid
stays below the best ask after every message. Most activity is near the best price, at distances drawn
from a geometric distribution. A best level that is deleted moves the best price away from the middle, an
add inside the spread moves it back, on either side; the further the middle is from its centre, the
rarer are the adds that carry it further.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from capstone import feedfile
from capstone.feedfile import KIND_ADD, KIND_CHANGE, KIND_DELETE, SIDE_BID
from sysmeter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

DEFAULT_MESSAGES = 2_000_000
DEFAULT_SEED = 1
DEFAULT_INSTRUMENTS = 64
DEFAULT_INSTRUMENT = 42
MAX_MESSAGES = 1_000_000_000

CENTRE_TICKS = 100_000
MAX_OFFSET_TICKS = 2_000  # no price is further from the centre
_SOFT_OFFSET_TICKS = 1_800  # the middle is not: beyond it no add carries it further
MIN_LEVELS = 10  # levels a side, once the book has filled
MAX_LEVELS = 30
_TARGET_LEVELS = 20

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF


def generate(
    n_messages: int = DEFAULT_MESSAGES, seed: int = DEFAULT_SEED, instrument: int = DEFAULT_INSTRUMENT
) -> npt.NDArray[Any]:
    """The feed: shape ``(n_messages,)``, dtype :data:`feedfile.MESSAGE`, sequence numbers from 1.

    Compiles its loop at the first call in a process, some two seconds with numba's import.

    Raises:
        UsageError: a number of messages, seed or instrument outside its range.
    """
    for name, value, low, high in (
        ("the number of messages", n_messages, 1, MAX_MESSAGES),
        ("the seed", seed, 0, _MASK_64),
        ("the instrument", instrument, 0, _MASK_32),
    ):
        if not low <= value <= high:
            raise UsageError(f"{name} is {value}", f"give a number from {low} to {high}")
    messages = np.zeros(n_messages, feedfile.MESSAGE)
    _compiled()(messages.view("<i8").reshape(n_messages, 3), random_state(seed), instrument)
    return messages


def make_file(
    path: Path, n_messages: int = DEFAULT_MESSAGES, seed: int = DEFAULT_SEED, *, overwrite: bool = True
) -> None:
    """Generate a feed and write it to ``path``.

    Raises:
        UsageError: as :func:`generate`.
        FeedFileError: as :func:`feedfile.write`.
    """
    feedfile.check_place(path, overwrite)  # before the work, not after it
    feedfile.write(path, generate(n_messages, seed), DEFAULT_INSTRUMENTS, overwrite=overwrite)


def random_state(seed: int) -> npt.NDArray[np.int64]:
    """The four 32-bit words of xorshift128 for a seed: two outputs of splitmix64, low halves first."""
    words: list[int] = []
    state = seed
    for _ in range(2):
        state = (state + 0x9E3779B97F4A7C15) & _MASK_64
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK_64
        mixed ^= mixed >> 31
        words += [mixed & _MASK_32, mixed >> 32]
    # splitmix64 is a bijection of its state, so two in a row are never both zero.
    return np.array(words, np.int64)


@cache
def _compiled() -> Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64], int], None]:
    # Imported here, so that reading or describing a file never pays for numba.
    from numba import njit
    from numba.extending import register_jitable

    for helper in (_draw, _below, _geometric, _insert, _remove):
        register_jitable(helper)
    compiled: Any = njit(simulate)  # numba's types say less than simulate's own
    return compiled


# What follows is compiled by numba, and runs as it stands in Python too: a test compares the two.


def _draw(state: npt.NDArray[np.int64]) -> int:
    """The next 32 random bits."""
    t = state[0] ^ ((state[0] << 11) & _MASK_32)
    state[0] = state[1]
    state[1] = state[2]
    state[2] = state[3]
    state[3] = state[3] ^ (state[3] >> 19) ^ t ^ (t >> 8)
    return int(state[3])


def _below(state: npt.NDArray[np.int64], bound: int) -> int:
    """A number from 0 to ``bound`` - 1, by multiplication; the bias is below 2**-20 for bounds used here."""
    return (_draw(state) * bound) >> 32


def _geometric(state: npt.NDArray[np.int64], limit: int) -> int:
    """0 with probability 1/4, 1 with 3/16, and so on, at most ``limit`` (and 16)."""
    bits = _draw(state)
    n = 0
    while n < limit and n < 16 and bits & 3 != 0:
        bits >>= 2
        n += 1
    return n


def _insert(prices: npt.NDArray[np.int64], quantities: npt.NDArray[np.int64], n: int, at: int) -> None:
    for i in range(n, at, -1):
        prices[i] = prices[i - 1]
        quantities[i] = quantities[i - 1]


def _remove(prices: npt.NDArray[np.int64], quantities: npt.NDArray[np.int64], n: int, at: int) -> None:
    for i in range(at, n - 1):
        prices[i] = prices[i + 1]
        quantities[i] = quantities[i + 1]


def simulate(words: npt.NDArray[np.int64], state: npt.NDArray[np.int64], instrument: int) -> None:
    """Fill ``words``, shape ``(n, 3)``, with n messages as the file holds them; ``state`` is used up.

    Levels of a side are kept best first. ``away`` is the direction from the best into the book: -1 for
    bids, +1 for asks.
    """
    prices = np.zeros((2, MAX_LEVELS + 2), np.int64)
    quantities = np.zeros((2, MAX_LEVELS + 2), np.int64)
    n_levels = np.zeros(2, np.int64)
    for i in range(len(words)):
        side = _draw(state) & 1
        other = 1 - side
        away = -1 if side == SIDE_BID else 1
        n = n_levels[side]
        side_prices = prices[side]
        side_quantities = quantities[side]
        both = n > 0 and n_levels[other] > 0
        spread = (side_prices[0] - prices[other, 0]) * away if both else 0

        roll = _below(state, 100)
        if n <= MIN_LEVELS:
            kind = KIND_ADD
        elif n >= MAX_LEVELS:
            kind = KIND_DELETE
        elif spread > 3:
            kind = KIND_ADD if roll < 75 else KIND_CHANGE
        elif roll < 20 + _TARGET_LEVELS - n:
            kind = KIND_ADD
        elif roll < 40:
            kind = KIND_DELETE
        else:
            kind = KIND_CHANGE

        at = 0
        price = CENTRE_TICKS + away
        if kind == KIND_ADD and n > 0:
            # How far the middle is displaced already in the direction in which this add would move it.
            offset = (side_prices[0] + prices[other, 0] - 2 * CENTRE_TICKS) * -away // 2 if both else 0
            inside = 0
            if spread > 1 and _below(state, _SOFT_OFFSET_TICKS) >= offset:
                inside = 1 if _below(state, 8) < 2 * (spread - 1) else 0
            if inside != 0:
                price = side_prices[0] - away * (1 + _geometric(state, spread - 2))
            else:
                price = side_prices[0] + away * (_geometric(state, 16) + _geometric(state, 16))
                while at < n and (side_prices[at] - price) * away < 0:
                    at += 1
                while at < n and side_prices[at] == price:  # the first free level from there into the book
                    at += 1
                    price += away
            if abs(price - CENTRE_TICKS) > MAX_OFFSET_TICKS:
                kind = KIND_CHANGE
        if kind == KIND_DELETE:
            # Far levels are given up too, or the book would trail behind a moving price. The best one stays
            # where the spread is wide already.
            nearest = 1 if spread > 2 else 0
            if n >= MAX_LEVELS:
                at = n - 1
            elif _below(state, 4) == 0:
                at = n - 1 - _geometric(state, n - 2)
            else:
                at = nearest + _geometric(state, n - 1 - nearest)
        elif kind == KIND_CHANGE:
            at = _geometric(state, n - 1)

        quantity = 0
        if kind != KIND_DELETE:
            quantity = (1 + _below(state, 20)) * (1 + _geometric(state, 16))
        if kind == KIND_ADD:
            _insert(side_prices, side_quantities, n, at)
            side_prices[at] = price
            side_quantities[at] = quantity
            n_levels[side] = n + 1
        else:
            price = side_prices[at]
            if kind == KIND_DELETE:
                _remove(side_prices, side_quantities, n, at)
                n_levels[side] = n - 1
            else:
                if quantity == side_quantities[at]:
                    quantity += 1
                side_quantities[at] = quantity
        words[i, 0] = i + 1
        words[i, 1] = instrument | side << 32 | kind << 40
        words[i, 2] = price | quantity << 32
