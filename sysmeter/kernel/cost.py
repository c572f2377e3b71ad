"""What one event of each probe costs the thread that it concerns, measured on this host before a run.

A helper thread does again what the self-test makes it do, several times over, while the kernel times every run of
the probes' programs. Without a watched thread all runs end at the filter, which gives the cost of such a *filtered*
run; then the helper thread is watched, and what the filtered runs among them cost is taken off. The statistics end
with the measurement, so a run itself is not slowed down by them.

The figure is the median of the rounds: a program that the hypervisor stopped half-way spoils its round alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TypedDict

from sysmeter.errors import KernelError
from sysmeter.kernel import source
from sysmeter.kernel.catalogue import CATALOGUE, Stimulus, probe_number
from sysmeter.kernel.program import Program
from sysmeter.kernel.progstats import Runs, timed_runs
from sysmeter.kernel.selftest import attach_to_this_process, provoke

N_ROUNDS = 5

# How often a round does each thing: enough events, in some 30 ms.
_REPETITIONS = {
    Stimulus.SLEEP: 5,
    Stimulus.TOUCH: 5,
    Stimulus.CALL: 20,
    Stimulus.ALLOCATE: 5,
    Stimulus.SPIN: 1,
    Stimulus.DATAGRAM: 5,
    Stimulus.MOVE: 2,
}


class ProbeCost(TypedDict):
    """What one event of a probe costs, in ns of its programs' own run time; None where no event came.

    ``n_programs`` is how many of them an event takes, ``n_events`` on how many events the figure rests.
    ``ns_per_filtered_run``: of one run that ends at the filter, of a thread that is not watched.
    """

    ns_per_event: float | None
    n_programs: int
    n_events: int
    ns_per_filtered_run: float | None


def measure_costs(program: Program, names: Iterable[str], drop: Callable[[], object]) -> dict[str, ProbeCost]:
    """The cost of an event of each of the probes ``names``, with no thread watched yet. Takes some 0.2 s.

    Args:
        program: attached, its self-test done. names: probes, those they require included.
        drop: called now and then, to empty the rings.

    Raises:
        KernelError: the kernel cannot time programs, or the filter cannot be used.
    """
    names = tuple(names)
    stimuli = {CATALOGUE[name].stimulus for name in names}
    try:
        with timed_runs(), ThreadPoolExecutor(1, thread_name_prefix="sysmeter-cost") as helper:
            failed = attach_to_this_process(program, names)
            names = tuple(name for name in names if name not in failed)
            # Interrupts come without being provoked, and there are enough of them.
            filtered = [_round(program, names, helper, stimuli - {Stimulus.SPIN}) for _ in range(N_ROUNDS)]
            tid = helper.submit(threading.get_native_id).result()
            program.watch(tid, names)
            try:
                watched = []
                for _ in range(N_ROUNDS):
                    watched.append(_round(program, names, helper, stimuli))
                    drop()
            finally:
                program.unwatch([tid])
                drop()
                program.detach_process()
    except OSError as error:
        raise KernelError(
            f"the kernel does not time BPF programs (Linux 5.8 and later do): {error.strerror}",
            "the run is the same; only its estimate of what the observation costs is missing",
        ) from error
    return {name: _cost(name, [part[name] for part in filtered], [part[name] for part in watched]) for name in names}


def _round(
    program: Program, names: Iterable[str], helper: ThreadPoolExecutor, stimuli: Iterable[Stimulus]
) -> dict[str, tuple[Runs, int]]:
    """Of each probe the runs of its programs during one round, and the events that they emitted."""
    before = _state(program, names)
    for stimulus in stimuli:
        helper.submit(_repeat, stimulus).result()
    after = _state(program, names)
    return {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in names}


def _repeat(stimulus: Stimulus) -> None:
    for _ in range(_REPETITIONS[stimulus]):
        provoke(stimulus)


def _state(program: Program, names: Iterable[str]) -> dict[str, tuple[Runs, int]]:
    counters, by_hook = program.counters(), program.runs()
    state = {}
    for name in names:
        parts = [by_hook[hook] for hook in CATALOGUE[name].hooks if hook in by_hook]
        emitted = int(counters[probe_number(name), source.COUNTER_EVENTS])
        state[name] = (Runs(sum(part.time_ns for part in parts), sum(part.n for part in parts)), emitted)
    return state


def _cost(name: str, filtered: list[tuple[Runs, int]], watched: list[tuple[Runs, int]]) -> ProbeCost:
    n_programs = CATALOGUE[name].n_programs
    of_filtered = [runs.time_ns / runs.n for runs, _ in filtered if runs.n]
    ns_per_filtered_run = median(of_filtered) if of_filtered else None
    filtered_ns = ns_per_filtered_run or 0.0
    of_events = [
        (runs.time_ns - max(0, runs.n - n_programs * n_events) * filtered_ns) / n_events
        for runs, n_events in watched
        if n_events
    ]
    return ProbeCost(
        # A run that emits an event passes the filter too, so it never costs less than one that ends there.
        ns_per_event=max(median(of_events), n_programs * filtered_ns) if of_events else None,
        n_programs=n_programs,
        n_events=sum(n_events for _, n_events in watched),
        ns_per_filtered_run=ns_per_filtered_run,
    )
