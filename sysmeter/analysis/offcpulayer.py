"""The off-CPU slices of a thread as a layer of its timeline, cut by what held the thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sysmeter.analysis import causes
from sysmeter.analysis.causes import Cause
from sysmeter.analysis.layers import Layer
from sysmeter.analysis.slices import (
    ENDED,
    ENDED_RUN_END,
    ENDED_SWITCH_IN,
    KIND_PREEMPTED,
    KIND_STOPPED,
    KIND_THROTTLED,
    NO_TASK,
    Slices,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sysmeter.analysis.sleeps import Reasons


QUOTA = "CPU quota used up"


@dataclass(frozen=True)
class SliceWords:
    """What is known of the slices beyond themselves.

    ``sleeps`` and ``moves``: see analysis.sleeps. ``own_tasks``: tid → who it is, for the tasks of sysmeter itself
    (of the observer, and of the workload but the measured threads). ``sleep_causes``: a reason of ``sleeps``, by its
    word, that is a class of cause of its own → that class and its detail.
    """

    sleeps: Reasons
    moves: Reasons
    own_tasks: Mapping[int, str] = field(default_factory=dict)
    sleep_causes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def slice_layer(slices: Slices, words: SliceWords) -> Layer:
    """Off-CPU slices, cut by what held the thread.

    A preempted thread is held by whoever runs instead, so each task is named with its own time. A sleeping,
    stopped or throttled one is not: that somebody used the CPU meanwhile is no cause. From the wake-up on the
    thread waits for the CPU, and who has it is a cause again. A move to another CPU is the cause from there on:
    what runs on the CPU it left no longer holds it.
    """
    runs = slices.runs
    is_moved = words.moves.index > 0
    kind, ended = slices.kind[runs.slice_index], slices.ended[runs.slice_index]
    woken = slices.t_woken_ns[runs.slice_index]
    # Up to here the run is sleep (or a stop, or throttled), from here on somebody has the CPU instead. A
    # wake-up nobody saw leaves the whole of the slice to the former.
    waits_from = np.where(woken >= 0, np.clip(woken, runs.t_start_ns, runs.t_end_ns), runs.t_end_ns)
    waits_from = np.where(kind == KIND_PREEMPTED, runs.t_start_ns, waits_from)
    waits_from = np.where(kind == KIND_THROTTLED, runs.t_end_ns, waits_from)
    # From here on a move holds the thread, and not who runs where it was.
    moved_from = slices.t_out_ns if words.moves.t_from_ns is None else words.moves.t_from_ns
    moved_from = np.where(is_moved, moved_from, slices.t_in_ns)
    until = moved_from[runs.slice_index]
    run_end, waits_from = np.minimum(runs.t_end_ns, until), np.minimum(waits_from, until)
    # One number names a cause: how the slice ended, its kind, and two more numbers that depend on what it is.
    first = max(len(slices.tasks) + 1, len(words.sleeps.words), len(words.moves.words))
    second = len(slices.tasks) + 2
    base = kind * len(ENDED) + ended
    # Of a quota the last one tells whether it is inferred, of a sleep whether no wake-up was seen.
    flag = np.where(kind == KIND_THROTTLED, slices.is_inferred[runs.slice_index], woken < 0)
    asleep = (base * first + words.sleeps.index[runs.slice_index]) * second + flag
    held = (base * first + runs.task + 1) * second + runs.then_task + 1
    whole = np.flatnonzero(is_moved)
    moved = ((slices.kind * len(ENDED) + slices.ended) * first + words.moves.index)[whole] * second
    start = np.concatenate((runs.t_start_ns, waits_from, moved_from[whole]))
    end = np.concatenate((waits_from, run_end, slices.t_in_ns[whole]))
    code = np.concatenate((3 * asleep, 3 * held + 1, 3 * moved + 2))
    some = np.flatnonzero(end > start)
    some = some[start[some].argsort(kind="stable")]
    distinct, cause = np.unique(code[some], return_inverse=True)
    names = tuple(_slice_cause(slices, words, int(number), first, second) for number in distinct)
    return Layer(start[some], end[some], cause.astype(np.int64), names)


def _slice_cause(slices: Slices, words: SliceWords, code: int, first: int, second: int) -> Cause:
    rest, what = divmod(code, 3)
    rest, last = divmod(rest, second)
    base, middle = divmod(rest, first)
    kind, ended = divmod(base, len(ENDED))
    if what == 0:
        return _asleep(words, kind, words.sleeps.words[middle], last == 1, ended)
    if what == 1:
        return _held(slices, words, kind, ended, middle - 1, last - 1)
    return Cause(causes.MIGRATED, words.moves.words[middle] + _how_ended(ended), causes.WITNESSED)


def _asleep(words: SliceWords, kind: int, reason: str, flag: bool, ended: int) -> Cause:
    if kind == KIND_THROTTLED:
        return Cause(causes.THROTTLED, QUOTA + _how_ended(ended), causes.INFERRED if flag else causes.WITNESSED)
    no_wakeup = flag
    if kind == KIND_STOPPED:
        detail = "stopped, or waiting to run after it (no wake-up seen)" if no_wakeup else "by a signal or tracer"
        return Cause(causes.STOPPED, detail + _how_ended(ended), causes.WITNESSED)
    waited = ", or waiting to run after it (no wake-up seen)" if no_wakeup else ""
    if reason in words.sleep_causes:
        cause, detail = words.sleep_causes[reason]
        return Cause(cause, detail + waited + _how_ended(ended), causes.WITNESSED)
    detail = reason or "asleep, in which system call is not known"
    return Cause(causes.VOLUNTARY, detail + waited + _how_ended(ended), causes.WITNESSED)


def _held(slices: Slices, words: SliceWords, kind: int, ended: int, task: int, then_task: int) -> Cause:
    if slices.tasks[task].tid == 0 and then_task == NO_TASK and kind == KIND_PREEMPTED:
        # The thread could run, was not moved, and its CPU had nothing to do: it was not allowed to.
        return Cause(causes.THROTTLED, QUOTA + _how_ended(ended), causes.WITNESSED)
    own = words.own_tasks.get(slices.tasks[task].tid)
    if own is not None and then_task == NO_TASK:
        detail = f"{own}, {slices.task_name(task)}"
        return Cause(causes.SYSMETER, detail + _how_ended(ended), causes.WITNESSED)
    cause = causes.PREEMPTED if kind == KIND_PREEMPTED else causes.RUN_QUEUE
    return Cause(cause, slices.task_name(task, then_task) + _how_ended(ended), causes.WITNESSED)


def _how_ended(ended: int) -> str:
    if ended == ENDED_SWITCH_IN:
        return ""
    return " (still so at the end)" if ended == ENDED_RUN_END else " (return not seen; end by own clock)"
