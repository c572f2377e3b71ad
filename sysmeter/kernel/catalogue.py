"""The probes there are: what each one attaches to, what it emits, what its events prove, how it is tested."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sysmeter import records
from sysmeter.errors import KernelError


class Stimulus(enum.Enum):
    """What the self-test makes a thread do so that a probe must see it."""

    SLEEP = "a sleep: one switch away from the CPU, one wake-up"
    TOUCH = "the first touch of a fresh page"
    CALL = "one system call"
    ALLOCATE = "one call each of malloc, calloc, realloc and free"
    SPIN = "some ticks' time without a pause"
    DATAGRAM = "a datagram to itself, over the loopback device"
    MOVE = "a move from one CPU to another"


@dataclass(frozen=True)
class Hook:
    """A tracepoint, or the entry of a function that a process calls.

    ``raw``: a tracepoint whose program is attached the raw way (arguments unformatted, by position).
    ``uprobe``: ``event`` is a function of the library ``category``, and its program sees the calls of one process,
    to which it is attached by :meth:`ProbeSet.attach_process`. ``optional``: a kernel that does not have it does not
    have what it would tell of either, or it does not matter.
    """

    category: str
    event: str
    raw: bool = False
    uprobe: bool = False
    optional: bool = False

    @property
    def function(self) -> str:
        """Name of the BPF program for it, for a tracepoint as bcc's TRACEPOINT_PROBE and its raw kin form it."""
        if self.uprobe:
            return f"uprobe__{self.category}__{self.event}"
        return f"raw_tracepoint__{self.event}" if self.raw else f"tracepoint__{self.category}__{self.event}"

    @property
    def kind(self) -> str:
        """``uprobe``, ``raw tracepoint`` or ``tracepoint``."""
        return "uprobe" if self.uprobe else "raw tracepoint" if self.raw else "tracepoint"

    def __str__(self) -> str:
        return f"{self.category}:{self.event}"


@dataclass(frozen=True)
class Probe:
    """One entry of the catalogue.

    ``summary`` says in a few words what it sees. ``claim`` is what an event count of this probe, complete (nothing
    lost or missed), entitles a reader to say. ``requires`` names probes whose events this one's meaning rests on: their
    files and hooks come with it, and their losses, misses and broken links are its own too. ``on_request``: not among
    the default probes, because it slows down what it watches. ``n_programs``: how many programs run for one event.
    """

    name: str
    file: str
    hooks: tuple[Hook, ...]
    kind: int
    summary: str
    claim: str
    stimulus: Stimulus
    requires: tuple[str, ...] = ()
    chained: bool = False  # its events rest on the chain of switches, so broken links concern it
    on_request: bool = False
    n_programs: int = 1


def _entry_and_exit(category: str, *names: str, optional: bool = False) -> tuple[Hook, ...]:
    return tuple(
        Hook(category, f"{name}_{side}", raw=True, optional=optional) for name in names for side in ("entry", "exit")
    )


CATALOGUE: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe(
            name="context_switch",
            file="context_switch.c",
            hooks=(Hook("sched", "sched_switch"),),
            kind=records.EVENT_SWITCH,
            summary="who takes the CPU from a thread, and when it gets it back",
            claim="every time a watched thread gave up the CPU or was put off it, and who ran instead",
            stimulus=Stimulus.SLEEP,
            chained=True,
        ),
        Probe(
            name="runq_delay",
            file="runq_delay.c",
            hooks=(Hook("sched", "sched_wakeup"),),
            kind=records.EVENT_WAKEUP,
            summary="wake-ups: how long a runnable thread waited for a CPU",
            claim="every wake-up of a watched thread; with the switches, how long it then waited for a CPU",
            stimulus=Stimulus.SLEEP,
            requires=("context_switch",),
            chained=True,
        ),
        Probe(
            name="page_fault",
            file="page_fault.c",
            hooks=(Hook("exceptions", "page_fault_user"), Hook("exceptions", "page_fault_kernel")),
            kind=records.EVENT_PAGE_FAULT,
            summary="page-fault traps, with their addresses",
            claim="every page-fault trap of a watched thread, in both modes; not a page mapped without trap",
            stimulus=Stimulus.TOUCH,
        ),
        Probe(
            name="syscalls",
            file="syscalls.c",
            hooks=(Hook("raw_syscalls", "sys_enter", raw=True),),
            kind=records.EVENT_SYSCALL,
            summary="system calls, and which one a thread sleeps in",
            claim="every system call a watched thread entered, by number; not calls that the vDSO answers",
            stimulus=Stimulus.CALL,
        ),
        Probe(
            name="interrupts",
            file="interrupts.c",
            hooks=(
                *_entry_and_exit("irq_vectors", "local_timer", "reschedule", "call_function", "call_function_single"),
                *_entry_and_exit("irq_vectors", "irq_work"),
                *_entry_and_exit(
                    "irq_vectors", "x86_platform_ipi", "thermal_apic", "spurious_apic", "error_apic", optional=True
                ),
                *_entry_and_exit("irq", "irq_handler"),
            ),
            kind=records.EVENT_INTERRUPT,
            summary="hard interrupts: timer, other CPUs' calls, devices",
            claim="every hard interrupt that came while a watched thread was the current task, from entry to exit; not"
            " those without a tracepoint (non-maskable ones above all)",
            stimulus=Stimulus.SPIN,
            n_programs=2,
        ),
        Probe(
            name="softirqs",
            file="softirqs.c",
            hooks=_entry_and_exit("irq", "softirq"),
            kind=records.EVENT_SOFTIRQ,
            summary="softirqs that run in a thread's time",
            claim="every softirq run while a watched thread was the current task, from entry to exit",
            stimulus=Stimulus.DATAGRAM,
            n_programs=2,
        ),
        Probe(
            name="migrations",
            file="migrations.c",
            hooks=(Hook("sched", "sched_migrate_task"),),
            kind=records.EVENT_MIGRATION,
            summary="moves from one CPU to another, and who moved it",
            claim="every move of a watched thread to another CPU, and who carried it out",
            stimulus=Stimulus.MOVE,
        ),
        Probe(
            name="allocations",
            file="allocations.c",
            hooks=tuple(Hook("libc", name, uprobe=True) for name in ("malloc", "calloc", "realloc", "free")),
            kind=records.EVENT_ALLOCATION,
            summary="calls of libc's allocator, each slowed down by microseconds",
            claim="every call of malloc, calloc, realloc and free by a watched thread; not aligned_alloc and its kin",
            stimulus=Stimulus.ALLOCATE,
            on_request=True,
        ),
    )
}

PROBE_NAMES: tuple[str, ...] = tuple(CATALOGUE)

DEFAULT_PROBES: tuple[str, ...] = tuple(name for name, probe in CATALOGUE.items() if not probe.on_request)


def describe_catalogue() -> dict[str, Any]:
    """The catalogue as JSON-ready values, schema ``sysmeter.probes/1``."""
    return {
        "schema": "sysmeter.probes/1",
        "probes": [
            {
                "name": probe.name,
                "default": not probe.on_request,
                "summary": probe.summary,
                "claim": probe.claim,
                "requires": list(probe.requires),
                "hooks": [{"name": str(hook), "kind": hook.kind, "optional": hook.optional} for hook in probe.hooks],
            }
            for probe in CATALOGUE.values()
        ],
    }


def probe_number(name: str) -> int:
    """The probe's bit in a filter entry and its block of rows in the counters."""
    return PROBE_NAMES.index(name)


def with_required(names: Iterable[str]) -> tuple[str, ...]:
    """``names`` and all they require, without repetition, in catalogue order.

    Raises:
        KernelError: a name that the catalogue does not hold.
    """
    wanted: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in CATALOGUE:
            raise KernelError(f"there is no probe named {name!r}", f"the probes are: {', '.join(PROBE_NAMES)}")
        if name not in wanted:
            wanted.add(name)
            pending.extend(CATALOGUE[name].requires)
    return tuple(name for name in PROBE_NAMES if name in wanted)


def spread_unavailability(unavailable: dict[str, str], names: Iterable[str]) -> None:
    """Add to ``unavailable`` (probe → reason) each of ``names`` that requires a probe in it."""
    for name in names:
        for required in CATALOGUE[name].requires:
            if required in unavailable:
                unavailable.setdefault(name, f"it needs {required}, which is unavailable: {unavailable[required]}")
