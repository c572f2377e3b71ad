"""``sysmeter verify``: each swap against the default, and a verdict on what it should have done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sysmeter.cli.claims import claims_option
from sysmeter.cli.parameters import SECONDS, SECONDS_OR_NONE
from sysmeter.cli.series import OnceListener, place_for_runs, signals_as_interrupts
from sysmeter.cli.streams import say
from sysmeter.errors import UsageError
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    from sysmeter.analysis.swapruns import SwapRun
    from sysmeter.session import RunSettings
    from sysmeter.verification import Combination

_STALLS_AT_LEAST = 2
_STALL_PART = 100  # a stall lasts so much of its period


@click.command()
@click.option("--rounds", type=click.IntRange(1, 1_000), default=6, show_default=True, help="How often each swap runs.")
@click.option(
    "--seconds",
    type=SECONDS,
    default=2.0,
    show_default=True,
    help="Length of each run, the warm-up included.",
)
@click.option(
    "--warmup",
    "warmup_seconds",
    type=SECONDS_OR_NONE,
    default=0.5,
    show_default=True,
    help="The first so many seconds' worth of messages are not counted.",
)
@click.option(
    "--rate",
    "rate_hz",
    type=click.IntRange(1, 1_000_000_000),
    default=100_000,
    show_default=True,
    help="Messages a second.",
)
@click.option("--swap", "names", multiple=True, metavar="NAME", help="Only this swap; may be given again.")
@click.option(
    "--feed", type=click.Path(path_type=Path), help="Message file, repeated if need be.  [default: as of run]"
)
@click.option(
    "--cpus", metavar="A,B", help="CPUs of the feed and the strategy thread.  [default: the two last allowed]"
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory to make for all Recordings.  [default: none]")
@claims_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.verify/1) and nothing else."
)
def verify(
    names: tuple[str, ...],
    feed: Path | None,
    cpus: str | None,
    out: Path | None,
    claims_file: Path | None,
    as_json: bool,
    rounds: int,
    **options: Any,
) -> int:
    """Show that each swap breaks the zero and moves the histogram it should, and changes no decision.

    Runs the default and each swap in turns, paced, and once more each with calls of the allocator counted.

    Exit codes: 0 all as predicted, 3 something is not, 4 something is not proven.
    """
    from capstone import predictions
    from sysmeter import host, session
    from sysmeter.cli.claims import read_claims
    from sysmeter.cli.output import print_verification
    from sysmeter.cli.provisions import cache_directory, default_feed, require_own_capstone
    from sysmeter.verification import Comparison, exit_code
    from sysmeter.verification import verify as carry_out

    require_own_capstone()
    listener = OnceListener()
    chosen = host.choose_cpus(cpus)
    stated = [] if claims_file is None else read_claims(claims_file)
    settings = session.RunSettings(
        feed=str((feed if feed is not None else default_feed(listener)).absolute()),
        cache_dir=str(cache_directory()),
        cpus=chosen,
        loop=True,
        **options,
    )
    stall = _stall_of(settings)
    swaps = _combinations(names, stall)
    for component in predictions.unpredicted():
        listener.note(f"capstone/swaps/{component}.py states no prediction (PREDICTS), so there is nothing to verify")
    if rounds == 1:
        listener.note("one round gives no interval, so nothing can be proven; give --rounds 2 or more")
    with signals_as_interrupts(), place_for_runs(out) as place:
        comparison = Comparison(settings, swaps, stall, rounds, place, out is not None, stated, listener, _say_run)
        result = carry_out(comparison)
        print_verification(result, as_json)
    return exit_code(result)


def _combinations(names: tuple[str, ...], stall: tuple[int, int]) -> list[Combination]:
    from capstone import predictions
    from sysmeter.analysis.swapruns import one_in_figure
    from sysmeter.analysis.swaps import Prediction
    from sysmeter.verification import Combination

    known = {swap.name: swap for swap in predictions.swaps()}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no swap {name!r}", f"there is: {', '.join(known)}")
    chosen = []
    for name, swap in known.items():
        if names and name not in names:
            continue
        is_stall = swap.slot == predictions.STALL
        changes: dict[str, Any] = {swap.slot: swap.component}
        if is_stall:
            changes |= {"stall_every_ns": stall[0], "stall_for_ns": stall[1]}
        prediction = Prediction(name, swap.breaks, swap.histogram, swap.histogram, swap.one_in)
        if is_stall:
            prediction = Prediction(name, swap.breaks, swap.histogram, predictions.STALL, stays="think")
        elif swap.one_in is not None:
            prediction = replace(prediction, figure=one_in_figure(swap.one_in))
        chosen.append(Combination(prediction, changes))
    return chosen


def _stall_of(settings: RunSettings) -> tuple[int, int]:
    """10 ms a second as in ``--stall-every 1000``; in runs too short for two such stalls both in proportion."""
    from capstone.plan import FULL_STORAGE_MESSAGES

    assert settings.seconds is not None  # the option has a default
    n_messages = round(settings.seconds * settings.rate_hz)
    if n_messages > FULL_STORAGE_MESSAGES:
        raise UsageError(
            f"runs of {n_messages:,} messages keep no decisions, and without these nothing can be compared",
            f"keep --seconds times --rate at {FULL_STORAGE_MESSAGES:,} or less; more --rounds help as much",
        )
    if settings.warmup_seconds >= settings.seconds:
        raise UsageError(
            f"a warm-up of {settings.warmup_seconds:g} s leaves nothing to measure of {settings.seconds:g} s",
            "shorten --warmup, or lengthen the runs with --seconds, which count the warm-up",
        )
    begin_ns, end_ns = round(settings.warmup_seconds * NS_PER_S), round(settings.seconds * NS_PER_S)
    every_ns = NS_PER_S
    n_inside = (end_ns - every_ns // _STALL_PART) // every_ns - max(0, -(-begin_ns // every_ns) - 1)
    if n_inside < _STALLS_AT_LEAST:
        every_ns = max(_STALL_PART, (end_ns - begin_ns) // (_STALLS_AT_LEAST + 1))
    return every_ns, every_ns // _STALL_PART


def _say_run(number: int, total: int, run: SwapRun) -> None:
    from sysmeter.report.verify import run_line

    say(run_line(number, total, run.combination, run.is_audit, run.levels_ns))
