"""Stored reports: the text and the JSON of a Recording, word for word."""

from __future__ import annotations

import json

import pytest

from sysmeter.analysis.summary import summarize
from sysmeter.report.json import dump
from tests.golden.build import GOLDEN, HERE, render


@pytest.mark.parametrize("name", GOLDEN)
def test_the_report_is_the_stored_one(name: str) -> None:
    result = summarize(GOLDEN[name]())
    assert render(result) + "\n" == (HERE / f"{name}.txt").read_text()
    assert dump(result) + "\n" == (HERE / f"{name}.json").read_text()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_report_made_from_the_json_is_the_same(name: str) -> None:
    result = summarize(GOLDEN[name]())
    assert render(json.loads(dump(result))) == render(result)
