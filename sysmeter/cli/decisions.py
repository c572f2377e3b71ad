"""``sysmeter decisions``: whether two runs decided the same."""

from __future__ import annotations

from pathlib import Path

import click

from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_NOT_PROVEN, EXIT_OK


@click.command(
    epilog="Exit codes: 0 all common decisions are equal, 1 error, 2 usage, 3 some differ, 4 nothing in common."
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.decisions/1) and nothing else."
)
def decisions(a: Path, b: Path, as_json: bool) -> int:
    """Compare the decisions of two runs, A and B: decisions files or Recordings.

    Joins them on the sequence number and compares the top of the book and the wanted quote. The runs need not have
    closed their batches at the same updates: only where both decided must they have decided the same.
    """
    from sysmeter.analysis import decisions as analysis

    result = analysis.compare(a, b)
    if as_json:
        from sysmeter.report.json import dump

        click.echo(dump(result))
    else:
        from sysmeter.report.decisions import render_decisions

        click.echo(render_decisions(result))
    return {
        analysis.EQUAL: EXIT_OK,
        analysis.DIFFERENT: EXIT_CLAIM_FAILED,
        analysis.NOTHING_IN_COMMON: EXIT_NOT_PROVEN,
    }[result["verdict"]]
