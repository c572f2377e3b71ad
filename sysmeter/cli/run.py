"""``sysmeter run``: the main job."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sysmeter import buckets
from sysmeter.cli.chosenprobes import probes_options, settle_probes
from sysmeter.cli.claims import check_run, claims_option, read_claims
from sysmeter.cli.parameters import DURATION, MILLISECONDS, SECONDS, SECONDS_OR_NONE
from sysmeter.cli.runs import free_name
from sysmeter.cli.streams import say
from sysmeter.cli.swaps import describe_components
from sysmeter.errors import EXIT_INTERRUPTED, SysmeterError, UsageError

if TYPE_CHECKING:
    from sysmeter.recording import Recording
    from sysmeter.session import RunSettings


@click.command()
@click.option(
    "--mode",
    type=click.Choice(["paced", "flat"]),
    default="paced",
    show_default=True,
    help="paced: release each message at its intended time. flat: as fast as the queue has room.",
)
@click.option(
    "--rate",
    "rate_hz",
    type=click.IntRange(1, 1_000_000_000),
    default=100_000,
    show_default=True,
    help="Messages a second.",
)
@click.option(
    "--seconds",
    type=SECONDS,
    help="Length of the run at --rate, the warm-up included.  [default: the message file's]",
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
    "--feed", type=click.Path(path_type=Path), help="Message file.  [default: one of 2,000,000 messages, made once]"
)
@click.option("--loop", is_flag=True, help="Repeat the message file for as long as --seconds says.")
@click.option(
    "--cpus",
    metavar="A,B",
    help="CPUs of the feed and the strategy thread.  [default: the two last allowed]",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory to make for the Recording.  [default: sysmeter-DATE-TIME]"
)
@click.option(
    "--decisions",
    "decisions_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the decisions to FILE, for `sysmeter decisions`.",
)
@click.option(
    "--precision-bits",
    type=click.IntRange(buckets.MIN_SUB_BITS, buckets.MAX_SUB_BITS),
    default=7,
    show_default=True,
    help="Histograms have 2^BITS buckets per power of two: 7 is an error of 0.8 %.",
)
@probes_options
@click.option(
    "--audit",
    is_flag=True,
    help="Count the threads' calls of libc's malloc, calloc, realloc and free as well. Each call then takes some µs"
    " longer: take the latencies of an allocating loop from a run without it.",
)
@click.option(
    "--stop-above",
    "stop_above_ns",
    type=DURATION,
    metavar="DURATION",
    help="Stop soon after the first response above it (such as 500us), and keep what led to it.",
)
@click.option("--book", default="array", show_default=True, help=f"Order book. {describe_components('book')}")
@click.option("--queue", default="ring", show_default=True, help=f"Queue. {describe_components('queue')}")
@click.option(
    "--stall-every",
    "stall_every_ns",
    type=MILLISECONDS,
    metavar="MS",
    help="Let the strategy thread spin once in so many milliseconds, before it drains.",
)
@click.option(
    "--stall-for",
    "stall_for_ns",
    type=MILLISECONDS,
    default="10",
    metavar="MS",
    show_default=True,
    help="Length of each stall in milliseconds.",
)
@claims_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.run/1) and nothing else.")
def run(
    feed: Path | None,
    cpus: str | None,
    out: Path | None,
    decisions_file: Path | None,
    claims_file: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure the capstone loop and say where its latency tail comes from.

    A feed thread hands messages to a strategy thread, each on a CPU of its own, while kernel probes watch
    exactly these two threads. Prints the latency table, the zero counters with their witnesses and the
    slowest episodes with what held them, and saves a Recording for `sysmeter report`.
    """
    from sysmeter import host, session
    from sysmeter.analysis.claims import exit_code
    from sysmeter.analysis.summary import summarize
    from sysmeter.cli.listener import ConsoleListener
    from sysmeter.cli.output import print_result
    from sysmeter.cli.provisions import cache_directory, default_feed, require_own_capstone
    from sysmeter.cli.swaps import require_stall, require_swaps

    require_own_capstone()
    settle_probes(options)
    claims = None if claims_file is None else read_claims(claims_file)
    listener = ConsoleListener()
    chosen = host.choose_cpus(cpus)
    if out is None:
        out = free_name(f"sysmeter-{datetime.now():%Y%m%d-%H%M%S}")
    require_swaps(options["book"], options["queue"])
    context = click.get_current_context()
    if (
        options["stall_every_ns"] is None
        and context.get_parameter_source("stall_for_ns") is ParameterSource.COMMANDLINE
    ):
        raise UsageError("--stall-for alone injects no stall", "say how often with --stall-every")
    if options["stall_every_ns"] is not None:
        require_stall(options["stall_every_ns"], options["stall_for_ns"])
        options["stall"] = "periodic"
    settings = session.RunSettings(
        feed=str((feed if feed is not None else default_feed(listener)).absolute()),
        cache_dir=str(cache_directory()),
        cpus=chosen,
        **options,
    )
    if decisions_file is not None:
        _check_decisions_file(decisions_file, out, settings)
    unsaved: SysmeterError | None = None
    try:
        recording = session.run(settings, out, listener)
    except session.UnsavedRecording as error:
        # The disk is full or the like: the measurement is still worth reading.
        recording, unsaved = error.recording, error
    result = summarize(recording)
    if claims is not None:
        result["claims"] = check_run(claims, result)
    print_result(result, as_json)
    if decisions_file is not None:
        unsaved = _write_decisions_file(decisions_file, recording, unsaved)
    if unsaved is not None:
        raise SysmeterError(unsaved.message, unsaved.hint) from unsaved
    if recording.meta["interrupted"]:
        _say_interrupted(recording)
        return EXIT_INTERRUPTED
    return exit_code(row["verdict"] for row in result.get("claims", ()))


def _say_interrupted(recording: Recording) -> None:
    say(f"interrupted; what was measured is saved in {recording.path}")


def _check_decisions_file(path: Path, out: Path, settings: RunSettings) -> None:
    """Whatever would keep the decisions file from being written must be told before the run."""
    from dataclasses import asdict

    from capstone import feedfile
    from capstone.plan import FULL_STORAGE_MESSAGES, make_plan
    from sysmeter.decisions import check_place

    plan = make_plan(asdict(settings), feedfile.read(Path(settings.feed)))
    if not plan.is_full:
        raise UsageError(
            f"--decisions: a run of {plan.n_messages:,} messages keeps no decisions,"
            f" one of {FULL_STORAGE_MESSAGES:,} at most does",
            "make the run shorter with --seconds, or leave --decisions out",
        )
    if path.absolute() == out.absolute():
        raise UsageError(f"--decisions and --out both name {path}", "give the file another name")
    check_place(path)


def _write_decisions_file(path: Path, recording: Recording, before: SysmeterError | None) -> SysmeterError | None:
    """The error that remains to be told, this one's after that of ``before``."""
    from sysmeter.decisions import write_csv

    try:
        write_csv(path, recording["decisions"])
    except SysmeterError as error:
        return error if before is None else SysmeterError(f"{before.message}; {error.message}", before.hint)
    say(f"decisions: {len(recording['decisions']):,} in {path}")
    return before
