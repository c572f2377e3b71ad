"""Claims that a user states in a file, and whether a run holds them.

The file is TOML. What stands at its top is for every combination of swaps; ``[combination.NAME]`` adds claims for
one, and replaces those of the same key. A combination's name is that of its swaps with ``+`` between them (``tree``,
``tree+mutex``, ``stall``), or ``default``::

    voluntary_switches = 0              # a number: equal to it
    strategy.minor_faults = 0           # of one thread; without its name, of both together
    total.p99_9_ns = "<= 50us"          # text: a comparison, and for times a unit if you like
    achieved_rate_hz = ">= 99_000"

    [combination.mutex]
    voluntary_switches = "> 0"
    total.p99_9_ns = "<= 1ms"

A claim *holds* or *fails* where its figure was measured. It is *not proven* where the figure was not measured,
its two sources differ or too few samples stand behind it: that is no reason to think either.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sysmeter.analysis.counters import MEASURED, THREAD_COUNTERS
from sysmeter.analysis.sums import counter_of
from sysmeter.errors import EXIT_CLAIM_FAILED, EXIT_NOT_PROVEN, EXIT_OK, ClaimsFileError
from sysmeter.records import THREADS
from sysmeter.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

HOLDS, FAILS, UNPROVEN = "holds", "fails", "not proven"
_MAX_NAMES = 4
EVERY = ""  # the combination of claims that are for all

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_COMPARISON = re.compile(r"\s*(<=|>=|==|!=|<|>|=)\s*(.+?)\s*")
_NUMBER = re.compile(r"[+-]?\d+(_\d+)*(\.\d+)?")

_LATENCIES = ("count", "min_ns", "mean_ns", "p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
_COUNTERS = (*THREAD_COUNTERS, "allocations")
_FLOW = (
    *("messages", "batches", "achieved_rate_hz", "ring_full_waits", "sequence_gaps", "duplicates"),
    *("other_instruments", "unknown_instruments"),
)
KEYS = (
    *_COUNTERS,
    "gc_collections",
    *(f"{thread}.{name}" for thread in THREADS for name in _COUNTERS),
    "process.allocations",
    "process.gc_collections",
    *(f"{name}.{key}" for name in ("think", "total") for key in _LATENCIES),
    *_FLOW,
)


@dataclass(frozen=True)
class Claim:
    """``key operator limit``, for one combination or, where that is empty, for every one."""

    key: str
    operator: str
    limit: int | float
    combination: str = EVERY

    @property
    def needs_audit(self) -> bool:
        """Its figure is best counted in an audit pass; every other one in a timing pass."""
        return self.key.endswith("allocations")


def combination_name(swaps: Iterable[str]) -> str:
    """The name of a combination: its swaps in their order, or ``default`` for none."""
    return "+".join(swaps) or "default"


def read(path: Path, swaps: Sequence[str]) -> list[Claim]:
    """The claims of a file. ``swaps`` are the swaps that exist.

    Raises:
        ClaimsFileError: it cannot be read, is not TOML (with the line), or holds what is not a claim; an unknown
            key is answered with the nearest known one.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ClaimsFileError(f"cannot read the claims file {path}: {error.strerror}", "check its name") from error
    except UnicodeDecodeError as error:
        raise ClaimsFileError(f"{path} is not a claims file: it is not UTF-8 text", _EXAMPLE) from error
    return parse(text, str(path), swaps)


_EXAMPLE = 'write for example voluntary_switches = 0 or total.p99_9_ns = "<= 50us"'


def parse(text: str, name: str, swaps: Sequence[str]) -> list[Claim]:
    """As :func:`read`, of a file's text; ``name`` is what errors call it."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimsFileError(f"{name} is not TOML: {error}", _EXAMPLE) from error
    by_combination = tables.pop("combination", {})
    if not isinstance(by_combination, dict):
        raise ClaimsFileError(f"{name}: combination is not a table", _EXAMPLE)
    claims = _claims(name, tables, EVERY)
    for combination, content in by_combination.items():
        parts = [part for part in combination.split("+") if part]
        for part in parts:
            if part not in swaps and combination != "default":
                _refuse(name, "swap", part, ("default", *swaps))
        if not isinstance(content, dict):
            raise ClaimsFileError(f"{name}: combination.{combination} is not a table", _EXAMPLE)
        # Any order of the swaps means the same combination.
        ordered = combination_name(sorted(parts, key=list(swaps).index)) if combination != "default" else combination
        claims += _claims(name, content, ordered)
    if not claims:
        raise ClaimsFileError(f"{name} states no claim", _EXAMPLE)
    return claims


def claims_for(claims: Sequence[Claim], combination: str) -> list[Claim]:
    """The claims that are made of a combination: its own, and of those for all the ones it does not replace."""
    own = [claim for claim in claims if claim.combination == combination]
    replaced = {claim.key for claim in own}
    return [claim for claim in claims if claim.combination == EVERY and claim.key not in replaced] + own


def check(claims: Sequence[Claim], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Each claim's verdict on one run's result.

    ``{key, operator, limit, combination, value, n_sources, verdict, reason}``; ``n_sources`` is None for what is
    no counter.
    """
    return [_check(claim, result) for claim in claims]


def unproven(claim: Claim, reason: str) -> dict[str, Any]:
    """The row of a claim that no run was there to check."""
    row = {"key": claim.key, "operator": claim.operator, "limit": claim.limit, "combination": claim.combination}
    return {
        **row,
        "value": None,
        "n_sources": None,
        "verdict": UNPROVEN,
        "reason": reason,
        "n_runs": 0,
        "n_runs_with_verdict": 0,
    }


def merge(checked: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The verdicts on several runs of one combination, by claim: the worst one stands, with its value.

    A claim about runs is a claim about each of them.
    """
    by_claim: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rows in checked:
        for row in rows:
            by_claim.setdefault((row["key"], row["operator"]), []).append(row)
    severity = (FAILS, UNPROVEN, HOLDS)
    merged = []
    for rows in by_claim.values():
        chosen = min(rows, key=lambda row: severity.index(row["verdict"]))
        n_like = sum(row["verdict"] == chosen["verdict"] for row in rows)
        merged.append({**chosen, "n_runs": len(rows), "n_runs_with_verdict": n_like})
    return merged


def exit_code(verdicts: Iterable[str]) -> int:
    """0: all hold; 3: one fails; 4: one is not proven and none fails."""
    found = set(verdicts)
    return EXIT_CLAIM_FAILED if FAILS in found else EXIT_NOT_PROVEN if UNPROVEN in found else EXIT_OK


def _claims(name: str, table: dict[str, Any], combination: str) -> list[Claim]:
    claims: list[Claim] = []
    for key, value in _flattened(table):
        if key not in KEYS:
            _refuse(name, "key", key, KEYS)
        if any(claim.key == key for claim in claims):
            raise ClaimsFileError(f"{name}: {key} is claimed twice", "keep one of the two")
        sign, limit = _comparison(name, key, value)
        claims.append(Claim(key, sign, limit, combination))
    return claims


def _flattened(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """A dotted key is a table to TOML, unless it is quoted; here both mean the same."""
    rows: list[tuple[str, Any]] = []
    for key, value in table.items():
        rows += _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return rows


def _comparison(name: str, key: str, value: object) -> tuple[str, int | float]:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return "==", value
    match = _COMPARISON.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        sign = "==" if match[1] == "=" else match[1]
        if _NUMBER.fullmatch(match[2]):
            return sign, float(match[2]) if "." in match[2] else int(match[2])
        if key.endswith("_ns"):
            try:
                return sign, parse_duration_ns(match[2])
            except ValueError as error:
                raise ClaimsFileError(f"{name}: {key}: {error}", _EXAMPLE) from error
    raise ClaimsFileError(
        f"{name}: {key}: {value!r} is not a claim",
        'write a number (equal to it), or a comparison in quotes with <=, <, >=, >, == or !=, such as "<= 50000"',
    )


def _refuse(name: str, what: str, word: str, known: Sequence[str]) -> None:
    nearest = difflib.get_close_matches(word, known, 1, 0.0)
    raise ClaimsFileError(f"{name}: unknown {what} {word!r}; the nearest known one is {nearest[0]!r}", _EXAMPLE)


def _check(claim: Claim, result: dict[str, Any]) -> dict[str, Any]:
    value, reason, found = _figure(claim.key, result)
    verdict = UNPROVEN
    if reason is None:
        verdict = HOLDS if _OPERATORS[claim.operator](value, claim.limit) else FAILS
        if value and claim.key.endswith("involuntary_switches"):
            reason = _by_the_host(claim.key, result)
    row = {"key": claim.key, "operator": claim.operator, "limit": claim.limit, "combination": claim.combination}
    n_sources = None if found is None or value is None else 1 if found["agrees"] is None else 2
    return {**row, "value": value, "n_sources": n_sources, "verdict": verdict, "reason": reason}


def _by_the_host(key: str, result: dict[str, Any]) -> str | None:
    """Involuntary switches are the host's doing: who took the CPU, most time first; None where that was not seen."""
    threads = [name for name in THREADS if key.startswith(f"{name}.")] or list(THREADS)
    taken: dict[str, int] = {}
    for name in threads:
        off_cpu = (result.get("threads") or {}).get(name, {}).get("off_cpu")
        for row in off_cpu["kinds"]["preempted"]["ran_instead"]["tasks"] if off_cpu else []:
            taken[row["task"]] = taken.get(row["task"], 0) + row["time_ns"]
    names = sorted(taken, key=lambda task: -taken[task])
    if not names:
        return None
    more = f" and {len(names) - _MAX_NAMES} others" if len(names) > _MAX_NAMES else ""
    return f"by the host: {', '.join(names[:_MAX_NAMES])}{more}"


def _figure(key: str, result: dict[str, Any]) -> tuple[int | float | None, str | None, dict[str, Any] | None]:
    """(the figure, why it proves nothing or None, its counter where it is one)."""
    group, _, member = key.rpartition(".")
    if group in ("think", "total"):
        value = result["latency"][group][member]
        return value, "too few samples stand behind it" if value is None else None, None
    if not group and key in _FLOW:
        value = result.get(key)
        return value, "nothing was measured in the window" if value is None else None, None
    found = counter_of(result, key)
    if found is None:
        return None, "calls of the allocator were not counted by thread: that takes --audit", None
    if found["status"] != MEASURED:
        return found["value"], str(found["reason"] or "no reason was recorded"), found
    return found["value"], None, found
