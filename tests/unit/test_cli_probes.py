"""`sysmeter probes`, and how `run` takes ``--probes LIST``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sysmeter import session
from sysmeter.errors import EXIT_USAGE
from sysmeter.kernel.catalogue import CATALOGUE, PROBE_NAMES
from sysmeter.report.probes import render_probes
from tests.support.commands import sysmeter


def test_the_catalogue_as_text_and_as_json(tmp_path: Path) -> None:
    text = sysmeter("probes", cwd=tmp_path).stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    for name, probe in CATALOGUE.items():
        assert f"{name} ({'on request' if probe.on_request else 'default'}) " in text
    assert "irq_vectors:local_timer_{entry,exit}" in text
    result = json.loads(sysmeter("probes", "--json", cwd=tmp_path).stdout)
    assert result["schema"] == "sysmeter.probes/1"
    assert [probe["name"] for probe in result["probes"]] == list(PROBE_NAMES)
    assert [probe["name"] for probe in result["probes"] if not probe["default"]] == ["allocations"]
    by_name = {probe["name"]: probe for probe in result["probes"]}
    assert by_name["runq_delay"]["requires"] == ["context_switch"]
    assert by_name["allocations"]["hooks"][0] == {"name": "libc:malloc", "kind": "uprobe", "optional": False}
    assert all(len(line) <= 40 for line in render_probes(result, 40).splitlines())


@pytest.mark.parametrize("names", ["nonsense", "page_fault,nonsense", "page_fault,", ""])
def test_an_unknown_probe_is_a_usage_error_that_lists_all(names: str, tmp_path: Path) -> None:
    done = sysmeter("run", "--probes", names, cwd=tmp_path)
    assert done.returncode == EXIT_USAGE
    assert "'nonsense'" in done.stderr or "a name is missing" in done.stderr
    for name, probe in CATALOGUE.items():
        assert any(line.split()[:1] == [name] and probe.summary in line for line in done.stderr.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_a_choice_of_probes_and_none_contradict_each_other(tmp_path: Path) -> None:
    done = sysmeter("run", "--probes", "page_fault", "--no-probes", cwd=tmp_path)
    assert done.returncode == EXIT_USAGE
    assert "contradict" in done.stderr


def run_options(*arguments: str) -> dict[str, object]:
    """The settings that the options of `run` come to."""
    from sysmeter.cli.chosenprobes import settle_probes
    from sysmeter.cli.run import run

    options = run.make_context("run", list(arguments)).params
    chosen = {name: options[name] for name in ("probes", "chosen_probes", "audit")}
    settle_probes(chosen)
    return chosen


def probe_names(*arguments: str) -> tuple[str, ...]:
    return session.RunSettings("feed", "cache", (0, 1), **run_options(*arguments)).probe_names  # type: ignore[arg-type]


def test_which_probes_a_run_asks_for() -> None:
    assert probe_names() == session.PROBE_NAMES
    assert probe_names("--audit") == (*session.PROBE_NAMES, "allocations")
    assert probe_names("--probes", "syscalls, page_fault,syscalls") == ("page_fault", "syscalls")
    assert probe_names("--probes", "runq_delay") == ("context_switch", "runq_delay")
    assert probe_names("--probes", "page_fault", "--audit") == ("page_fault", "allocations")
    assert run_options("--probes", "page_fault,allocations")["audit"] is True
    assert probe_names("--probes", "page_fault,allocations") == ("page_fault", "allocations")
    assert run_options("--no-probes") == {"probes": False, "audit": False}
    assert run_options()["probes"] is True
