"""``sysmeter feed``: make a message file, and say what one holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

_SCHEMA = "sysmeter.feed/1"
_MAX_INSTRUMENTS_SHOWN = 8


@click.group()
def feed() -> None:
    """Make or describe the message file that a run plays."""
    from sysmeter.cli.provisions import require_own_capstone

    require_own_capstone()


@feed.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--messages", type=int, default=2_000_000, show_default=True, help="How many messages.")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed and number, same bytes.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def make(file: Path, messages: int, seed: int, force: bool) -> None:
    """Generate an order-book feed of one instrument into FILE."""
    from capstone import feedfile, generator

    generator.make_file(file, messages, seed, overwrite=force)
    size_bytes = feedfile.HEADER_BYTES + messages * feedfile.RECORD_BYTES
    click.echo(f"{file}: {messages:,} messages, {size_bytes:,} bytes")
    click.echo(f"sha256 {feedfile.sha256(file)}")


@feed.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def info(file: Path, as_json: bool) -> None:
    """Check FILE and say what it holds."""
    from capstone import feedfile

    facts = feedfile.info(file)
    if as_json:
        click.echo(json.dumps({"schema": _SCHEMA, **facts}, allow_nan=False))
    else:
        click.echo("\n".join(_lines(facts)))


def _lines(facts: dict[str, Any]) -> list[str]:
    kinds, instruments = facts["kinds"], facts["instruments"]
    shown = [f"{name} ({count:,})" for name, count in list(instruments.items())[:_MAX_INSTRUMENTS_SHOWN]]
    if len(instruments) > len(shown):
        shown.append(f"and {len(instruments) - len(shown):,} more")
    duration = f"{facts['duration_ns'] / 1e9:,.3f} s at {facts['nominal_rate_hz']:,}/s"
    rows = {
        "messages": f"{facts['count']:,} ({duration})",
        "kinds": f"{kinds['add']:,} adds, {kinds['change']:,} changes, {kinds['delete']:,} deletes",
        "instruments": f"{len(instruments):,}, universe {facts['n_instruments']:,}: {', '.join(shown)}",
        "sequence": f"{facts['first_seq']:,} to {facts['last_seq']:,}",
        "gaps": f"{facts['sequence_gaps']:,} ({facts['missing_sequence_numbers']:,} numbers missing)",
        "duplicates": f"{facts['duplicates']:,}",
        "prices": f"{facts['min_price_ticks']:,} to {facts['max_price_ticks']:,} ticks",
        "size": f"{facts['size_bytes']:,} bytes",
        "sha256": facts["sha256"],
    }
    return [f"{facts['path']}: message file, version {facts['version']}"] + [
        f"  {name:<12}{text}" for name, text in rows.items()
    ]
