"""``sysmeter probes``: the kernel probes there are."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.probes/1) and nothing else."
)
def probes(as_json: bool) -> int:
    """List the kernel probes: what each sees, what it attaches to, and what its count entitles you to say.

    Those marked "default" watch every run; the others only where they are asked for. Choose with --probes LIST.
    Needs no root: whether this kernel can have a probe shows when a run opens it.
    """
    from sysmeter.cli.streams import write_result
    from sysmeter.kernel.catalogue import describe_catalogue

    result = describe_catalogue()
    if as_json:
        from sysmeter.report.json import dump

        text = dump(result)
    else:
        from sysmeter.report.probes import render_probes

        text = render_probes(result)
    write_result(text)
    return 0
