"""What a Recording's own samples show about how they were taken, worked out from them again.

A setting says what was meant to be measured; the kept instants say what was.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.reads import column
from sysmeter.analysis.tail import beyond_bucket, histogram, slow_messages
from sysmeter.schedule import intended_ns

if TYPE_CHECKING:
    from sysmeter.recording import Recording

# Below any response time, so that every message counts as slow: int64's lowest would overflow in comparisons.
_EVERY_RESPONSE_NS = -(2**62)


@dataclass(frozen=True)
class Order:
    """How many instants were looked at that must follow each other, and how many went back."""

    n_instants: int
    n_backward: int


def instants_in_order(recording: Recording) -> Order:
    """Whether any thread's clock went back: from batch to batch, within one, and at the window's edges."""
    batches = recording["batches"]
    popped, decided = column(batches, "t_popped_ns"), column(batches, "t_decided_ns")
    made = decided >= 0  # others have no decision, and so no second instant
    n = len(popped) + int(np.count_nonzero(made))
    n_backward = int(np.count_nonzero(np.diff(popped) < 0)) + int(np.count_nonzero(decided[made] < popped[made]))
    for thread in (recording.meta["edges"] or {}).values():
        edges = [edge for edge in (thread.get("open"), thread.get("close")) if edge]
        instants = [edge[key] for edge in edges for key in ("t_before_ns", "t_after_ns")]
        n += len(instants)
        n_backward += sum(after < before for before, after in pairwise(instants))
    return Order(n, n_backward)


def n_after_warm_up(recording: Recording) -> int | None:
    """How many messages were decided on whose number is after the warm-up; None where not all were kept."""
    run, batches = recording.meta["run"], recording["batches"]
    if run["storage"] == "tail":
        return None
    made = column(batches, "t_decided_ns") >= 0
    first, n = column(batches, "first_message")[made], column(batches, "n_messages")[made]
    return int(np.maximum(first + n - np.maximum(first, run["n_warmup"]), 0).sum())


@dataclass(frozen=True)
class Recount:
    """The responses worked out again from the kept messages, beside those that the loop counted itself.

    ``what`` says which figures were compared. ``n_messages`` were worked out, by their numbers those after the
    warm-up only. ``differences`` is empty where all agree.
    """

    what: str
    n_messages: int
    differences: tuple[str, ...]


def recount_responses(recording: Recording, response: str) -> Recount:
    """Response times from the intended times (paced) or the releases (flat), against the histogram ``response``.

    Where every message was kept the exact figures must be equal. Where only the slowest were, the maximum and the
    number of samples beyond the slowest one that was not kept must be.

    Raises:
        RecordingError: a batch names messages whose release was not stored.
    """
    counted, run = histogram(recording, response), recording.meta["run"]
    if run["storage"] == "tail":
        least_ns = (run.get("tail_floor_ns") or 0) + 1
        slow = slow_messages(recording, least_ns)
        in_loop, found = beyond_bucket(recording, slow, least_ns)
        pairs: list[tuple[str, int | None, int | None]] = [("number beyond the slowest not kept", in_loop, found)]
        if len(slow):
            pairs.append(("maximum", counted.max, int(slow.total_ns.max())))
    else:
        slow = slow_messages(recording, _EVERY_RESPONSE_NS)
        values = slow.total_ns[slow.total_ns >= 0]
        pairs = [
            ("count", counted.count, len(values)),
            ("minimum", counted.min, int(values.min()) if len(values) else None),
            ("maximum", counted.max, int(values.max()) if len(values) else None),
            ("sum", counted.sum, int(values.sum())),
        ]
    return Recount(
        what=_listed([name for name, _, _ in pairs]),
        n_messages=len(slow),
        differences=tuple(
            f"the {name} is {_shown(loop)} in the histogram and {_shown(again)} worked out again"
            for name, loop, again in pairs
            if loop != again
        ),
    )


@dataclass(frozen=True)
class Schedule:
    """Releases against their intended times: how many, how many came too early, and how late they were at most."""

    n_releases: int
    n_early: int
    max_late_ns: int


def kept_schedule(recording: Recording) -> Schedule | None:
    """How a paced run's releases keep to the schedule; None where there is none, or not every release was kept."""
    settings, run = recording.meta["settings"], recording.meta["run"]
    releases = np.asarray(recording["releases"], np.int64)
    if settings["mode"] != "paced" or run["storage"] == "tail" or not len(releases):
        return None
    late = releases - intended_ns(run["t_start_ns"], int(settings["rate_hz"]), np.arange(len(releases)))
    return Schedule(len(late), int(np.count_nonzero(late < 0)), max(0, int(late.max())))


def filled_buckets(recording: Recording, name: str) -> dict[str, Any]:
    """A histogram's size and content: ``n_buckets``, ``n_bytes``, ``in_buckets``, ``count``."""
    counts = recording[f"{name}_counts"]
    return {
        "n_buckets": len(counts),
        "n_bytes": int(counts.nbytes),
        "in_buckets": int(counts.sum()),
        "count": int(recording.meta["histograms"][name]["count"]),
    }


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _shown(value: int | None) -> str:
    return "not there" if value is None else f"{value:,}"
