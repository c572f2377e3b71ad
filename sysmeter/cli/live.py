"""``sysmeter live``: a workload in plain Python, whose collector is the cause of its tail."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sysmeter import hist
from sysmeter.cli.chosenprobes import probes_options, settle_probes
from sysmeter.cli.parameters import SECONDS, SECONDS_OR_NONE
from sysmeter.cli.runs import free_name
from sysmeter.cli.series import OnceListener, place_for_runs, signals_as_interrupts
from sysmeter.cli.streams import say
from sysmeter.errors import EXIT_INTERRUPTED, EXIT_OK, SysmeterError, UsageError
from sysmeter.gcpolicy import DEFAULT, parse_policy

if TYPE_CHECKING:
    from sysmeter.session import LiveSettings


class _Policy(click.ParamType[str]):
    """A collector policy."""

    name = "policy"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The policy's text, as it is kept."""
        try:
            return str(parse_policy(str(value)))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option(
    "--mode",
    type=click.Choice(["paced", "flat"]),
    default="paced",
    show_default=True,
    help="paced: begin each message at its intended time. flat: as soon as the one before is done.",
)
@click.option(
    "--rate",
    "rate_hz",
    type=click.IntRange(1, 1_000_000),
    default=10_000,
    show_default=True,
    help="Messages a second.",
)
@click.option(
    "--seconds",
    type=SECONDS,
    default=10.0,
    show_default=True,
    help="Length of a run at --rate, the warm-up included.",
)
@click.option(
    "--warmup",
    "warmup_seconds",
    type=SECONDS_OR_NONE,
    default=1.0,
    show_default=True,
    help="The first so many seconds' worth of messages are not counted.",
)
@click.option(
    "--gc",
    "policies",
    type=_Policy(),
    multiple=True,
    metavar="POLICY",
    help="default, off, freeze or threshold:N. With --compare-gc it may be given several times.  [default: default]",
)
@click.option("--compare-gc", is_flag=True, help="Run several policies in turns and print one table.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1_000),
    default=3,
    show_default=True,
    help="With --compare-gc: how often each policy runs.",
)
@click.option(
    "--orders",
    type=click.IntRange(1, 100_000_000),
    default=20_000,
    show_default=True,
    help="Orders in the cache: what a full collection has to look at.",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Other Python threads of the process, which now and then want the interpreter lock.",
)
@click.option("--cpu", type=click.IntRange(0), help="CPU of the measured thread.  [default: the last allowed]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory to make for the Recording, with --compare-gc for all of them.  [default: sysmeter-live-DATE-TIME;"
    " with --compare-gc none]",
)
@click.option(
    "--precision-bits",
    type=click.IntRange(hist.MIN_SUB_BITS, hist.MAX_SUB_BITS),
    default=7,
    show_default=True,
    help="Histograms have 2^BITS buckets per power of two: 7 is an error of 0.8 %.",
)
@probes_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object (schema sysmeter.live/1, or sysmeter.live-gc/1) and nothing else.",
)
def live(
    policies: tuple[str, ...],
    compare_gc: bool,
    rounds: int,
    cpu: int | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure a Python workload whose garbage collector has real work, and say where its tail comes from.

    A pinned thread of a process of its own builds, splits and parses order messages and keeps them in a cache full of
    reference cycles. A collection in any thread of that process is a cause here, and so is waiting for the
    interpreter lock. Prints service and response times with the collections beside them.
    """
    from sysmeter import host, session
    from sysmeter.session import AUDIT_PROBE

    settle_probes(options)
    if AUDIT_PROBE in options.get("chosen_probes", ()):
        raise UsageError(
            f"live does not count {AUDIT_PROBE}: Python allocates all the time", "leave the probe out of --probes"
        )
    settings = session.LiveSettings(cpus=(host.choose_cpu(cpu),), **options)
    if compare_gc:
        return _compare(settings, policies, rounds, out, as_json)
    if len(policies) > 1:
        raise UsageError("--gc is given several times", "name one policy, or compare them with --compare-gc")
    context = click.get_current_context()
    if context.get_parameter_source("rounds") is not click.core.ParameterSource.DEFAULT:
        raise UsageError("--rounds belongs to --compare-gc", "add --compare-gc, or leave out --rounds")
    return _run(settings, policies[0] if policies else DEFAULT, out, as_json)


def _run(settings: LiveSettings, policy: str, out: Path | None, as_json: bool) -> int:
    from dataclasses import replace

    from sysmeter import session
    from sysmeter.analysis.summary import summarize
    from sysmeter.cli.listener import ConsoleListener
    from sysmeter.cli.output import print_result

    if out is None:
        out = free_name(f"sysmeter-live-{datetime.now():%Y%m%d-%H%M%S}")
    unsaved: SysmeterError | None = None
    try:
        recording = session.run(replace(settings, gc=policy), out, ConsoleListener())
    except session.UnsavedRecording as error:
        # The disk is full or the like: the measurement is still worth reading.
        recording, unsaved = error.recording, error
    print_result(summarize(recording), as_json)
    if unsaved is not None:
        raise SysmeterError(unsaved.message, unsaved.hint) from unsaved
    if recording.meta["interrupted"]:
        say(f"interrupted; what was measured is saved in {recording.path}")
        return EXIT_INTERRUPTED
    return EXIT_OK


def _compare(settings: LiveSettings, policies: tuple[str, ...], rounds: int, out: Path | None, as_json: bool) -> int:
    from sysmeter.cli.output import print_gc_comparison
    from sysmeter.gccomparison import DEFAULT_POLICIES, GcComparison, compare
    from sysmeter.report.livegc import run_line

    chosen = list(dict.fromkeys(policies or DEFAULT_POLICIES))
    with signals_as_interrupts(), place_for_runs(out) as place:
        comparison = GcComparison(
            settings,
            chosen,
            rounds,
            place,
            out is not None,
            OnceListener(),
            lambda number, total, run: say(run_line(number, total, run)),
        )
        result = compare(comparison)
        print_gc_comparison(result, as_json)
    return EXIT_INTERRUPTED if result["interrupted"] else EXIT_OK
