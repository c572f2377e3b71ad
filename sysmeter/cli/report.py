"""``sysmeter report``: the result of a Recording, from disk."""

from __future__ import annotations

from pathlib import Path

import click

from sysmeter.errors import RecordingError


@click.command()
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.run/1 or sysmeter.live/1)."
)
def report(recording: Path, as_json: bool) -> None:
    """Print the result of a RECORDING again, as `sysmeter run` or `live` printed it; needs no root, bcc or numba."""
    from sysmeter import recording as recordings
    from sysmeter.analysis.summary import summarize
    from sysmeter.cli.output import print_result

    try:
        result = summarize(recordings.load(recording))
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{recording} is damaged: meta.json does not hold what it must ({error!r})") from error
    print_result(result, as_json)
