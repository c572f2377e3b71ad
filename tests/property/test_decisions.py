"""Decisions files: what is written is read back, damage is seen as the format says, and the join is a join."""

from __future__ import annotations

import itertools
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sysmeter import decisions
from sysmeter.errors import DecisionsFileError
from sysmeter.records import DECISION
from tests.support.decisions import HEADER, text_of

_FIELD = st.one_of(st.integers(-2, 3), st.integers(-(2**31), 2**31 - 1))
_SEQ = st.one_of(st.integers(0, 12), st.integers(-(2**63), 2**63 - 1))
_REST = st.tuples(*[_FIELD] * 6)
_FEW_RESTS = st.tuples(*[st.integers(0, 1)] * 6)
_LINE = re.compile(rb"-?[0-9]+(,-?[0-9]+){6}")


def as_array(by_seq: dict[int, tuple[int, ...]]) -> np.ndarray[Any, Any]:
    return np.array([(seq, *by_seq[seq]) for seq in sorted(by_seq)], DECISION)


def read(content: bytes) -> np.ndarray[Any, Any]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "d.csv"
        path.write_bytes(content)
        return decisions.read(path)


def read_by_the_words(content: bytes) -> list[tuple[int, ...]] | None:
    """The documented format, a line at a time; None where the file must be refused."""
    content = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    lines = content.split(b"\n")
    if lines[0] != HEADER.encode() or lines.pop() != b"":
        return None
    if not all(_LINE.fullmatch(line) for line in lines[1:]):
        return None
    found = [tuple(map(int, line.split(b","))) for line in lines[1:]]
    limits = [np.iinfo(DECISION[name]) for name in DECISION.names or ()]
    fits = all(low.min <= value <= low.max for row in found for low, value in zip(limits, row, strict=True))
    ascends = all(before[0] < after[0] for before, after in itertools.pairwise(found))
    return found if fits and ascends else None


@given(by_seq=st.dictionaries(_SEQ, _REST, max_size=30))
def test_round_trip(by_seq: dict[int, tuple[int, ...]]) -> None:
    expected = as_array(by_seq)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "d.csv"
        decisions.write_csv(path, expected)
        assert path.read_bytes() == text_of(expected)
        assert np.array_equal(decisions.read(path), expected)


@given(by_seq=st.dictionaries(_SEQ, _REST, min_size=1, max_size=4), data=st.data())
def test_damage_is_refused_exactly_where_the_format_says(
    by_seq: dict[int, tuple[int, ...]], data: st.DataObject
) -> None:
    content = text_of(as_array(by_seq))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(len(HEADER), len(content)))
        piece = data.draw(
            st.one_of(
                st.binary(max_size=2),
                st.sampled_from([b"-", b",", b"\n", b"\r\n", b"\r", b"0", b"+", b" ", b"0x1", b"9" * 19, b"-1"]),
            )
        )
        content = content[:at] + piece + content[at + data.draw(st.integers(0, 2)) :]
    expected = read_by_the_words(content)
    try:
        found = read(content).tolist()
    except DecisionsFileError:
        found = None
    assert found == expected


@given(
    by_seq=st.lists(
        st.dictionaries(st.one_of(st.integers(0, 40), _SEQ), _FEW_RESTS, max_size=40), min_size=2, max_size=2
    )
)
def test_the_join_against_dictionaries(by_seq: list[dict[int, tuple[int, ...]]]) -> None:
    a, b = by_seq
    found = decisions.compare(as_array(a), as_array(b))
    common = sorted(a.keys() & b.keys())
    differing = [seq for seq in common if a[seq] != b[seq]]
    assert found["common"] == len(common)
    assert found["different"] == len(differing)
    assert found["equal"] == len(common) - len(differing)
    assert found["only_in_a"] == len(a.keys() - b.keys())
    assert found["only_in_b"] == len(b.keys() - a.keys())
    first = found["first_difference"]
    if not differing:
        assert first is None
        return
    seq = differing[0]
    assert first["seq"] == seq
    for name, side in (("a", a), ("b", b)):
        lines = text_of(as_array(side)).decode().split("\n")
        assert lines[first[name]["line"] - 1] == first[name]["text"] == ",".join(map(str, (seq, *side[seq])))
    pairs = zip(decisions.COLUMNS[1:], a[seq], b[seq], strict=True)
    assert first["fields"] == [name for name, left, right in pairs if left != right]
