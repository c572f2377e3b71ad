"""The host: what one must know of it to judge a run, and which CPUs a run may use. psutil's only home."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysmeter.clock import clock_source
from sysmeter.errors import UsageError
from sysmeter.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SYS = Path("/sys")
_PROC = Path("/proc")

# What the firmware calls itself, and systemd-detect-virt's name of the hypervisor behind it
# (systemd, src/basic/virt.c). Looked for at the start of the vendor and product strings, in this order.
_DMI_NAMES = (
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("Amazon EC2", "amazon"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "oracle"),
    ("VirtualBox", "oracle"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Microsoft Corporation", "microsoft"),
    ("Apple Virtualization", "apple"),
    ("Google Compute Engine", "google"),
)
# Paravirtual clocks, which the kernel offers only under their hypervisor. They tell it where there is no DMI.
_CLOCK_NAMES = (("kvm-clock", "kvm"), ("hyperv_clocksource", "microsoft"), ("xen", "xen"))


def describe_host(cpus: Sequence[int]) -> dict[str, Any]:
    """What of this host bears on latency; ``cpus`` are the CPUs chosen for the measured threads.

    Keys ``cpus`` (one ``{cpu, smt_siblings, governor}`` for each chosen CPU, its siblings without itself),
    ``memory_bytes`` and ``swap_bytes``; the rest are strings, and None where the host does not say.
    ``isolated_cpus`` and ``nohz_full`` are the kernel's lists, empty for none. ``rt_runtime_ns`` and
    ``rt_period_ns`` bound real-time threads: -1 is no bound.
    """
    import psutil

    uname = os.uname()
    governors = [_read(_cpu_directory(cpu) / "cpufreq/scaling_governor") for cpu in cpus]
    chosen = [
        {"cpu": cpu, "smt_siblings": smt_siblings(cpu), "governor": governor}
        for cpu, governor in zip(cpus, governors, strict=True)
    ]
    known_governors = sorted({governor for governor in governors if governor})
    return {
        "hostname": uname.nodename,
        "kernel": uname.release,
        "kernel_version": uname.version,
        "os": _os_name(),
        "machine": uname.machine,
        "cpu_model": _cpuinfo("model name") or uname.machine,
        "n_cpus_online": len(online_cpus()),
        "allowed_cpus": format_cpu_list(allowed_cpus()),
        "cpus": chosen,
        "virtualization": virtualization(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "swap_bytes": int(psutil.swap_memory().total),
        "isolated_cpus": _cpu_list_text("isolated"),
        "nohz_full": _cpu_list_text("nohz_full"),
        "cpu_governor": ", ".join(known_governors) or None,
        "clock_source": clock_source(),
        "transparent_hugepages": _bracketed(_read(_SYS / "kernel/mm/transparent_hugepage/enabled")),
        "rt_runtime_ns": _microseconds(_read(_PROC / "sys/kernel/sched_rt_runtime_us")),
        "rt_period_ns": _microseconds(_read(_PROC / "sys/kernel/sched_rt_period_us")),
        "python": platform.python_version(),
        "python_implementation": sys.implementation.name,
        "numpy": _version("numpy"),
        "numba": _version("numba"),
    }


def online_cpus() -> list[int]:
    """The CPUs the kernel schedules on, in order."""
    text = _read(_SYS / "devices/system/cpu/online")
    return parse_cpu_list(text) if text else list(range(os.cpu_count() or 1))


def allowed_cpus() -> list[int]:
    """The online CPUs that this process may run on (affinity within its cpuset), in order."""
    return sorted(os.sched_getaffinity(0))


def unmeasured_cpus(cpus: Iterable[int]) -> list[int]:
    """The allowed CPUs that are not among ``cpus``: there the observer disturbs no measured thread."""
    measured = set(cpus)
    return [cpu for cpu in allowed_cpus() if cpu not in measured]


def choose_cpus(text: str | None) -> tuple[int, int]:
    """The CPUs of the feed and the strategy thread, from ``--cpus A,B``; the two last allowed ones for None.

    Raises:
        UsageError: not two numbers, equal, absent, offline or not allowed, or only one CPU is allowed.
    """
    allowed = allowed_cpus()
    if len(allowed) < 2:
        raise UsageError(
            f"a run needs two CPUs, and this process may use only CPU {format_cpu_list(allowed)}",
            "start it without taskset, or widen the cpuset (container: --cpuset-cpus), or add a CPU (VM)",
        )
    example = f"for example --cpus {allowed[-2]},{allowed[-1]}"
    if text is None:
        return allowed[-2], allowed[-1]
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
        raise UsageError(f"--cpus {text!r} is not two CPU numbers", f"give two numbers with a comma between, {example}")
    feed_cpu, strategy_cpu = int(words[0]), int(words[1])
    if feed_cpu == strategy_cpu:
        raise UsageError(
            f"--cpus names CPU {feed_cpu} twice; each of the two threads needs a CPU of its own",
            f"give two different numbers, {example}",
        )
    for cpu in (feed_cpu, strategy_cpu):
        _check_cpu(cpu, allowed, example)
    return feed_cpu, strategy_cpu


def choose_cpu(number: int | None) -> int:
    """The CPU of a run's only measured thread, from ``--cpu N``; the last allowed one for None.

    Raises:
        UsageError: absent, offline or not allowed.
    """
    allowed = allowed_cpus()
    if number is None:
        return allowed[-1]
    _check_cpu(number, allowed, f"for example --cpu {allowed[-1]}")
    return number


def smt_siblings(cpu: int) -> list[int] | None:
    """The other hardware threads of the CPU's core, in order; None where the kernel does not say.

    Source: kernel documentation, admin-guide/cputopology.rst.
    """
    topology = _cpu_directory(cpu) / "topology"
    text = _read(topology / "thread_siblings_list") or _read(topology / "core_cpus_list")
    return None if text is None else [sibling for sibling in parse_cpu_list(text) if sibling != cpu]


def virtualization() -> str:
    """The hypervisor by systemd-detect-virt's name, ``"vm-other"``, ``"none"``, or ``"unknown"``.

    On x86 the CPUID flag ``hypervisor`` decides whether there is one; other machines have no such flag, and
    without a sign of a hypervisor the answer is unknown.
    """
    flags = _cpuinfo("flags")
    if flags is not None and "hypervisor" not in flags.split():
        return "none"
    if hypervisor_type := _read(_SYS / "hypervisor/type"):
        return hypervisor_type
    firmware = [_read(_SYS / "class/dmi/id" / name) or "" for name in ("product_name", "sys_vendor", "bios_vendor")]
    if firmware[0].endswith(".metal"):  # Amazon's bare machines carry the vendor of its virtual ones
        return "none"
    for sign, name in _DMI_NAMES:
        if any(text.startswith(sign) for text in firmware):
            return name
    clocks = _read(_SYS / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    for sign, name in _CLOCK_NAMES:
        if any(clock.startswith(sign) for clock in clocks.split()):
            return name
    device_tree = _read(_PROC / "device-tree/hypervisor/compatible")
    if device_tree:
        return "kvm" if "kvm" in device_tree else "xen" if "xen" in device_tree else "vm-other"
    return "unknown" if flags is None else "vm-other"


def read_cpu_steal() -> dict[int, int]:
    """Per CPU, the time the hypervisor ran something else since boot, in ns; as coarse as the clock tick.

    Source: proc_stat(5), the eighth figure of a ``cpuN`` line, in units of 1/USER_HZ. A hypervisor need not
    report it: a constant 0 is not proof that nothing was stolen.
    """
    ns_per_tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    steal_ns = {}
    for line in (_read(_PROC / "stat") or "").splitlines():
        name, _, rest = line.partition(" ")
        figures = rest.split()
        if name.startswith("cpu") and name[3:].isdecimal() and len(figures) >= 8:
            steal_ns[int(name[3:])] = int(figures[7]) * ns_per_tick
    return steal_ns


def tracer_pids(tgid: int) -> list[int]:
    """The processes that trace a thread of this process by ptrace: a debugger, strace or the like; usually none.

    A process outside this pid namespace shows as none. Source: ``TracerPid`` in proc_pid_status(5).
    """
    found = set()
    for path in (_PROC / str(tgid) / "task").glob("*/status"):
        for line in (_read(path) or "").splitlines():  # a thread may have ended meanwhile
            if line.startswith("TracerPid:"):
                found.add(int(line.split()[1]))
    return sorted(found - {0})


def thread_names(tgid: int) -> dict[int, str]:
    """The threads that a process has now: tid → comm, as printable text; empty where it is gone."""
    names = {}
    with contextlib.suppress(OSError):
        for tid in sorted(int(name) for name in os.listdir(_PROC / str(tgid) / "task")):
            comm = _read(_PROC / str(tgid) / "task" / str(tid) / "comm")
            if comm is not None:  # it may have ended meanwhile
                names[tid] = comm
    return names


def interrupt_name(number: int) -> str | None:
    """Who has asked for a device's interrupt, as /proc/interrupts prints it; None where nobody has any more."""
    return _read(_SYS / f"kernel/irq/{number}/actions") or None


def available_memory_bytes() -> int | None:
    """What this process can still take without swapping, its control group's limit included; None where unknown.

    Source: proc_meminfo(5), MemAvailable; kernel documentation, admin-guide/cgroup-v2.rst, memory.max.
    """
    found = []
    for line in (_read(_PROC / "meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            found.append(int(value.split()[0]) << 10)
    group = (_read(_PROC / "self/cgroup") or "").rpartition("::")[2].lstrip("/")
    place = _SYS / "fs/cgroup" / group
    while place.is_relative_to(_SYS / "fs/cgroup"):
        limit, used = _integer(_read(place / "memory.max")), _integer(_read(place / "memory.current"))
        if limit is not None and used is not None:
            found.append(max(0, limit - used))
        place = place.parent
    return min(found, default=None)


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's list format (``0-3,8``) as numbers in order.

    Source: cpuset(7), "List format".
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            cpus.update(range(int(first), int(last or first) + 1))
    return sorted(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Numbers in the kernel's list format, the inverse of :func:`parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _check_cpu(cpu: int, allowed: list[int], example: str) -> None:
    if cpu in allowed:
        return
    present = parse_cpu_list(_read(_SYS / "devices/system/cpu/present") or "") or online_cpus()
    if cpu not in present:
        raise UsageError(
            f"CPU {cpu} does not exist; this host has {format_cpu_list(present)}", f"name others, {example}"
        )
    if cpu not in online_cpus():
        raise UsageError(
            f"CPU {cpu} is offline",
            f"as root: echo 1 > /sys/devices/system/cpu/cpu{cpu}/online; or name others, {example}",
        )
    raise UsageError(
        f"CPU {cpu} is not allowed for this process, which may use {format_cpu_list(allowed)}",
        f"its affinity (taskset) or cpuset (container) keeps it out; widen that, or name others, {example}",
    )


def _cpu_directory(cpu: int) -> Path:
    return _SYS / f"devices/system/cpu/cpu{cpu}"


def read_throttled_periods() -> dict[str, int] | None:
    """In how many periods each control group has used up its CPU quota so far; None where no group tells.

    Of all groups that this process can see: a quota above its own holds up its threads, too. Sources: kernel
    documentation, scheduler/sched-bwc.rst (nr_throttled of cpu.stat), admin-guide/cgroup-v2.rst.
    """
    found: dict[str, int] = {}
    root = _SYS / "fs/cgroup"
    for top in (root, *sorted(root.glob("cpu*"))) if root.is_dir() else ():
        for stat in (top / "cpu.stat", *top.glob("**/cpu.stat")) if (top / "cpu.stat").exists() else ():
            for line in (_read(stat) or "").splitlines():
                if line.startswith("nr_throttled "):
                    found[str(stat.parent.relative_to(root))] = int(line.split()[1])
    return found or None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return None


def _cpu_list_text(name: str) -> str:
    text = _read(_SYS / "devices/system/cpu" / name) or ""
    return "" if text == "(null)" else text  # some kernels print a null list so


def _bracketed(text: str | None) -> str | None:
    """The chosen word of ``always [madvise] never``."""
    return text.partition("[")[2].partition("]")[0] or None if text else None


def _microseconds(text: str | None) -> int | None:
    """A kernel setting in microseconds as nanoseconds; -1, which means no bound, stays -1."""
    value = _integer(text)
    return value if value is None or value < 0 else value * NS_PER_US


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _cpuinfo(key: str) -> str | None:
    for line in (_read(_PROC / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)  # without importing it
    except metadata.PackageNotFoundError:
        return None
