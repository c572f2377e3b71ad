"""Lines of a bounded width. Every line of a report passes through here, so none can be too long."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

MIN_WIDTH = 40


def printable(text: str) -> str:
    """The text without what could move the cursor, break a line or reverse its direction."""
    return "".join(
        char if char.isprintable() and unicodedata.bidirectional(char) not in _BIDI_CONTROLS else _escaped(char)
        for char in text
    )


_BIDI_CONTROLS = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def _escaped(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """The text in lines of at most ``width`` columns; ``first`` begins the first line, ``rest`` the others.

    Broken at spaces; a word longer than a line is broken where the line ends. ``rest`` is by default as many
    spaces as ``first`` is wide. Wrapping stays possible because the indents are cut to half the width.
    """
    first = first if cells(first) <= width // 2 else "  "
    rest = " " * cells(first) if rest is None else rest
    rest = rest if cells(rest) <= width // 2 else "  "
    lines, line, is_bare = [], first, True
    for word in printable(text).split(" "):
        if not word:
            continue
        gap = "" if is_bare else " "
        if cells(line) + len(gap) + cells(word) <= width:
            line, is_bare = line + gap + word, False
            continue
        if not is_bare:
            lines.append(line)
            line = rest
        *full, line = _break_word(word, line, rest, width)
        lines += full
        is_bare = False
    lines.append(line.rstrip())
    return lines


def _break_word(word: str, line: str, rest: str, width: int) -> Iterator[str]:
    for char in word:
        if cells(line) + _char_cells(char) > width:
            yield line
            line = rest
        line += char
    yield line


def columns(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table, columns set to the right, those of negative width to the left.

    Text as wide as its column or wider pushes the rest one space on; the caller chooses widths that fit.
    """
    line = ""
    for text, width in zip(row, widths, strict=True):
        padding = " " * (abs(width) - cells(text))
        if line and text and not line.endswith(" ") and (width < 0 or not padding):
            line += " "
        line += text + padding if width < 0 else padding + text
    return line.rstrip()


def fraction(part: int | None, whole: int | None) -> str:
    """A share in per cent, in which neither "all" nor "nothing" is ever the result of rounding."""
    if not whole or part is None:
        return "n/a"
    if part == 0:
        return "0 %"
    if part == whole:
        return "100 %"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1 %"
    if percent > 99.9:
        return ">99.9 %"
    return f"{percent:.1f} %"


def count(value: int | None) -> str:
    """A number with thousands separators, or ``unknown``."""
    return "unknown" if value is None else f"{value:,}"


def plural(value: int, one: str, many: str | None = None) -> str:
    """``1 message``, ``2 messages``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"
