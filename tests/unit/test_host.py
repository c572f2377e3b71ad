"""The host's description from pretended /sys and /proc trees, and the choice of CPUs."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from sysmeter import host
from sysmeter.errors import UsageError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty /sys and /proc; tests put into it what they need."""
    monkeypatch.setattr(host, "_SYS", tmp_path / "sys")
    monkeypatch.setattr(host, "_PROC", tmp_path / "proc")
    return tmp_path


def put(tree: Path, name: str, text: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def eight_cpus(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CPUs 0 to 7 present, 6 offline, 5 not allowed."""
    put(tree, "sys/devices/system/cpu/present", "0-7\n")
    put(tree, "sys/devices/system/cpu/online", "0-5,7\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 4, 7})
    return tree


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("5,1-2", [1, 2, 5]), ("3-3", [3])]
)
def test_cpu_list_format(text: str, cpus: list[int]) -> None:
    assert host.parse_cpu_list(text) == cpus
    assert host.parse_cpu_list(host.format_cpu_list(cpus)) == cpus


def test_format_cpu_list_joins_runs() -> None:
    assert host.format_cpu_list([7, 0, 1, 2, 1]) == "0-2,7"


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(("text", "chosen"), [(None, (4, 7)), ("0,3", (0, 3)), ("7,0", (7, 0)), (" 1 , 2 ", (1, 2))])
def test_choose_cpus(text: str | None, chosen: tuple[int, int]) -> None:
    assert host.choose_cpus(text) == chosen


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("a,b", "not two CPU numbers", "--cpus 4,7"),
        ("1", "not two CPU numbers", "--cpus 4,7"),
        ("1,2,3", "not two CPU numbers", "--cpus 4,7"),
        ("1-2", "not two CPU numbers", "--cpus 4,7"),
        ("-1,2", "not two CPU numbers", "--cpus 4,7"),
        ("", "not two CPU numbers", "--cpus 4,7"),
        ("1,²", "not two CPU numbers", "--cpus 4,7"),
        ("3,3", "CPU 3 twice", "two different"),
        ("0,8", "CPU 8 does not exist; this host has 0-7", "--cpus 4,7"),
        ("99999999999999999999,0", "does not exist", "--cpus 4,7"),
        ("6,0", "CPU 6 is offline", "/cpu6/online"),
        ("0,5", "CPU 5 is not allowed for this process, which may use 0-4,7", "cpuset"),
    ],
)
def test_cpus_that_cannot_be_used(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        host.choose_cpus(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", [None, "0,1"])
def test_one_cpu_allowed(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    with pytest.raises(UsageError, match="only CPU 3") as caught:
        host.choose_cpus(text)
    assert caught.value.hint


@pytest.mark.usefixtures("eight_cpus")
def test_unmeasured_cpus() -> None:
    assert host.unmeasured_cpus((4, 7)) == [0, 1, 2, 3]


def test_smt_siblings(tree: Path) -> None:
    put(tree, "sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,10\n")
    put(tree, "sys/devices/system/cpu/cpu3/topology/core_cpus_list", "3\n")
    assert host.smt_siblings(2) == [10]
    assert host.smt_siblings(3) == []
    assert host.smt_siblings(4) is None


def test_steal(tree: Path) -> None:
    put(
        tree,
        "proc/stat",
        "cpu  1 2 3 4 5 6 7 30 0 0\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu11 1 2 3 4 5 6 7 20 0 0\nintr 5\n",
    )
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert host.read_cpu_steal() == {0: 10 * tick_ns, 11: 20 * tick_ns}


X86_GUEST = "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: fpu hypervisor sse\n"
X86_METAL = "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: fpu sse\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\n"
CLOCKS = "sys/devices/system/clocksource/clocksource0/available_clocksource"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"proc/cpuinfo": X86_METAL}, "none"),
        ({"proc/cpuinfo": X86_METAL, "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "none"),
        ({"proc/cpuinfo": X86_GUEST}, "vm-other"),
        ({"proc/cpuinfo": X86_GUEST, "sys/class/dmi/id/sys_vendor": "QEMU\n"}, "qemu"),
        (
            {
                "proc/cpuinfo": X86_GUEST,
                "sys/class/dmi/id/product_name": "KVM",
                "sys/class/dmi/id/sys_vendor": "QEMU",
            },
            "kvm",
        ),
        ({"proc/cpuinfo": X86_GUEST, "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "amazon"),
        ({"proc/cpuinfo": X86_GUEST, CLOCKS: "kvm-clock tsc acpi_pm\n"}, "kvm"),
        ({"proc/cpuinfo": X86_GUEST, CLOCKS: "hyperv_clocksource_tsc_page\n"}, "microsoft"),
        ({"proc/cpuinfo": X86_GUEST, "sys/hypervisor/type": "xen\n"}, "xen"),
        ({"proc/cpuinfo": ARM}, "unknown"),
        ({"proc/cpuinfo": ARM, "sys/class/dmi/id/product_name": "c7g.metal"}, "none"),
        ({"proc/cpuinfo": ARM, "proc/device-tree/hypervisor/compatible": "linux,kvm\0"}, "kvm"),
        ({}, "unknown"),
    ],
)
def test_virtualization(tree: Path, files: dict[str, str], name: str) -> None:
    for path, text in files.items():
        put(tree, path, text)
    assert host.virtualization() == name


@pytest.mark.usefixtures("tree")
def test_a_host_that_says_nothing() -> None:
    described = host.describe_host((0, 1))
    assert described["cpus"][0] == {"cpu": 0, "smt_siblings": None, "governor": None}
    for key in ("cpu_governor", "transparent_hugepages", "rt_runtime_ns"):
        assert described[key] is None
    assert described["isolated_cpus"] == described["nohz_full"] == ""
    assert described["virtualization"] == "unknown"


def test_a_host_that_says_much(eight_cpus: Path) -> None:
    for cpu in (4, 7):
        put(eight_cpus, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance\n")
        put(eight_cpus, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu - 4},{cpu}\n")
    put(eight_cpus, "sys/devices/system/cpu/isolated", "4,7\n")
    put(eight_cpus, "sys/devices/system/cpu/nohz_full", "  (null)\n")
    put(eight_cpus, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    put(eight_cpus, "proc/sys/kernel/sched_rt_runtime_us", "-1\n")
    put(eight_cpus, "proc/cpuinfo", X86_GUEST)
    described = host.describe_host((4, 7))
    assert described["cpus"] == [
        {"cpu": 4, "smt_siblings": [0], "governor": "performance"},
        {"cpu": 7, "smt_siblings": [3], "governor": "performance"},
    ]
    assert described["cpu_governor"] == "performance"
    assert (described["isolated_cpus"], described["nohz_full"]) == ("4,7", "")
    assert described["transparent_hugepages"] == "madvise"
    assert described["rt_runtime_ns"] == -1
    assert described["cpu_model"] == "A CPU: fast"
    assert (described["n_cpus_online"], described["allowed_cpus"]) == (7, "0-4,7")


def test_this_host() -> None:
    cpus = host.allowed_cpus()
    described = host.describe_host(cpus[-2:])
    json.dumps(described, allow_nan=False)
    assert described["kernel"] == os.uname().release
    assert described["memory_bytes"] > 1 << 20
    assert [entry["cpu"] for entry in described["cpus"]] == cpus[-2:]
    assert set(cpus) <= set(host.online_cpus())
    assert set(host.read_cpu_steal()) == set(host.online_cpus())


def test_a_debugger_is_seen_while_it_is_attached() -> None:
    assert host.tracer_pids(os.getpid()) == []
    child = subprocess.Popen(["sleep", "60"])
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        # PTRACE_SEIZE (0x4206) attaches without stopping; source: linux/ptrace.h.
        assert libc.ptrace(0x4206, child.pid, None, None) == 0, os.strerror(ctypes.get_errno())
        assert host.tracer_pids(child.pid) == [os.getpid()]
    finally:
        child.kill()
        child.wait()
    assert host.tracer_pids(child.pid) == []


def test_the_threads_of_a_process_by_name() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        found = host.thread_names(os.getpid())
        assert {os.getpid(), thread.native_id} <= set(found)
        assert found[os.getpid()] == Path("/proc/self/comm").read_text().rstrip("\n")
    finally:
        release.set()
        thread.join()
    assert host.thread_names(2**22 + 1) == {}


def test_names_of_device_interrupts_are_those_of_proc_interrupts() -> None:
    lines = [line.split() for line in Path("/proc/interrupts").read_text().splitlines()]
    numbered = [words for words in lines if words[0].rstrip(":").isdecimal()]
    for words in numbered:
        name = host.interrupt_name(int(words[0].rstrip(":")))
        assert name is None or " ".join(words).endswith(name.replace(",", ", "))
    assert host.interrupt_name(99_999) is None


def test_periods_of_used_up_quotas_are_read_of_every_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_SYS", tmp_path)
    assert host.read_throttled_periods() is None
    stats = {
        "fs/cgroup/cpu/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 12\n",
        "fs/cgroup/cpu/a/b/cpu.stat": "nr_periods 9\nnr_throttled 7\n",
        "fs/cgroup/cpuset/cpu.stat": "usage_usec 1\n",
    }
    for place, text in stats.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    assert host.read_throttled_periods() == {"cpu": 4, "cpu/a/b": 7}
