"""``sysmeter report``: the result of a Recording, from disk."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("recording", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.run/1 or sysmeter.live/1)."
)
def report(recording: Path, as_json: bool) -> None:
    """Print the result of a RECORDING again, as `sysmeter run` or `live` printed it; needs no root, bcc or numba."""
    from sysmeter.analysis.summary import summarize
    from sysmeter.cli.output import print_result
    from sysmeter.cli.recordings import load_and

    result = load_and(recording, summarize)
    print_result(result, as_json)
