"""``sysmeter selftest``: known causes are injected, and the diagnosis must name each of them."""

from __future__ import annotations

import random
from pathlib import Path

import click

from sysmeter.cli.series import OnceListener, place_for_runs, signals_as_interrupts
from sysmeter.cli.streams import say
from sysmeter.errors import EXIT_NOT_PROVEN, KernelError, UsageError


@click.command()
@click.option(
    "--trials",
    type=click.IntRange(1, 10_000),
    default=30,
    show_default=True,
    help="Trials of each cause, and as many controls; 300 prove the goal.",
)
@click.option("--seed", type=click.IntRange(0), help="Repeat this order.  [default: another one each time]")
@click.option(
    "--causes",
    "causes_text",
    metavar="LIST",
    help="Only these, such as sleep,mutex. There are preemption, sleep, mutex, page_fault, stall, interrupt, stop, "
    "migration, quota and, in the live workload, collection.  [default: all]",
)
@click.option(
    "--cpus", metavar="A,B", help="CPUs of the feed and the strategy thread.  [default: the two last allowed]"
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory to make for all Recordings.  [default: none]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.selftest/1) and nothing else."
)
def selftest(
    trials: int, seed: int | None, causes_text: str | None, cpus: str | None, out: Path | None, as_json: bool
) -> int:
    """Inject known causes into a running workload and check that the diagnosis names each of them.

    A trial is found when the right cause is named with the injector's identity, for as long as the injector says. In
    controls nothing is injected, and nothing of it may be named. Then an ordinary run tells how much of a tail is
    explained.

    Exit codes: 0 the goal is met (or the quick form passed), 3 it is not, 4 that is not proven, 130 interrupted (the
    trials so far are printed).
    """
    from sysmeter import host, session
    from sysmeter.cli.output import print_selftest
    from sysmeter.cli.provisions import cache_directory, default_feed, require_own_capstone
    from sysmeter.report.selftest import plan_line, run_line
    from sysmeter.selftest.runner import SelfTest, exit_code, expected_seconds
    from sysmeter.selftest.runner import selftest as carry_out

    require_own_capstone()
    causes = _causes(causes_text)
    listener = OnceListener()
    chosen = host.choose_cpus(cpus)
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    with signals_as_interrupts(), place_for_runs(out) as place:
        feed = str(default_feed(listener).absolute())
        settings = session.RunSettings(feed=feed, cache_dir=str(cache_directory()), cpus=chosen, loop=True)
        test = SelfTest(
            settings,
            causes,
            trials,
            seed,
            place,
            out is not None,
            listener=listener,
            on_run=lambda *run: say(run_line(*run)),
        )
        say(plan_line(causes, trials, seed, expected_seconds(test)))
        try:
            result = carry_out(test)
        except KernelError as error:
            hint = "without the kernel's probes nothing can be proven: start it as root, a container with --privileged"
            unproven = KernelError(error.message, hint)
            unproven.exit_code = EXIT_NOT_PROVEN
            raise unproven from error
        print_selftest(result, as_json)
    return exit_code(result)


def _causes(text: str | None) -> list[str]:
    from sysmeter.selftest import plan

    if text is None:
        return list(plan.CAUSES)
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in plan.CAUSES:
            raise UsageError(f"there is no cause {word!r} to inject", f"there is: {', '.join(plan.CAUSES)}")
    if not words:
        raise UsageError("--causes names no cause", f"there is: {', '.join(plan.CAUSES)}")
    return [cause for cause in plan.CAUSES if cause in words]
