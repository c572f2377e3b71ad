"""Carries out the steps of a plan while a run's window is open, in a thread of its own."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sysmeter import host, injection
from sysmeter.errors import SysmeterError
from sysmeter.selftest.commands import Commands, NotCarriedOut
from sysmeter.selftest.injectors import Injector, Target, choose_other_cpu, make_injectors
from sysmeter.session import Companion
from sysmeter.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sysmeter.selftest.plan import Step
    from sysmeter.workload import Workload

_LOOK_SECONDS = 0.005


class Driver(Companion):
    """Injects ``steps`` into the thread called ``thread`` from ``warmup_ns`` after the start on.

    Where every allowed CPU is measured it runs on that of another measured thread: what it costs is not charged to
    the target. The Recording's meta gets ``injections``, a list of ``{number, cause, thread, t_begin_ns, t_end_ns,
    held_ns, held_max_ns, identity}``, cause being "control" where nothing was injected; ``injections_missing``, the
    causes that cannot be injected here with their reasons; and ``injections_failed``, the steps that did not come
    about, ``{number, cause, reason}``. Steps in none of these were not reached.
    """

    def __init__(self, steps: Sequence[Step], thread: str, warmup_ns: int) -> None:
        self._steps = steps
        self._thread_name = thread
        self._warmup_ns = warmup_ns
        self._injectors: dict[str, Injector] = {}
        self._missing: dict[str, str] = {}
        self._done: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._worker: threading.Thread | None = None
        self._commands: Commands | None = None

    def prepare(self, workload: Workload, ready: dict[str, Any]) -> None:
        """Make the injectors."""
        if "commands" not in ready:
            raise SysmeterError("the workload takes no commands", "this is a defect of sysmeter's self-test")
        threads = ready["threads"]
        own = threads[self._thread_name]
        cpus = [thread["cpu"] for thread in threads.values()]
        unmeasured = host.unmeasured_cpus(cpus)
        self._cpus = set(unmeasured) or {cpu for cpu in cpus if cpu != own["cpu"]} or set(cpus)
        wake_fd = ready["commands"].get("wake_fd")
        self._commands = Commands(
            workload.share_array(ready["commands"]), None if wake_fd is None else workload.open_pipe(wake_fd)
        )
        target = Target(
            self._thread_name, own["tid"], ready["tgid"], own["cpu"], choose_other_cpu(own["cpu"], cpus), self._commands
        )
        wanted = dict.fromkeys(step.cause for step in self._steps)
        self._injectors, self._missing = make_injectors(wanted, target)

    def begin(self) -> None:
        """Start."""
        self._worker = threading.Thread(target=self._work, name="selftest", daemon=True)
        self._worker.start()

    def end(self) -> dict[str, Any]:
        """Let the step that is going on end, put everything back, and tell."""
        self._over.set()
        if self._worker is not None:
            self._worker.join()
        for injector in self._injectors.values():
            injector.close()
        if self._commands is not None:
            self._commands.close()
        return {
            "injections": self._done,
            "injections_missing": self._missing,
            "injections_failed": self._failed,
        }

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._cpus)  # of this thread only
        assert self._commands is not None
        while not (t_start_ns := int(self._commands.words[injection.T_START])):
            if self._over.wait(_LOOK_SECONDS):
                return
        if self._over.wait(max(0, t_start_ns + self._warmup_ns - time.monotonic_ns()) / NS_PER_S):
            return
        for step in self._steps:
            if step.cause in self._missing:
                continue
            if self._over.wait(step.pause_ns / NS_PER_S):
                return
            try:
                record = self._injectors[step.cause].inject(step.argument)
            except NotCarriedOut as error:
                if not self._over.is_set():
                    self._failed.append({"number": step.number, "cause": step.cause, "reason": str(error)})
                continue
            self._done.append(
                {"number": step.number, "cause": step.cause, "thread": self._thread_name, **asdict(record)}
            )
