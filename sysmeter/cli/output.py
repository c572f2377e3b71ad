"""Results to stdout."""

from __future__ import annotations

import sys
from typing import Any

import click


def print_result(result: dict[str, Any], as_json: bool) -> None:
    """Print the result of a run: JSON, or text of 80 columns."""
    if as_json:
        from sysmeter.report.json import dump

        click.echo(dump(result))
    else:
        from sysmeter.report.text import render_run

        click.echo(render_run(result))
    sys.stdout.flush()
