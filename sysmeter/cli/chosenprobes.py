"""The options ``--probes LIST`` and ``--no-probes``, for every command that measures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sysmeter.errors import UsageError

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ProbeList(click.ParamType[tuple[str, ...]]):
    """Names of the catalogue with commas between; converts to all that are then needed, in catalogue order."""

    name = "list"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Names, those that they require included."""
        from sysmeter.kernel.catalogue import CATALOGUE, with_required

        names = [word.strip() for word in str(value).split(",")]
        unknown = [name for name in names if name not in CATALOGUE]
        if unknown:
            what = f"there is no probe named {unknown[0]!r}" if unknown[0] else "a name is missing"
            known = "\n".join(f"  {name:<16}{probe.summary}" for name, probe in CATALOGUE.items())
            self.fail(f"{what}; the probes are\n{known}", param, ctx)
        return with_required(names)


def settle_probes(options: dict[str, Any]) -> None:
    """Make settings of the two options and --audit: leaves ``chosen_probes`` out where nothing was chosen.

    Raises:
        UsageError: they contradict each other.
    """
    chosen = options.pop("chosen_probes")
    if chosen is None:
        return
    if not options["probes"]:
        raise UsageError("--probes and --no-probes contradict each other", "leave one of them out")
    options["chosen_probes"] = chosen
    if "allocations" in chosen and "audit" in options:
        options["audit"] = True


def probes_options(command: _Command) -> _Command:
    """Add both options: the command is given ``probes`` (whether any) and ``chosen_probes`` (None: the default set)."""
    command = click.option(
        "--no-probes",
        "probes",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Measure without BPF and without root.",
    )(command)
    return click.option(
        "--probes",
        "chosen_probes",
        type=ProbeList(),
        metavar="LIST",
        help="Watch the threads with these kernel probes only, with commas between; `sysmeter probes` lists them."
        "  [default: all that are not on request]",
    )(command)
