"""Results to stdout."""

from __future__ import annotations

from typing import Any

from sysmeter.cli.streams import write_result


def print_result(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of a run of either workload: JSON, or text of 80 columns."""
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    elif result.get("workload") == "live":
        from sysmeter.report.live import render_live

        text = render_live(result)
    else:
        from sysmeter.report.text import render_run

        text = render_run(result)
    write_result(text, result["recording"])


def print_gc_comparison(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of a comparison of collector policies: JSON, or text of 80 columns."""
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.livegc import render_gc_comparison

        text = render_gc_comparison(result)
    write_result(text, lost="the runs are lost with it, unless --out kept their Recordings")


def print_verification(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of a comparison of swaps: JSON, or text of 80 columns."""
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.verify import render_verification

        text = render_verification(result)
    write_result(text, lost="the runs are lost with it, unless --out kept their Recordings")


def print_diagnosis(result: dict[str, Any], as_json: bool, n_episodes: int) -> None:
    """Print where a tail comes from: JSON, or text of 80 columns with the slowest episodes."""
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.diagnosis import render_diagnosis

        text = render_diagnosis(result, n_episodes=n_episodes)
    write_result(text, result["recording"])


def print_selftest(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of a self-test: JSON, or text of 80 columns."""
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.selftest import render_selftest

        text = render_selftest(result)
    write_result(text, lost="the runs are lost with it, unless --out kept their Recordings")
