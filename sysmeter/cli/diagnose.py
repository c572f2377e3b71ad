"""``sysmeter diagnose``: where a Recording's tail comes from."""

from __future__ import annotations

from pathlib import Path

import click

from sysmeter.cli.parameters import DURATION_OR_PERCENTILE
from sysmeter.errors import UsageError


@click.command()
@click.argument("recording", type=click.Path(path_type=Path, readable=False), required=False)
@click.option("--top", type=click.IntRange(0, 10_000), help="List so many slowest episodes.  [default: 5, as JSON 100]")
@click.option(
    "--above",
    type=DURATION_OR_PERCENTILE,
    metavar="LIMIT",
    help="Diagnose the responses of at least LIMIT: a duration, such as 50us, or a percentile.  [default: p99.9]",
)
@click.option("--explain", metavar="CAUSE", help="Say what a cause is, how it is measured, and what helps.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.diagnose/1) and nothing else."
)
def diagnose(
    recording: Path | None, top: int | None, above: int | str | None, explain: str | None, as_json: bool
) -> None:
    """Name the cause of each slow moment of a RECORDING, and how much has none; needs no root.

    Each response time is cut at the message's release. What came before is charged to what held the feed thread then,
    what came after to what held the strategy thread; nothing is charged twice, and all of it adds up.
    """
    if explain is not None:
        if recording is not None:
            raise UsageError("--explain explains a cause, not a Recording", "leave out the Recording")
        if as_json:
            raise UsageError("--explain prints text only", "leave out --json")
        _explain(explain)
        return
    if recording is None:
        raise UsageError("no Recording is named", "name the directory that `sysmeter run` saved")
    from sysmeter.analysis.diagnosis import MAX_EPISODES
    from sysmeter.analysis.diagnosis import diagnose as diagnose_recording
    from sysmeter.cli.output import print_diagnosis
    from sysmeter.cli.recordings import load_and
    from sysmeter.report.diagnosis import TEXT_EPISODES

    n_episodes = top if top is not None else MAX_EPISODES if as_json else TEXT_EPISODES
    result = load_and(recording, lambda found: diagnose_recording(found, above, n_episodes))
    print_diagnosis(result, as_json, n_episodes)


def _explain(word: str) -> None:
    from sysmeter.cli.streams import write_result
    from sysmeter.report.explain import EXPLANATIONS, render_explanation

    wanted = " ".join(word.lower().replace("-", " ").replace("_", " ").split())
    if wanted not in EXPLANATIONS:
        raise UsageError(f"there is no cause {word!r}", f"the causes are: {', '.join(EXPLANATIONS)}")
    write_result(render_explanation(wanted, 80), lost="")
