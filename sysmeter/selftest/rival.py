"""A task that competes for a CPU when it is told to: ``python -m sysmeter.selftest.rival CPU``.

Reads from standard input how many ns of its own CPU time to use, one number a line, and answers each with three: when
it began and ended (CLOCK_MONOTONIC, ns) and the CPU time it really used. Ends with its input.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

COMM = "sysmeter-rival"  # at most 15 bytes
_PR_SET_NAME = 15
_REHEARSAL_NS = 1_000_000


def main() -> int:
    """Serve the lines of standard input."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, COMM.encode())
    os.sched_setaffinity(0, {int(sys.argv[1])})
    burn(_REHEARSAL_NS)
    os.write(1, b"ready\n")
    while line := os.read(0, 64):
        begin_ns, end_ns, used_ns = burn(int(line))
        os.write(1, f"{begin_ns} {end_ns} {used_ns}\n".encode())
    return 0


def burn(cpu_ns: int) -> tuple[int, int, int]:
    """Use so much CPU time; (begin, end, CPU time between the two)."""
    begin_ns = time.monotonic_ns()
    begin_cpu_ns = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
    now_ns = begin_cpu_ns
    while now_ns - begin_cpu_ns < cpu_ns:
        now_ns = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
    return begin_ns, time.monotonic_ns(), now_ns - begin_cpu_ns


if __name__ == "__main__":
    sys.exit(main())
