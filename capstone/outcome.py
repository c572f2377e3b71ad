"""What a finished run left in its memory, in the Recording's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from capstone import combination, gaps, keep_largest, layout, tail_store
from capstone.run_memory import MAX_COLLECTIONS
from capstone.witnesses import decode_edge, heap_in_use_bytes
from sysmeter import buckets, records
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    import numpy.typing as npt

    from capstone.plan import Plan
    from capstone.run_memory import RunMemory
    from sysmeter.sharedmemory import SharedMemory

_FIRST_EDGE = {"feed": layout.FEED_OPEN, "strategy": layout.STRATEGY_OPEN}


def describe_run(memory: RunMemory, plan: Plan) -> dict[str, Any]:
    """The Recording's ``run``: instants, counts, and what the bounded stores turned away."""
    p = memory.parameters
    n_released, n_popped = int(p[layout.N_RELEASED]), int(p[layout.N_POPPED])
    t_start_ns = int(p[layout.T_START])
    if n_released <= plan.n_warmup:
        t_window_ns = None
    elif p[layout.PACED]:
        t_window_ns = t_start_ns + plan.n_warmup * NS_PER_S // plan.rate_hz
    else:
        t_window_ns = int(p[layout.T_FIRST_RELEASE])
    t_first_release_ns = int(p[layout.T_FIRST_RELEASE]) or None
    t_end_ns = int(p[layout.T_LAST_BATCH]) or None
    heaps = {name: memory.array(f"gap_words_{name}") for name in records.THREADS}
    return {
        "ring_slots": getattr(combination.component("queue"), "SLOTS", None),
        "t_start_ns": t_start_ns,
        "t_window_ns": t_window_ns,
        "t_end_ns": t_end_ns,
        # From the release, not the intended time: what a late warm-up left to do is no part of the window.
        "t_first_release_ns": t_first_release_ns,
        "elapsed_ns": 0 if t_first_release_ns is None or t_end_ns is None else max(0, t_end_ns - t_first_release_ns),
        "n_file": int(p[layout.N_FILE]),
        "n_planned": plan.n_messages,
        "n_warmup": plan.n_warmup,
        "n_released": n_released,
        "n_popped": n_popped,
        "n_window_messages": max(0, n_popped - plan.n_warmup),
        "n_batches": int(p[layout.N_BATCHES]),
        "n_window_batches": int(memory.array("think_stats")[buckets.STAT_COUNT]),
        "ring_full_waits": int(p[layout.RING_FULL_WAITS]),
        "sequence_gaps": int(p[layout.SEQUENCE_GAPS]),
        "duplicates": int(p[layout.DUPLICATES]),
        "other_instruments": int(p[layout.OTHER_INSTRUMENTS]),
        "unknown_instruments": int(p[layout.UNKNOWN_INSTRUMENTS]),
        "live": int(p[layout.HANDLER_STATE]) == layout.HANDLER_LIVE,
        "storage": "full" if plan.is_full else "tail",
        "tail_floor_ns": max(0, int(memory.array("tail")[keep_largest.FLOOR])),
        "gaps_lost": {name: int(heap[keep_largest.N_DROPPED]) for name, heap in heaps.items()},
        "gap_floor_ns": {name: max(0, int(heap[keep_largest.FLOOR])) for name, heap in heaps.items()},
        "time_bucket_ns": None if plan.is_full else plan.time_bucket_ns,
        "t_time_buckets_ns": int(p[layout.T_TIME_BUCKETS]) or None,
        "stopped_by": "stop_above" if p[layout.STOPPED_ABOVE] else "interrupt" if p[layout.STOP] else None,
    }


def describe_histograms(memory: RunMemory, sub_bits: int) -> dict[str, dict[str, int]]:
    """The Recording's ``histograms``: the exact figures beside the bucket counts."""
    described = {}
    for name in ("think", "total"):
        stats = memory.array(f"{name}_stats")
        count = int(stats[buckets.STAT_COUNT])
        described[name] = {
            "sub_bits": sub_bits,
            "count": count,
            "min_ns": int(stats[buckets.STAT_MIN]) if count else 0,
            "max_ns": int(stats[buckets.STAT_MAX]),
            "sum_ns": buckets.stats_sum(stats),
            "n_negative": int(stats[buckets.STAT_NEGATIVE]),
        }
    return described


def describe_edges(memory: RunMemory) -> dict[str, dict[str, Any]]:
    """The Recording's ``edges``: what each thread read of itself at both ends of its window."""
    edges = memory.edges
    return {
        name: {"open": decode_edge(edges[at], closing=False), "close": decode_edge(edges[at + 1], closing=True)}
        for name, at in _FIRST_EDGE.items()
    }


def heap_delta_bytes(memory: RunMemory) -> int | None:
    """By how much what malloc has handed out changed over the strategy thread's window; None: unknown."""
    opened, closed = memory.edges[layout.STRATEGY_OPEN], memory.edges[layout.STRATEGY_CLOSE]
    if not closed[layout.EDGE_TAKEN] or not heap_in_use_bytes(opened):
        return None
    return heap_in_use_bytes(closed) - heap_in_use_bytes(opened)


def loop_ns(memory: RunMemory) -> list[int] | None:
    """[begin, end] of the time in which both threads were in compiled code; None where the run did not get far.

    All that the loops allocate lies in it, and nothing that the interpreter does before and after them.
    """
    t_end_ns = int(memory.edges[layout.STRATEGY_CLOSE][layout.EDGE_T_AFTER])
    if not memory.edges[layout.STRATEGY_CLOSE][layout.EDGE_TAKEN]:
        return None
    delay_ns = layout.START_DELAY_NS if memory.parameters[layout.PACED] else 0
    return [int(memory.parameters[layout.T_START]) - delay_ns, t_end_ns]


def locate_arrays(memory: RunMemory, plan: Plan, results: SharedMemory) -> dict[str, dict[str, Any]]:
    """Where each array of the Recording lies: the large ones in place, the rest copied to ``results``."""
    p = memory.parameters
    n_collections = min(int(memory.array("collections_header")[0]), MAX_COLLECTIONS)
    word: np.dtype[Any] = np.dtype("<i8")
    in_place = {name: (name, word, len(memory.array(name))) for name in ("think_counts", "total_counts")}
    copied: dict[str, npt.NDArray[Any]] = {"collections": memory.array("collections")[:n_collections]}
    copied["stalls"] = np.array(combination.component("stall").kept(memory.array("stall")), records.STALL)
    for name in records.THREADS:
        copied[f"gaps_{name}"] = _as_records(gaps.kept(memory.array(f"gap_words_{name}")), records.GAP)
    if plan.is_full:
        n_batches = int(p[layout.N_BATCHES])
        in_place["releases"] = ("release_slots", word, int(p[layout.N_RELEASED]))
        in_place["batches"] = ("batch_words", records.BATCH, n_batches)
        in_place["decisions"] = ("decision_words", records.DECISION, int(p[layout.N_DECISIONS]))
        batch_words = memory.array("batch_words")[: n_batches * layout.BATCH_WORDS]
        copied["release_offsets"] = batch_words.reshape(-1, layout.BATCH_WORDS)[:, 2].copy()
        copied["time_buckets"] = np.empty(0, records.TIME_BUCKET)
    else:
        batches, copied["releases"], copied["release_offsets"] = tail_store.kept(memory.array("tail"))
        copied["batches"] = _as_records(batches, records.BATCH)
        copied["decisions"] = np.empty(0, records.DECISION)
        buckets = memory.array("time_bucket_words").reshape(-1, layout.BUCKET_WORDS)
        copied["time_buckets"] = _as_records(buckets, records.TIME_BUCKET)
    for name, array in copied.items():
        results.add(name, array.dtype, len(array))
    results.create()
    for name, array in copied.items():
        results.array(name)[:] = array
    described = {name: {"fd": results.fd, **where} for name, where in results.describe().items()}
    places = memory.describe()
    for name, (place, dtype, length) in in_place.items():
        described[name] = {
            "fd": memory.fd,
            "offset": places[place]["offset"],
            "dtype": np.lib.format.dtype_to_descr(dtype),
            "length": length,
        }
    return described


def _as_records(rows: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows).view(dtype).reshape(-1)
