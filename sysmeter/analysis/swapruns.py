"""What one run of a comparison tells: its zero counters, its levels, its decisions beside a reference's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sysmeter import records
from sysmeter.analysis.counters import thread_window
from sysmeter.analysis.intervals import interquartile_mean_ns
from sysmeter.analysis.offcpu import syscalls_by_number
from sysmeter.analysis.reads import column
from sysmeter.analysis.tail import histogram
from sysmeter.records import THREADS
from sysmeter.schedule import intended_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from sysmeter.recording import Recording

DEFAULT = "default"

# What each thread, and the process, must not do in the window. Involuntary switches are the host's.
THREAD_ZEROS = ("voluntary_switches", "minor_faults", "major_faults", "syscalls")
PROCESS_ZEROS = ("allocations", "gc_collections")
ZEROS = ("allocations", *THREAD_ZEROS, "gc_collections")

# What must be the same in every combination: a swap changes the time and nothing else.
FLOW_KEYS = ("messages", "sequence_gaps", "duplicates", "other_instruments", "unknown_instruments", "live")

_PAGE_BITS = 12


@dataclass(frozen=True)
class SwapRun:
    """One run, reduced to what a verdict needs.

    ``is_audit``: allocations were counted in it, and nothing was timed. ``levels_ns``: what is compared, by
    figure, None where there were too few samples. ``decisions``: compared with those of the first default run,
    None in that run itself. The figures:

    - ``think``, ``total``: undisturbed interquartile means of these histograms;
    - ``one in N``: by how much the interquartile mean of the responses of each N-th message is above that of the
      others, divided by N, which is what it adds to the average response;
    - ``stall``, ``stall think``: mean response of the messages intended within the stalls' planned instants, and
      mean think time of their batches.
    """

    combination: str
    is_audit: bool
    counters: dict[str, dict[str, Any]]  # of a result: by thread and for the process
    flow: dict[str, Any] = field(default_factory=dict)
    probes: dict[str, Any] = field(default_factory=dict)
    levels_ns: dict[str, float | None] = field(default_factory=dict)
    latency: dict[str, Any] = field(default_factory=dict)
    decisions: dict[str, Any] | None = None
    syscalls: dict[str, dict[str, int]] = field(default_factory=dict)  # by thread and name, in the window
    syscalls_outside: dict[str, dict[str, int]] = field(default_factory=dict)  # before it and after it
    faults: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # by thread: traps, in kernel mode, pages
    preempted_by: dict[str, int] = field(default_factory=dict)  # task → ns it ran instead
    n_stalls: int = 0
    claims: list[dict[str, Any]] = field(default_factory=list)


def facts_of(
    recording: Recording,
    result: dict[str, Any],
    combination: str,
    stall: tuple[int, int],
    one_in: Sequence[int],
    decisions: dict[str, Any] | None,
) -> SwapRun:
    """Reduce a run. ``stall`` and ``one_in`` are the comparison's: all runs are looked at in the same way.

    ``stall``: period and length of the stalls, ns, also where none was injected. ``one_in``: the periods N.
    """
    undisturbed_ns = recording.meta["settings"]["gap_threshold_ns"]
    return SwapRun(
        combination=combination,
        is_audit=bool(result["settings"].get("audit")),
        counters=result["counters"],
        flow={key: result.get(key) for key in FLOW_KEYS},
        probes=result["probes"] or {},
        levels_ns={
            **{name: interquartile_mean_ns(histogram(recording, name), undisturbed_ns) for name in ("think", "total")},
            **_message_levels(recording, stall, one_in, undisturbed_ns),
        },
        latency=result["latency"],
        decisions=decisions,
        syscalls={thread: _syscalls(result["threads"][thread]) for thread in THREADS},
        syscalls_outside={thread: _syscalls_outside(recording, thread) for thread in THREADS},
        faults={thread: _traps(recording, thread) for thread in THREADS},
        preempted_by=_preempted_by(result),
        n_stalls=len(recording["stalls"]),
    )


def one_in_figure(period: int) -> str:
    """The name of the figure that compares each ``period``-th message with the others."""
    return f"one in {period}"


def _message_levels(
    recording: Recording, stall: tuple[int, int], one_in: Sequence[int], undisturbed_ns: int
) -> dict[str, float | None]:
    """The figures that take single messages; all None where these were not kept, or have no intended time."""
    names = ["stall", "stall think", *(one_in_figure(period) for period in one_in)]
    settings, run = recording.meta["settings"], recording.meta["run"]
    if settings["mode"] != "paced" or run["storage"] != "full":
        return dict.fromkeys(names)
    batches = recording["batches"]
    decided = column(batches, "t_decided_ns")
    batch = np.repeat(np.arange(len(batches)), column(batches, "n_messages"))
    message = np.arange(len(batch))
    kept = (decided[batch] >= 0) & (message >= run["n_warmup"])
    batch, message = batch[kept], message[kept]
    t0_ns = intended_ns(run["t_start_ns"], int(settings["rate_hz"]), message)
    total_ns = decided[batch] - t0_ns
    # The same messages are looked at in each combination, so what a stall adds to them is its own.
    every_ns, for_ns = stall
    since_ns = t0_ns - run["t_start_ns"]
    stalled = (since_ns >= every_ns) & (since_ns % every_ns < for_ns)
    think_ns = (decided - column(batches, "t_popped_ns"))[batch]
    levels = [_mean(total_ns[stalled]), _mean(think_ns[stalled])]
    undisturbed = total_ns < undisturbed_ns
    for period in one_in:
        is_nth = message % period == 0
        nth, others = (_interquartile_mean(total_ns[undisturbed & chosen]) for chosen in (is_nth, ~is_nth))
        levels.append(None if nth is None or others is None else (nth - others) / period)
    return dict(zip(names, levels, strict=True))


def _mean(values: npt.NDArray[np.int64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _interquartile_mean(values: npt.NDArray[np.int64]) -> float | None:
    n = len(values)
    return float(np.sort(values)[n // 4 : n - n // 4].mean()) if n >= 4 else None


def _syscalls(thread: dict[str, Any]) -> dict[str, int]:
    return {row["name"] or f"number {row['number']}": row["count"] for row in thread.get("syscalls") or []}


def _syscalls_outside(recording: Recording, thread: str) -> dict[str, int]:
    """Where the ring was full before the window began, these are the only ones that have a name."""
    window, events = thread_window(recording.meta, thread), recording["kernel_events"]
    if window is None or not len(events):
        return {}
    tid, names = recording.meta["threads"][thread]["tid"], recording.meta.get("syscall_names") or {}
    t_ns = column(events, "t_ns")
    outer_ns = window.outer_ns
    rows = syscalls_by_number(events[(t_ns < outer_ns[0]) | (t_ns > outer_ns[1])], tid, 0, int(t_ns.max()), names)
    return _syscalls({"syscalls": rows})


def _traps(recording: Recording, thread: str) -> tuple[int, int, int]:
    window = thread_window(recording.meta, thread)
    events = recording["kernel_events"]
    if window is None or not len(events):
        return 0, 0, 0
    start_ns, end_ns = window.inner_ns
    t_ns = column(events, "t_ns")
    chosen = (events["kind"] == records.EVENT_PAGE_FAULT) & (events["tid"] == recording.meta["threads"][thread]["tid"])
    traps = events[chosen & (t_ns >= start_ns) & (t_ns <= end_ns)]
    in_kernel = int(np.count_nonzero(traps["flags"] & records.FLAG_KERNEL_MODE))
    return len(traps), in_kernel, len(np.unique(column(traps, "value") >> _PAGE_BITS))


def _preempted_by(result: dict[str, Any]) -> dict[str, int]:
    times: Counter[str] = Counter()
    for thread in THREADS:
        off_cpu = result["threads"][thread]["off_cpu"]
        for task in off_cpu["kinds"]["preempted"]["ran_instead"]["tasks"] if off_cpu else ():
            times[task["task"]] += task["time_ns"]
    return dict(times.most_common())
