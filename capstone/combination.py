"""Which component fills each slot of the loop. The loop is compiled for one combination, without dispatch.

A component is a module ``capstone/swaps/<slot>/<name>.py``; its path is its identity. The choice is made once
a process, before :mod:`capstone.feed_thread` and :mod:`capstone.strategy_thread` are imported, since they
take their component's functions as globals.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

DEFAULTS = {"book": "array", "queue": "ring", "stall": "none"}

_chosen = dict(DEFAULTS)


def names(slot: str) -> list[str]:
    """The components that exist for a slot, the default first."""
    found = sorted(path.stem for path in (Path(__file__).parent / "swaps" / slot).glob("[!_]*.py"))
    return sorted(found, key=lambda name: name != DEFAULTS[slot])


def is_bounded(queue: str) -> bool:
    """Whether a queue holds a limited number of messages: its file says ``SLOTS = None`` where not."""
    return "\nSLOTS = None\n" not in (Path(__file__).parent / "swaps" / "queue" / f"{queue}.py").read_text()


def choose(choice: dict[str, str]) -> None:
    """Fix the combination of this process; slots that are not named keep their default."""
    _chosen.update(choice)


def component(slot: str) -> ModuleType:
    """The module chosen for a slot."""
    return importlib.import_module(f"capstone.swaps.{slot}.{_chosen[slot]}")
