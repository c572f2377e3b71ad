"""Pictures of latencies. The only home of matplotlib, which is optional and imported when a picture is asked for."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysmeter.errors import SysmeterError, UsageError
from sysmeter.files import write_atomically
from sysmeter.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMATS = ("svg", "png")

_INCHES = (8.0, 5.0)
_DOTS_PER_INCH = 150
# Told apart by lines and dots too: for a print without colours, and where curves lie upon each other. The colours are
# of Okabe and Ito's set, which those who see colours differently tell apart as well.
_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "--", "dot": 10},
    {"color": "#D55E00", "linestyle": "-", "dot": 6},
)


@dataclass(frozen=True)
class Curve:
    """A distribution: ``points`` are (how many values lie at or below, that length in ns), ascending in both.

    The last point's number is that of all values, and at least one of them is there.
    """

    name: str
    points: Sequence[tuple[int, int]]


def format_of(path: Path) -> str:
    """``"svg"`` or ``"png"``, by the file's suffix.

    Raises:
        UsageError: another suffix.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(f"{path} names no kind of picture that is known", "end the name in .svg or .png")
    return suffix


def require_matplotlib() -> None:
    """Import matplotlib, so that its absence is told before anything is worked out for a picture.

    Raises:
        SysmeterError: it is not installed, or not usable.
    """
    # What it says about its font cache and its configuration is of no concern to who asked for a picture.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib.figure  # noqa: F401 (only to see that it is there)
    except ImportError as error:
        raise SysmeterError(
            f"a picture needs matplotlib, which cannot be imported: {error}",
            "install it: .venv/bin/python -m pip install --require-hashes -r requirements-plot.lock",
        ) from error


def plot_percentiles(path: Path, title: str, curves: Sequence[Curve]) -> None:
    """Draw one or two curves, latency by percentile, into ``path``, SVG or PNG by its suffix; an old file is replaced.

    Both axes are logarithmic: the percentiles by how few values are beyond them, so that 99, 99.9 and 99.99 lie
    equally far apart. The same curves give the same SVG, byte for byte (with one version of matplotlib).

    Raises:
        UsageError: another suffix.
        SysmeterError: matplotlib is not there, or the file cannot be written.
    """
    kind = format_of(path)
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context():
        # A user's own matplotlibrc would make another picture of the same figures.
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = "sysmeter"
        figure = _draw(title, curves)
        picture = io.BytesIO()
        # Without these the file would hold the time, and so never be the same twice.
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(picture, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    try:
        write_atomically(path, picture.getvalue())
    except OSError as error:
        raise SysmeterError(
            f"cannot write {path}: {error.strerror}", "name a file that can be written; nothing half-written was left"
        ) from error


def _draw(title: str, curves: Sequence[Curve]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    most = max(curve.points[-1][0] for curve in curves)
    for number, (curve, style) in enumerate(zip(curves, _STYLES, strict=False)):
        x, y = corners(curve.points)
        # The first on top: through the gaps of its line the others can be seen.
        line = {"color": style["color"], "zorder": 10 - number, "clip_on": False}
        axes.plot(x, y, label=curve.name, linewidth=2, linestyle=style["linestyle"], **line)
        axes.plot(x[-1:], y[-1:], marker="o", markersize=style["dot"], fillstyle="none", markeredgewidth=2, **line)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, max(most * 1.25, 12.5))
    axes.xaxis.set_major_locator(FixedLocator(_tick_places(most)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: percentile_label(place)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_ns(value) if value >= 1 else ""))
    axes.set_xlabel("percentile (ring: the maximum)")
    axes.set_ylabel("latency")
    axes.set_title(title, fontsize="medium")
    axes.grid(which="major", alpha=0.4)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def corners(points: Sequence[tuple[int, int]]) -> tuple[list[float], list[int]]:
    """The curve's corners: x is n over how many values are beyond, 1 for the lowest and n for the highest value.

    Percentile p is at 100 / (100 - p). Values of rank a + 1 to b have the percentiles above 100 a / n up to
    100 b / n, all with one bound: a level line from n / (n - a) to n / (n - b), and for the last one, which would
    never end, to n.
    """
    n = points[-1][0]
    x, y, below = [], [], 0
    for at_or_below, value in points:
        left, right = n / (n - below), n / max(n - at_or_below, 1)
        x += [left, max(left, right)]
        y += [max(value, 1)] * 2  # 0 ns has no place on a logarithmic axis
        below = at_or_below
    return x, y


def _tick_places(most: int) -> list[float]:
    places = [1.0, 2.0, 10.0]
    while places[-1] * 10 <= most:
        places.append(places[-1] * 10)
    return places


def percentile_label(place: float) -> str:
    """The percentile at a place of the axis: 1 → ``0``, 2 → ``50``, 10 → ``90``, 1000 → ``99.9``."""
    decimals = max(0, len(str(round(place))) - 3)
    return f"{100 - 100 / place:.{decimals}f}"
