"""The words for what held a thread, and how well each is known."""

from __future__ import annotations

from typing import NamedTuple

WITNESSED = "witnessed"  # the kernel, or the thread's own clock reads, saw it
INFERRED = "inferred"  # nothing else is left that it could have been
UNEXPLAINED = "unexplained"
EVIDENCE = (WITNESSED, INFERRED, UNEXPLAINED)

# The classes of causes. What each is and what one can do about it is in report/explain.py.
VOLUNTARY = "voluntary"
PREEMPTED = "preempted"
RUN_QUEUE = "run queue"
THROTTLED = "throttled"
STOPPED = "stopped"
MIGRATED = "migration"
INTERRUPT = "hard interrupt"
SOFTIRQ = "softirq"
PAGE_FAULT = "page fault"
SYSTEM_CALL = "system call"
COLLECTION = "collection"
INTERPRETER_LOCK = "interpreter lock"
INJECTED_STALL = "injected stall"
QUEUE_FULL = "queue full"
OUTSIDE_GUEST = "outside the guest"
SYSMETER = "sysmeter itself"
BACKLOG = "backlog"
OWN_SERVICE = "own service"
NOT_SEEN = "unexplained"
ALL_CAUSES = (
    *(VOLUNTARY, PREEMPTED, RUN_QUEUE, THROTTLED, STOPPED, MIGRATED, INTERRUPT, SOFTIRQ, PAGE_FAULT, SYSTEM_CALL),
    *(
        COLLECTION,
        INTERPRETER_LOCK,
        INJECTED_STALL,
        QUEUE_FULL,
        OUTSIDE_GUEST,
        SYSMETER,
        BACKLOG,
        OWN_SERVICE,
        NOT_SEEN,
    ),
)

# Within the analysis only: the rest of a gap before it is told what it was, see analysis.gapcauses.
GAP = "gap"


class Cause(NamedTuple):
    """What held a thread for some time: a class, whose instance it was, and the kind of evidence."""

    cause: str
    detail: str
    evidence: str


class Task(NamedTuple):
    """A task as one switch event names it. A tid whose name changed in the run is two tasks here."""

    tid: int
    comm: str

    @property
    def name(self) -> str:
        """``comm/tid``, as ``kworker/1:1/123``; the idle task, which is nobody, is ``idle``."""
        return "idle" if self.tid == 0 else f"{self.comm}/{self.tid}"


def printable_comm(raw: bytes) -> str:
    """A kernel task name as printable ASCII. A task may put any byte in its name, escape sequences too."""
    return "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in raw) or "?"
