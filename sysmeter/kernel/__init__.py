"""Kernel events of chosen threads, by BPF programs that bcc compiles when probes are opened."""

from sysmeter.kernel.catalogue import DEFAULT_PROBES, PROBE_NAMES
from sysmeter.kernel.cost import ProbeCost
from sysmeter.kernel.interpreterlock import interpreter_lock
from sysmeter.kernel.probeset import ProbeResult, ProbeSet, ProbeStatus
from sysmeter.kernel.selftest import SelfTestOutcome
from sysmeter.kernel.syscallnames import syscall_names

__all__ = [
    "DEFAULT_PROBES",
    "PROBE_NAMES",
    "ProbeCost",
    "ProbeResult",
    "ProbeSet",
    "ProbeStatus",
    "SelfTestOutcome",
    "interpreter_lock",
    "syscall_names",
]
