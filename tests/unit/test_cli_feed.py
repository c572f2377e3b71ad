"""``sysmeter feed make`` and ``feed info``, as far as the command goes; the work has tests of its own."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from capstone import feedfile, generator
from sysmeter.cli import feed as cli_feed
from sysmeter.errors import FeedFileError, UsageError


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli_feed.feed, [str(word) for word in words])


def test_make_then_info(tmp_path: Path) -> None:
    path = tmp_path / "a.feed"
    made = invoke("make", "--messages", "1000", "--seed", "3", path)
    assert made.exit_code == 0
    assert feedfile.sha256(path) in made.output
    assert "1,000 messages, 24,064 bytes" in made.output

    told = invoke("info", path)
    assert told.exit_code == 0
    assert "1,000 (0.010 s at 100,000/s)" in told.output
    assert "universe 64: 42 (1,000)" in told.output
    assert all(len(line) <= 80 for line in told.output.splitlines()[1:])

    as_json = json.loads(invoke("info", "--json", path).output)
    assert as_json["schema"] == "sysmeter.feed/1"
    assert as_json == {"schema": "sysmeter.feed/1", **feedfile.info(path)}


def test_make_does_not_overwrite_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.feed"
    path.write_text("precious")
    refused = invoke("make", "--messages", "10", path)
    assert isinstance(refused.exception, FeedFileError)
    assert "--force" in refused.exception.hint
    assert path.read_text() == "precious"
    assert invoke("make", "--messages", "10", "--force", path).exit_code == 0
    assert feedfile.read(path).count == 10


@pytest.mark.parametrize(("option", "value"), [("--messages", "0"), ("--messages", "-1"), ("--seed", "-1")])
def test_make_with_impossible_numbers(tmp_path: Path, option: str, value: str) -> None:
    result = invoke("make", option, value, tmp_path / "a")
    assert isinstance(result.exception, UsageError)
    assert list(tmp_path.iterdir()) == []


def test_info_of_a_bad_file(tmp_path: Path) -> None:
    assert isinstance(invoke("info", tmp_path / "none").exception, FeedFileError)
    (tmp_path / "text").write_text("hello")
    assert isinstance(invoke("info", "--json", tmp_path / "text").exception, FeedFileError)


def test_many_instruments_are_cut_short(tmp_path: Path) -> None:
    messages = generator.generate(20)
    messages["instrument"] = range(20)
    feedfile.write(tmp_path / "a", messages, 64)
    assert "20, universe 64: 0 (1), 1 (1)" in (output := invoke("info", tmp_path / "a").output)
    assert "and 12 more" in output


def test_defaults_are_the_generators() -> None:
    # The command repeats the numbers, so that --help need not import numpy.
    make = cli_feed.feed.commands["make"]
    defaults = {option.name: option.default for option in make.params if isinstance(option, click.Option)}
    parameters = inspect.signature(generator.generate).parameters
    assert defaults["messages"] == parameters["n_messages"].default == generator.DEFAULT_MESSAGES
    assert defaults["seed"] == parameters["seed"].default == generator.DEFAULT_SEED


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "numba", "capstone")
    code = f"import sys; import sysmeter.cli.feed; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
