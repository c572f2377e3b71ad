"""The option ``--claims FILE``, which `run` and `verify` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sysmeter.analysis.claims import Claim

claims_option = click.option(
    "--claims",
    "claims_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file of claims to check, such as voluntary_switches = 0. Exit code 3: one fails, 4: one is not proven.",
)


def read_claims(path: Path) -> list[Claim]:
    """The claims of a file.

    Raises:
        ClaimsFileError: as :func:`sysmeter.analysis.claims.read`.
    """
    from capstone import predictions
    from sysmeter.analysis.claims import read

    return read(path, [swap.name for swap in predictions.swaps()])


def check_run(claims: list[Claim], result: dict[str, Any]) -> list[dict[str, Any]]:
    """The verdicts on a run's result, by the claims that are made of its combination of swaps."""
    from capstone import predictions
    from sysmeter.analysis.claims import check, claims_for, combination_name

    return check(claims_for(claims, combination_name(predictions.swaps_of(result["settings"]))), result)
