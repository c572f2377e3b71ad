"""Two runs' decisions as one result, schema ``sysmeter.decisions/1``: what `sysmeter decisions` prints.

Within the schema keys are only ever added; unknown values are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import decisions, recording
from sysmeter.errors import DecisionsFileError
from sysmeter.records import CAPSTONE, workload_kind

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from sysmeter.recording import Recording

SCHEMA = "sysmeter.decisions/1"

EQUAL = "equal"
DIFFERENT = "different"
NOTHING_IN_COMMON = "nothing in common"


def load(path: Path) -> npt.NDArray[Any]:
    """The decisions of a decisions file or, where ``path`` is a directory, of a Recording.

    Raises:
        DecisionsFileError: unsound, or of a run that kept no decisions.
        RecordingError: the directory is not a sound Recording.
    """
    if not path.is_dir():
        return decisions.read(path)
    found = recording.load(path)
    if not recording.keeps_decisions(found.meta):
        remedy = (
            "make the run shorter with --seconds" if found.kind is CAPSTONE else "name a Recording of `sysmeter run`"
        )
        raise DecisionsFileError(f"{path} holds no decisions: {_why_not_kept(found.meta)}", remedy)
    kept = np.asarray(found["decisions"])
    decisions.check_ascending(path / recording.DECISIONS_FILE, kept)
    return kept


def describe_decisions(found: Recording) -> dict[str, Any]:
    """How many decisions a run made, or the ``reason`` why that is not known and they were not kept."""
    if not recording.keeps_decisions(found.meta):
        return {"count": None, "reason": _why_not_kept(found.meta)}
    return {"count": len(found["decisions"]), "reason": None}


def _why_not_kept(meta: dict[str, Any]) -> str:
    if workload_kind(meta) is not CAPSTONE:
        return f"the workload {workload_kind(meta).name} makes none"
    return f"a run of {meta['run']['n_planned']:,} messages keeps only its slowest batches"


def compare(a: Path, b: Path) -> dict[str, Any]:
    """Compare what two paths hold, as JSON-ready values: see :func:`sysmeter.decisions.compare`.

    ``verdict`` is ``equal`` (every common decision is), ``different`` or ``nothing in common``.

    Raises:
        SysmeterError: as :func:`load`.
    """
    of_a, of_b = load(a), load(b)
    found = decisions.compare(of_a, of_b)
    if not found["common"]:
        verdict = NOTHING_IN_COMMON
    else:
        verdict = DIFFERENT if found["different"] else EQUAL
    return {"schema": SCHEMA, "a": _describe(a, of_a), "b": _describe(b, of_b), **found, "verdict": verdict}


def _describe(path: Path, found: npt.NDArray[Any]) -> dict[str, Any]:
    seq = found["seq"]
    return {
        "path": str(path),
        "n_decisions": len(found),
        "first_seq": int(seq[0]) if len(seq) else None,
        "last_seq": int(seq[-1]) if len(seq) else None,
    }
