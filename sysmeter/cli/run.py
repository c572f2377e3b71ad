"""``sysmeter run``: the main job."""

from __future__ import annotations

import itertools
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sysmeter import hist
from sysmeter.cli.parameters import DURATION, SECONDS, SECONDS_OR_NONE
from sysmeter.cli.streams import say
from sysmeter.errors import EXIT_INTERRUPTED, EXIT_OK, SysmeterError

if TYPE_CHECKING:
    from sysmeter.recording import Recording


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
    "--precision-bits",
    type=click.IntRange(hist.MIN_SUB_BITS, hist.MAX_SUB_BITS),
    default=7,
    show_default=True,
    help="Histograms have 2^BITS buckets per power of two: 7 is an error of 0.8 %.",
)
@click.option("--probes/--no-probes", default=True, help="Watch the threads from inside the kernel.  [default: on]")
@click.option(
    "--stop-above",
    "stop_above_ns",
    type=DURATION,
    metavar="DURATION",
    help="Stop soon after the first response above it (such as 500us), and keep what led to it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.run/1) and nothing else.")
def run(feed: Path | None, cpus: str | None, out: Path | None, as_json: bool, **options: Any) -> int:
    """Measure the capstone loop and say where its latency tail comes from.

    A feed thread hands messages to a strategy thread, each on a CPU of its own, while kernel probes watch
    exactly these two threads. Prints the latency table, the zero counters with their witnesses and the
    slowest episodes with what held them, and saves a Recording for `sysmeter report`.
    """
    from sysmeter import host, session
    from sysmeter.analysis.summary import summarize
    from sysmeter.cli.listener import ConsoleListener
    from sysmeter.cli.output import print_result
    from sysmeter.cli.provisions import cache_directory, default_feed, require_own_capstone

    require_own_capstone()
    listener = ConsoleListener()
    chosen = host.choose_cpus(cpus)
    if out is None:
        out = _free_name(f"sysmeter-{datetime.now():%Y%m%d-%H%M%S}")
    settings = session.RunSettings(
        feed=str((feed if feed is not None else default_feed(listener)).absolute()),
        cache_dir=str(cache_directory()),
        cpus=chosen,
        **options,
    )
    try:
        recording = session.run(settings, out, listener)
    except session.UnsavedRecording as error:
        # The disk is full or the like: the measurement is still worth reading.
        print_result(summarize(error.recording), as_json)
        raise SysmeterError(error.message, error.hint) from error
    print_result(summarize(recording), as_json)
    if recording.meta["interrupted"]:
        _say_interrupted(recording)
        return EXIT_INTERRUPTED
    return EXIT_OK


def _free_name(base: str) -> Path:
    """``base``, or with a number behind it where another run of the same second has it."""
    for number in itertools.count(2):
        path = Path(base if number == 2 else f"{base}-{number - 1}")
        if not os.path.lexists(path) and not any(Path().glob(f".sysmeter-unfinished-*-{path.name}")):
            return path
    raise AssertionError


def _say_interrupted(recording: Recording) -> None:
    say(f"interrupted; what was measured is saved in {recording.path}")
