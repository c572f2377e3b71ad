"""What every test of a diagnosis asserts: nothing is lost and nothing counted twice."""

from __future__ import annotations

from typing import Any

import pytest

from sysmeter.analysis.attribution import Attribution, attribute
from sysmeter.analysis.causes import EVIDENCE
from sysmeter.analysis.diagnosis import diagnose
from sysmeter.analysis.kernelevidence import kernel_evidence
from sysmeter.analysis.tail import slow_messages
from sysmeter.recording import Recording


def attributed(recording: Recording, threshold_ns: int) -> Attribution:
    """The attribution of the responses from ``threshold_ns`` on, checked."""
    off_cpu, events = kernel_evidence(recording)
    found = attribute(recording, off_cpu, slow_messages(recording, threshold_ns), events)
    found.check()
    return found


def diagnosed(recording: Recording, above_ns: int | None = None, n_episodes: int = 10_000) -> dict[str, Any]:
    """The diagnosis of a Recording, with conservation asserted."""
    result = diagnose(recording, above_ns, n_episodes)
    check_conservation(result)
    return result


def check_conservation(result: dict[str, Any]) -> None:
    """Parts are their whole, to the nanosecond: by evidence, by cause, and in each episode."""
    tail, causes, episodes = result["tail"], result["causes"], result["episodes"]
    if not tail["samples"]:
        assert causes == episodes == []
        return
    for shares, whole_ns, key in (
        (tail, tail["sample_time_ns"], "sample_time_ns"),
        (tail["wall"], tail["wall_time_ns"], "wall_time_ns"),
    ):
        assert sum(shares[f"{name}_ns"] for name in EVIDENCE) == whole_ns
        assert sum(row[key] for row in causes) == whole_ns
        for name in EVIDENCE:
            assert sum(row[key] for row in causes if row["evidence"] == name) == shares[f"{name}_ns"]
            if whole_ns:
                assert shares[f"{name}_frac"] == pytest.approx(shares[f"{name}_ns"] / whole_ns)
    if tail["sample_time_ns"]:
        assert sum(row["share_frac"] for row in causes) == pytest.approx(1)
    # Each sample has a time and so a cause; none has more samples than there are.
    assert all(1 <= row["samples"] <= tail["samples"] for row in causes if row["sample_time_ns"])
    for episode in episodes:
        assert sum(part["time_ns"] for part in episode["parts"]) == episode["duration_ns"]
        assert all(part["time_ns"] > 0 for part in episode["parts"])
        assert episode["peak_ns"] <= episode["duration_ns"]
    if not result["episodes_not_listed"]:
        assert sum(episode["duration_ns"] for episode in episodes) == tail["wall_time_ns"]
        assert sum(episode["n_messages"] for episode in episodes) == tail["samples"]
