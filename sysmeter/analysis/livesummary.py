"""A run of the live workload as one result, schema ``sysmeter.live/1``; see :mod:`sysmeter.analysis.summary`.

What it shares with ``sysmeter.run/1`` has the same names there. Within the schema keys are only ever added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter.analysis.counters import Window, is_ok, not_measured, thread_counters, thread_window, usable_probes
from sysmeter.analysis.diagnosis import describe_tail
from sysmeter.analysis.interpreter import describe_lock, thread_name
from sysmeter.analysis.kernelevidence import kernel_evidence
from sysmeter.analysis.observation import describe_observation
from sysmeter.analysis.process import (
    MAX_LISTED,
    N_GENERATIONS,
    collections_counter,
    count_by_generation,
    overlapping,
)
from sysmeter.analysis.reads import column
from sysmeter.analysis.summary import (
    achieved_rate_hz,
    analysis_notes,
    describe_latency,
    describe_thread,
)
from sysmeter.records import LIVE

if TYPE_CHECKING:
    from sysmeter.recording import Recording

SCHEMA = "sysmeter.live/1"

_NO_SCHEDULE = "a flat run intends no message for any instant, so there is nothing to be late for"
_OWN_CALLS = "One gettid for each collection of the worker is sysmeter's own: it records which thread collected."
_NOT_COUNTED = "Python allocates with every object; what it costs shows as service time, faults and collections"


def summarize_live(recording: Recording) -> dict[str, Any]:
    """Everything there is to say about a live run, as JSON-ready values; as :func:`~.summary.summarize`."""
    meta, run, worker = recording.meta, recording.meta["run"], LIVE.worker
    off_cpu, events = kernel_evidence(recording)
    parts = off_cpu[worker]
    window = thread_window(meta, worker)
    window_ns = None if window is None else window.inner_ns
    gc = describe_live_collections(recording, window_ns)
    own_calls = [_OWN_CALLS] if thread_name(meta, meta["threads"][worker]["tid"]) in (gc["by_thread"] or {}) else []
    switches_seen = is_ok(usable_probes(meta), "context_switch")
    return {
        "schema": SCHEMA,
        "workload": LIVE.name,
        "sysmeter_version": meta["sysmeter_version"],
        "created": meta["created"],
        "settings": meta["settings"],
        "host": meta["host"],
        "clock": meta["clock"],
        "threads": {worker: describe_thread(recording, events, worker, parts)},
        "other_threads": {str(tid): name for tid, name in (meta["process"].get("thread_names") or {}).items()},
        "messages": run.get("n_window_messages"),
        "messages_planned": run["n_planned"],
        "elapsed_ns": run.get("elapsed_ns"),
        "achieved_rate_hz": achieved_rate_hz(meta["settings"], run.get("n_window_messages"), run.get("elapsed_ns")),
        "stopped_by": run.get("stopped_by"),
        "latency": {name: _latency(recording, name) for name in LIVE.histograms},
        "counters": {
            worker: thread_counters(meta, events, worker, parts if switches_seen else None),
            "process": {
                "allocations": not_measured(_NOT_COUNTED),
                "gc_collections": _collections_counter(recording, window),
            },
        },
        "gc": gc,
        "interpreter_lock": {
            **describe_lock(meta, parts.lock_waits, parts.slices, window_ns),
            "switch_interval_ns": meta["process"].get("switch_interval_ns"),
        },
        "memory": _memory(window),
        "probes": meta["probes"],
        "observation": describe_observation(meta, events, LIVE.threads),
        "steal_ns": meta.get("steal_ns") or {},
        "tail": describe_tail(recording, off_cpu, events),
        "recording": None if recording.path is None else str(recording.path),
        "interrupted": meta["interrupted"],
        "notes": [*meta["notes"], *analysis_notes(recording, off_cpu), *own_calls],
    }


def describe_live_collections(recording: Recording, window_ns: tuple[int, int] | None) -> dict[str, Any]:
    """The result's ``gc``: the policy, and the window's collections by generation and by thread.

    ``collections``, ``time_ns`` and ``max_ns`` have one number a generation, the youngest first; ``by_thread`` has
    ``collections`` and ``time_ns`` by ``name/tid``. All are null where the window is not complete.
    """
    process = recording.meta["process"]
    described: dict[str, Any] = {
        "policy": recording.meta["settings"]["gc"],
        "thresholds": process.get("gc_thresholds"),
        "frozen_objects": process.get("gc_frozen"),
        "collections": None,
        "time_ns": None,
        "max_ns": None,
        "by_thread": None,
        "relation": "with the interpreter lock",
        "listed": [],
        "n_not_listed": 0,
    }
    if window_ns is None:
        return described
    rows = recording["collections"]
    inside = rows[overlapping(rows, *window_ns)]
    length = column(inside, "t_end_ns") - column(inside, "t_start_ns")
    generation = np.clip(column(inside, "generation"), 0, N_GENERATIONS - 1)
    tids = column(inside, "tid")
    described["collections"] = count_by_generation(inside)
    described["time_ns"] = [int(length[generation == k].sum()) for k in range(N_GENERATIONS)]
    described["max_ns"] = [int(length[generation == k].max(initial=0)) for k in range(N_GENERATIONS)]
    described["by_thread"] = {
        thread_name(recording.meta, tid): {
            "collections": int((tids == tid).sum()),
            "time_ns": int(length[tids == tid].sum()),
        }
        for tid in np.unique(tids).tolist()
    }
    described["listed"] = [
        {"t_start_ns": start, "duration_ns": end - start, "generation": number, "tid": tid}
        for start, end, number, tid in inside[:MAX_LISTED].tolist()
    ]
    described["n_not_listed"] = len(inside) - len(described["listed"])
    return described


def _latency(recording: Recording, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {**describe_latency(recording, name), "reason": None}
    if name == LIVE.response and recording.meta["settings"]["mode"] != "paced":
        row = {key: value if key in ("interval", "sub_bits") else None for key, value in row.items()}
        row["reason"] = _NO_SCHEDULE
    return row


def _collections_counter(recording: Recording, window: Window | None) -> dict[str, Any]:
    if window is None:
        return not_measured("the run ended before this thread's window was complete")
    return collections_counter(recording.meta["process"], recording["collections"], window.inner_ns, window.outer_ns)


def _memory(window: Window | None) -> dict[str, int | None]:
    """The workload's resident memory at both edges of the window."""
    if window is None:
        return {"rss_open_bytes": None, "rss_close_bytes": None, "rss_growth_bytes": None}
    return {
        "rss_open_bytes": window.open.get("rss_bytes"),
        "rss_close_bytes": window.close.get("rss_bytes"),
        "rss_growth_bytes": window.delta("rss_bytes"),
    }
