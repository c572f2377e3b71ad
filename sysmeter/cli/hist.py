"""``sysmeter hist``: show and merge files of histograms."""

from __future__ import annotations

from pathlib import Path

import click

from sysmeter.cli.streams import write_result

_unit_option = click.option(
    "--unit",
    type=click.Choice(["ns", "us", "ms", "s"]),
    default="ns",
    show_default=True,
    help="Unit of the values in .hlog and .hgrm files that other programs wrote.",
)
_files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="FILE..."
)


@click.group()
def hist() -> None:
    """Show and merge histograms: .hlog, .hgrm and .json files, and Recordings.

    .hlog and .hgrm are HdrHistogram's log and percentile distribution, .json is what LatencyHistogram.save() writes. A
    Recording is the directory of one.
    """


@hist.command()
@_files_argument
@_unit_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object (schema sysmeter.histogram/1) and nothing else."
)
def show(files: tuple[Path, ...], unit: str, as_json: bool) -> None:
    """Print what each FILE holds.

    For each tag its intervals, figures, and the whole percentile table.
    """
    from sysmeter.analysis.histograms import describe

    result = describe(files, unit)
    if as_json:
        from sysmeter.report.json import dump

        write_result(dump(result))
    else:
        from sysmeter.report.hist import render_histograms

        write_result(render_histograms(result))


@hist.command()
@_files_argument
@_unit_option
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="File to write: .hlog, .hgrm or .json.",
)
@click.option("--tag", help="Merge only the histograms of this tag, such as think.")
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
def merge(files: tuple[Path, ...], unit: str, out: Path, tag: str | None, force: bool) -> None:
    """Merge the histograms of FILEs into OUT.

    All histograms of a tag become one. Unlike precisions are merged into the
    coarsest of them. OUT's suffix decides what is written; .hgrm and .json hold
    one histogram, so that several tags need --tag or a .hlog.
    """
    from sysmeter import histfiles
    from sysmeter.analysis import histograms
    from sysmeter.errors import UsageError
    from sysmeter.report.hist import render_merge

    kind = histfiles.kind_of_name(out)
    if kind is None:
        raise UsageError(f"{out} has no suffix that says what to write", "end its name in .hlog, .hgrm or .json")
    merged, facts = histograms.merge(files, unit, tag, kind)
    histfiles.write(out, kind, merged, replace=force)
    write_result(render_merge(facts, str(out)), lost=f"the file is written: {out}")
