"""The text of a diagnosis: its width, its sums, and an explanation for each cause."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from sysmeter import records
from sysmeter.analysis import causes
from sysmeter.report.diagnosis import render_diagnosis
from sysmeter.report.explain import EXPLANATIONS, render_explanation
from sysmeter.report.layout import cells
from tests.support.diagnosed import diagnosed
from tests.support.kernelevents import fault, interrupt
from tests.support.runs import T_START, Away, Run, build

MS = 1_000_000
WINDOW = T_START + 5 * MS
WIDTHS = [40, 60, 80]


def busy() -> dict[str, Any]:
    """Episodes of many kinds, long names, collections and faults beside them."""
    away = [
        Away(
            "strategy",
            WINDOW + 3 * MS,
            3_004_000,
            [(100_000 + k, f"a-very-long-na{k}".encode(), 300_000) for k in range(10)] + [(9, b"x", 2_000)],
        ),
        Away("feed", WINDOW + 9 * MS, 3 * MS),
        Away("strategy", WINDOW + 9 * MS + 100_000, 20_000),
        Away("strategy", WINDOW + 14 * MS, MS, [(99, b"bash", 998_000)], lose_switch_in=True),
        Away("feed", WINDOW + 17 * MS, MS, [(0, b"swapper/0", 998_000)], prev_state=1, woken_after_ns=900_000),
    ]
    extra = [fault("feed", WINDOW + 9 * MS + 1_000 * k, 2**64 - 4096 * k) for k in range(1, 30)]
    extra += [interrupt("strategy", WINDOW + 22 * MS, 3_000, records.INTERRUPT_DEVICE, 27)]
    recording = build(
        Run(
            away=away,
            extra_events=extra,
            collections=[(WINDOW + 9 * MS, WINDOW + 9 * MS + 400_000, 2)],
        )
    )
    recording.meta["interrupt_names"] = {"27": "virtio1-" + "request" * 12}
    recording.meta["steal_ns"] = {"0": 3 * MS}
    return diagnosed(recording, 1_000)


def absent() -> dict[str, Any]:
    return diagnosed(build(Run(n_messages=501)))


def nothing_slow() -> dict[str, Any]:
    return diagnosed(build(Run()), 10**12)


def without_probes() -> dict[str, Any]:
    return diagnosed(build(Run(away=[Away("strategy", WINDOW + MS, 2 * MS)], probes=False)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("made", [busy, absent, nothing_slow, without_probes])
def test_no_line_is_too_wide(made: Any, width: int) -> None:
    for n_episodes in (0, 5, 100):
        lines = render_diagnosis(made(), width, n_episodes).split("\n")
        # The table of evidence has its own width, which fits 80 columns.
        limit = max(width, 70)
        assert [line for line in lines if cells(line) > limit] == []
        assert not any(line != line.rstrip() for line in lines)


@pytest.mark.parametrize("factor", [1, 1_000_000])
def test_large_numbers_do_not_widen_it(factor: int) -> None:
    result = busy()
    for table in ([result["tail"], result["tail"]["wall"]], result["causes"], result["episodes"]):
        for row in table:
            for key, value in row.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    row[key] = value * factor
    assert all(cells(line) <= 80 for line in render_diagnosis(result).split("\n"))


def test_the_evidence_of_both_times_is_printed() -> None:
    text = render_diagnosis(busy())
    lines = text.split("\n")
    head = next(k for k, line in enumerate(lines) if "witnessed" in line and "inferred" in line)
    assert lines[head].split() == ["whole", "witnessed", "inferred", "unexplained"]
    assert lines[head + 1].startswith("  sample time")
    assert lines[head + 2].startswith("  wall time")
    assert lines[head + 1].count("%") == lines[head + 2].count("%") == 3


def test_each_cause_says_who_and_how_it_is_known() -> None:
    text = " ".join(render_diagnosis(busy()).split())
    for words in (
        "feed outside the guest: the hypervisor had the CPU [inferred]",
        "strategy preempted: a-very-long-na0/100000 [witnessed]",
        "other causes",
        "Slowest episodes (",
        "concurrent, not a cause: collection of generation 2",
        "page fault of feed at 0xfffffffffffff000, user mode",
        "more such events",
        "steal column",
    ):
        assert words in text


def test_parts_beyond_the_first_are_one_line_with_their_sum() -> None:
    result = busy()
    parts = result["episodes"][0]["parts"]
    assert len(parts) > 8
    text = render_diagnosis(result)
    assert f"{len(parts) - 8} smaller part" in text


def test_only_so_many_episodes_as_asked_for() -> None:
    result = busy()
    assert len(result["episodes"]) >= 4
    assert "Slowest episodes" not in render_diagnosis(result, n_episodes=0)
    for wanted in (1, 3):
        text = render_diagnosis(result, n_episodes=wanted)
        assert f"Slowest episodes ({wanted} of {result['tail']['n_episodes']}" in text
        assert sum(" long, peak " in line for line in text.split("\n")) == wanted


def test_absence_is_no_zero() -> None:
    text = render_diagnosis(absent())
    assert "Tail: not measured: too few samples" in text
    assert "%" not in text
    assert "0 samples in 0 episodes" in render_diagnosis(nothing_slow())


def test_why_nothing_is_inferred_is_said_once_for_all() -> None:
    text = " ".join(render_diagnosis(without_probes()).split())
    assert "Nothing is inferred from gaps: the probe context_switch was not there." in text


def test_a_tail_that_the_histogram_does_not_confirm_is_not_complete() -> None:
    result = busy()
    assert "NOT COMPLETE" not in render_diagnosis(result)
    result["tail"]["n_above_found"] -= 1
    assert "NOT COMPLETE" in render_diagnosis(result)


def test_names_cannot_move_the_cursor() -> None:
    result = copy.deepcopy(busy())
    for row in (*result["causes"], *(part for episode in result["episodes"] for part in episode["parts"])):
        row["detail"] = "a\x1b[2J\n\u202eb"
    assert not any(char in render_diagnosis(result) for char in "\x1b\u202e")


def test_each_cause_has_an_explanation_and_each_explanation_a_cause() -> None:
    assert sorted(EXPLANATIONS) == sorted(causes.ALL_CAUSES)
    names = [value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)]
    assert set(causes.ALL_CAUSES) == set(names) - {causes.WITNESSED, causes.INFERRED, causes.GAP} | {causes.NOT_SEEN}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cause", causes.ALL_CAUSES)
def test_explanations_fit(cause: str, width: int) -> None:
    text = render_explanation(cause, width)
    lines = text.split("\n")
    assert lines[0] == cause
    assert all(cells(line) <= width for line in lines)
    for label in ("what", "measured", "remedy"):
        assert sum(line.startswith(f"  {label}") for line in lines) == 1
    found = EXPLANATIONS[cause]
    for paragraph in found:
        assert paragraph.endswith(".")
        assert "  " not in paragraph


def test_the_remedies_name_what_one_can_act_with() -> None:
    text = " ".join(explanation.remedy for explanation in EXPLANATIONS.values())
    for word in ("isolcpus", "nohz_full", "IRQ affinity", "mlock", "gc.freeze", "cgroup", "cpuset", "cpu.max"):
        assert word in text or word in " ".join(explanation.is_what for explanation in EXPLANATIONS.values())


def test_no_part_is_shown_that_the_result_does_not_hold() -> None:
    """The parts printed for an episode, the joined one included, are as many as it has, or nine lines."""
    result = busy()
    lines = render_diagnosis(result, n_episodes=1).split("\n")
    begin = next(k for k, line in enumerate(lines) if " long, peak " in line)
    shown = [line for line in lines[begin + 1 :] if line[:15].strip().endswith((" ns", " µs", " ms", " s"))]
    assert len(shown) == min(len(result["episodes"][0]["parts"]), 9)
    assert np.all([cells(line) <= 80 for line in shown])
