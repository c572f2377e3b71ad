"""``sysmeter omission``: coordinated omission, shown in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sysmeter.cli.parameters import DURATION, DURATION_OR_ZERO
from sysmeter.units import format_ns

if TYPE_CHECKING:
    from sysmeter.analysis.omission import Outcome

# Some ten seconds and a few MiB of memory. More requests would show nothing else.
_MAX_REQUESTS = 100_000_000


@click.command()
@click.option(
    "--interval", "interval_ns", type=DURATION, default="10ms", show_default=True, help="A request is due so often."
)
@click.option(
    "--service", "service_ns", type=DURATION, default="1ms", show_default=True, help="Time that a request takes."
)
@click.option(
    "--stall", "stall_ns", type=DURATION_OR_ZERO, default="1s", show_default=True, help="How long the service freezes."
)
@click.option(
    "--stall-at",
    "stall_at_ns",
    type=DURATION_OR_ZERO,
    default="5s",
    show_default=True,
    help="When: the first request that begins then or later is hit.",
)
@click.option(
    "--requests", type=click.IntRange(1, _MAX_REQUESTS), default=1_000, show_default=True, help="How many requests."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw both latencies by percentile into FILE (.svg or .png); needs matplotlib.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.omission/1) and nothing else."
)
def omission(plot: Path | None, as_json: bool, **parameters: Any) -> None:
    """Show how a test that waits for each response hides a stall (coordinated omission).

    Requests are due at a fixed interval, and once the service freezes. Each response is measured twice: from the
    moment a tester that waits could send the request, and from the moment the request was due. Time is virtual:
    nothing waits, and the same parameters print the same figures.
    """
    from sysmeter.analysis.omission import Experiment, describe, simulate
    from sysmeter.cli.streams import write_result

    if plot is not None:
        from sysmeter.report.plot import format_of, require_matplotlib

        format_of(plot)
        require_matplotlib()
    experiment = Experiment(**parameters)
    outcome = simulate(experiment)
    result = describe(experiment, outcome)
    if plot is not None:
        _draw(plot, result, outcome)
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.omission import render_omission

        text = render_omission(result)
    write_result(text, lost="nothing is lost: the same command prints it again")


def _draw(path: Path, result: dict[str, Any], outcome: Outcome) -> None:
    from sysmeter.analysis.omission import percentile_curve
    from sysmeter.report.layout import plural
    from sysmeter.report.plot import Curve, plot_percentiles

    parameters = result["parameters"]
    stall = "no stall" if result["stall"] is None else f"one stall of {format_ns(parameters['stall_ns'])}"
    title = (
        f"One system, measured in two ways: {plural(result['requests'], 'request')}, one every"
        f" {format_ns(parameters['interval_ns'])}, {stall}"
    )
    curves = [
        Curve("naive: from when the request was sent", percentile_curve(outcome.naive)),
        Curve("corrected: from when it was due", percentile_curve(outcome.corrected)),
    ]
    plot_percentiles(path, title, curves)
