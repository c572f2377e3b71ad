"""``sysmeter checklist``: which habits of honest measuring a Recording shows."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("recording", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.checklist/1) and nothing else."
)
def checklist(recording: Path, as_json: bool) -> None:
    """Say of each habit of honest measuring whether a RECORDING shows it, and why; needs no root, bcc or numba.

    The answers are yes, no and not applicable. They describe a run and judge nobody, so the exit code is 0 whatever
    they are.
    """
    from sysmeter.analysis.checklist import check
    from sysmeter.cli.recordings import load_and
    from sysmeter.cli.streams import write_result

    result = load_and(recording, check)
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.checklist import render_checklist

        text = render_checklist(result)
    write_result(text, lost="nothing is lost: the same command prints it again")
