"""A diagnosis costs time and memory in proportion to the Recording: twice the size, about twice the cost."""

from __future__ import annotations

import pytest

from tests.support.diagnosed import diagnosed
from tests.support.largeruns import cost, large_recording

# Sorting and searching grow a little faster than the size, and the host has other things to do.
MAX_FACTOR = 2.6


def test_a_large_recording_is_a_sound_one() -> None:
    recording = large_recording(20_000, 8_000)
    for above_ns in (None, 1):
        result = diagnosed(recording, above_ns)
        assert result["tail"]["n_above_in_histogram"] == result["tail"]["n_above_found"]
        assert {row["cause"] for row in result["causes"]} >= {
            *("hard interrupt", "softirq", "page fault", "system call", "preempted", "own service")
        }
    assert result["tail"]["samples"] == 19_900


@pytest.mark.slow
@pytest.mark.parametrize("above_ns", [None, 1])
def test_twice_the_size_takes_about_twice_the_time_and_memory(above_ns: int | None) -> None:
    one = cost(large_recording(200_000, 100_000), above_ns)
    two = cost(large_recording(400_000, 200_000), above_ns)
    for name, small, large in zip(("CPU time", "memory"), one, two, strict=True):
        assert large < MAX_FACTOR * small, name
