"""What each swap says of itself, read from its file without importing it: the observer stays free of numba."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capstone import combination
from sysmeter.errors import SysmeterError

_SWAPS = Path(__file__).parent / "swaps"

# The zeros that a swap may predict to break.
_BREAKABLE = (None, "allocations", "voluntary_switches", "minor_faults", "major_faults", "syscalls", "gc_collections")

# A stall replaces nothing, so it is known by its slot's name and not by its file's.
STALL = "stall"


@dataclass(frozen=True)
class Swap:
    """A component other than the default. ``breaks`` is a counter or None, ``histogram`` think or total.

    ``one_in``: only each N-th message pays, those of a number divisible by N; None where all do.
    """

    name: str
    slot: str
    component: str
    help: str
    breaks: str | None
    histogram: str
    one_in: int | None = None


def swaps() -> list[Swap]:
    """Every swap that states a prediction (``PREDICTS``), slot by slot, a stall last.

    Raises:
        SysmeterError: two swaps have one name, or a file cannot be read as Python.
    """
    found = [
        swap
        for slot in sorted(combination.DEFAULTS, key=lambda slot: slot == STALL)
        for component in combination.names(slot)[1:]
        if (swap := _read(slot, component)) is not None
    ]
    names = [swap.name for swap in found]
    for name in names:
        if names.count(name) > 1:
            raise SysmeterError(f"two swaps are called {name}", "rename one of the files in capstone/swaps")
    return found


def unpredicted() -> list[str]:
    """The components beside the defaults that state no prediction, as ``slot/name``.

    One that says ``IS_SWAP = False`` is a tool of the tests and not meant to be compared.
    """
    return [
        f"{slot}/{component}"
        for slot in combination.DEFAULTS
        for component in combination.names(slot)[1:]
        if _read(slot, component) is None and _is_swap(slot, component)
    ]


def swaps_of(settings: dict[str, str]) -> list[str]:
    """The names of the swaps in a choice of components, in their order."""
    names = []
    for slot in sorted(combination.DEFAULTS, key=lambda slot: slot == STALL):
        if settings[slot] != combination.DEFAULTS[slot]:
            names.append(_name(slot, settings[slot]))
    return names


def _name(slot: str, component: str) -> str:
    return STALL if slot == STALL else component


def _read(slot: str, component: str) -> Swap | None:
    path = _SWAPS / slot / f"{component}.py"
    try:
        module = ast.parse(path.read_text())
        predicts = _constant(module, "PREDICTS")
        if predicts is None:
            return None
        swap = Swap(_name(slot, component), slot, component, help_of(module), **predicts)
        if swap.breaks not in _BREAKABLE or swap.histogram not in ("think", "total"):
            raise ValueError(f"breaks must be one of {_BREAKABLE}, histogram think or total")
        return swap
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        raise SysmeterError(
            f"the swap {path} states no readable prediction: {error}", "see PREDICTS in the others"
        ) from error


def _is_swap(slot: str, component: str) -> bool:
    return _constant(ast.parse((_SWAPS / slot / f"{component}.py").read_text()), "IS_SWAP") is not False


def help_of(module: ast.Module) -> str:
    """The first line of a component's docstring, which is its help text."""
    return (ast.get_docstring(module) or "").partition("\n")[0]


def describe(slot: str) -> str:
    """The components of a slot with their help texts, for --help."""
    lines = []
    for component in combination.names(slot):
        try:
            text = help_of(ast.parse((_SWAPS / slot / f"{component}.py").read_text()))
        except (OSError, SyntaxError, ValueError):
            text = "cannot be read."
        lines.append(f"{component}: {text}")
    return " ".join(lines)


def _constant(module: ast.Module, name: str) -> Any:
    """The literal that the module assigns to a name; None where it assigns none."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    return None
