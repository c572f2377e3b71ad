"""A CPU quota for one thread: a cgroup made for it, below or beside the process's own, and removed again.

Version 1: a group of the ``cpu`` controller, whose ``tasks`` take single threads. Version 2: a group for the process
and in it a threaded one for the thread; the ``cpu`` controller must be enabled where the group is made.
Sources: kernel documentation, scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst.

The name of a group says which process made it, so that one that was killed leaves nothing for longer than until the
next start.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sysmeter.units import NS_PER_US

_PREFIX = "sysmeter-selftest-"
_START_TIME_FIELD = 21  # of /proc/PID/stat, from 0; the name in brackets is cut off first, and two fields with it


class QuotaUnavailable(Exception):
    """No CPU quota can be set here; the text says why."""


class QuotaGroup:
    """A group for one thread of the process ``tgid``, at first without a quota. ``close`` puts everything back.

    Raises:
        QuotaUnavailable: no ``cpu`` controller that this user may use.
    """

    def __init__(self, tgid: int, tid: int) -> None:
        self._tid = tid
        self._outer: Path | None = None  # version 2: the group of the whole process
        name = f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}"
        self._home, self._is_v2 = find_controller(tgid)
        parent = self._home.parent if self._is_v2 else self._home
        remove_stale(parent, self._home)
        try:
            if self._is_v2:
                self._outer = parent / name
                self._group = self._outer / "strategy"
                self._outer.mkdir()
                _write(self._outer / "cgroup.procs", tgid)
                self._group.mkdir()
                _write(self._group / "cgroup.type", "threaded")
                _write(self._outer / "cgroup.subtree_control", "+cpu")
            else:
                self._group = parent / name
                self._group.mkdir()
            self._set(-1, 100_000)
        except OSError as error:
            self.close()
            raise QuotaUnavailable(f"no group can be made in {parent}: {error.strerror}") from error

    def enter(self) -> None:
        """Move the thread in."""
        _write(self._group / ("cgroup.threads" if self._is_v2 else "tasks"), self._tid)

    def leave(self) -> None:
        """Move the thread back to where it came from."""
        home = self._home if self._outer is None else self._outer
        _write(home / ("cgroup.threads" if self._is_v2 else "tasks"), self._tid)

    def limit(self, quota_ns: int, period_ns: int) -> None:
        """Let the thread use ``quota_ns`` of CPU time in each ``period_ns``."""
        self._set(quota_ns // NS_PER_US, period_ns // NS_PER_US)

    def unlimit(self) -> None:
        """Lift the quota; who is held by it goes on at once."""
        self._set(-1, None)

    def throttled_ns(self) -> int:
        """For how long the group has been throttled so far, by the kernel's own account."""
        stat = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
        return int(stat["throttled_usec"]) * NS_PER_US if self._is_v2 else int(stat["throttled_time"])

    def close(self) -> None:
        """Put everything back: the process into the group it came from, and the groups away. Harmless when repeated."""
        _dissolve(self._group if self._outer is None else self._outer, self._home)

    def _set(self, quota_us: int, period_us: int | None) -> None:
        if self._is_v2:
            quota = "max" if quota_us < 0 else str(quota_us)
            _write(self._group / "cpu.max", quota if period_us is None else f"{quota} {period_us}")
            return
        if period_us is not None:
            _write(self._group / "cpu.cfs_period_us", period_us)
        _write(self._group / "cpu.cfs_quota_us", quota_us)


def find_controller(tgid: int, proc: Path = Path("/proc")) -> tuple[Path, bool]:
    """The group of process ``tgid`` for the ``cpu`` controller, and whether it is of version 2.

    Raises:
        QuotaUnavailable: there is none, or it is not enabled there.
    """
    mounts = [line.split() for line in (proc / "self/mounts").read_text().splitlines()]
    groups = [line.split(":", 2) for line in (proc / str(tgid) / "cgroup").read_text().splitlines()]
    for _number, controllers, path in groups:
        if "cpu" in controllers.split(","):
            for _device, place, kind, options, *_ in mounts:
                if kind == "cgroup" and "cpu" in options.split(","):
                    return _below(Path(place), path), False
            raise QuotaUnavailable("the cpu controller of cgroup v1 is not mounted")
    for number, controllers, path in groups:
        if number == "0" and not controllers:
            for _device, place, kind, *_ in mounts:
                if kind == "cgroup2":
                    home = _below(Path(place), path)
                    if "cpu" not in _words(home.parent / "cgroup.subtree_control") or home == Path(place):
                        raise QuotaUnavailable(f"the cpu controller is not enabled for groups beside {home}")
                    return home, True
    raise QuotaUnavailable("the process is in no cgroup that has a cpu controller")


def remove_stale(parent: Path, home: Path) -> list[Path]:
    """Remove the groups in ``parent`` whose makers are gone; whoever is in one goes to ``home``."""
    removed = []
    for group in parent.glob(f"{_PREFIX}*"):
        tgid, _, started = group.name.removeprefix(_PREFIX).partition("-")
        if tgid.isdecimal() and str(_start_time(int(tgid))) == started:
            continue
        _dissolve(group, home)
        if not group.exists():
            removed.append(group)
    return removed


def _below(place: Path, path: str) -> Path:
    # In a container the path may be one of the host's, which is not to be seen here.
    whole = place / path.lstrip("/")
    if not whole.is_dir():
        raise QuotaUnavailable(f"the process's group {path} is not to be seen below {place}")
    return whole


def _dissolve(group: Path, home: Path) -> None:
    """Move what is in the group to ``home``, whole processes at a time, and remove it with what lies in it."""
    if not group.exists():
        return
    for tgid in {int(word) for word in _words(group / "cgroup.procs")}:
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            _write(home / "cgroup.procs", tgid)
    for path in [*(path for path in group.iterdir() if path.is_dir()), group]:
        with contextlib.suppress(OSError):
            path.rmdir()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _write(path: Path, value: object) -> None:
    # In one write(2), unbuffered: the kernel takes each as one request.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _start_time(tgid: int) -> int | None:
    try:
        return int(Path(f"/proc/{tgid}/stat").read_text().rpartition(")")[2].split()[_START_TIME_FIELD - 2])
    except (OSError, ValueError, IndexError):
        return None
