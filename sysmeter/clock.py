"""The one clock: CLOCK_MONOTONIC, which ``perf_counter_ns`` and ``bpf_ktime_get_ns`` both read on Linux."""

from __future__ import annotations

import time
from pathlib import Path

_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")

# Clock sources whose reads stay in user space (vDSO). Others enter the kernel at every read.
FAST_CLOCK_SOURCES = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})


def now_ns() -> int:
    """The present instant on CLOCK_MONOTONIC, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def clock_source() -> str:
    """The kernel's clock source by name, or ``"unknown"``."""
    try:
        return _SOURCE.read_text().strip()
    except OSError:
        return "unknown"


def describe_clock() -> dict[str, object]:
    """Name, source, resolution and the cost of one read (the smallest of several means), all in ns."""
    rounds, reads = 5, 2_000
    costs = []
    for _ in range(rounds):
        t_start_ns = now_ns()
        for _ in range(reads):
            now_ns()
        costs.append((now_ns() - t_start_ns) // reads)
    source = clock_source()
    return {
        "name": "CLOCK_MONOTONIC",
        "source": source,
        "fast": source in FAST_CLOCK_SOURCES,
        "resolution_ns": round(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9),
        "python_read_cost_ns": min(costs),
    }


def time_namespace_offset_ns() -> int:
    """Offset of CLOCK_MONOTONIC in this time namespace, which BPF does not see; 0 in the initial one.

    Source: time_namespaces(7), ``/proc/self/timens_offsets``.
    """
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        fields = line.split()
        if len(fields) == 3 and fields[0] in ("monotonic", "1"):
            return int(fields[1]) * 1_000_000_000 + int(fields[2])
    return 0
