"""How probes come and go: what they refuse, what they leave behind (nothing), what the self-test notices."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sysmeter.errors import KernelError
from sysmeter.kernel import DEFAULT_PROBES, ProbeSet, bpfsys, selftest
from sysmeter.kernel.program import Program

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).resolve().parents[2]


def python(
    code: str, *prefix: str, env: dict[str, str] | None = None, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


REPORT_ERROR = """
import json
from sysmeter.errors import KernelError
from sysmeter.kernel import ProbeSet
try:
    ProbeSet.open()
except KernelError as error:
    print(json.dumps([error.message, error.hint]))
"""


def error_of(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    message, hint = json.loads(done.stdout)
    return message, hint


def gone(ids: Iterable[int]) -> bool:
    """Whether the kernel has freed the programs, which it does a while after their last descriptor closes."""
    ids = set(ids)
    deadline = time.monotonic() + 20
    while ids & set(bpfsys.loaded_program_ids()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_nothing_stays_after_close_and_close_can_be_repeated() -> None:
    before = set(bpfsys.loaded_program_ids())
    n_descriptors = len(os.listdir("/proc/self/fd"))
    probes = ProbeSet.open()
    ours = set(bpfsys.loaded_program_ids()) - before
    assert len(ours) >= 6
    probes.watch({threading.get_native_id(): "this one"})
    result = probes.close()
    assert probes.close() is result
    assert gone(ours)
    assert len(os.listdir("/proc/self/fd")) == n_descriptors
    with pytest.raises(KernelError, match="closed"):
        probes.drain()


def test_nothing_stays_after_an_exception() -> None:
    before = set(bpfsys.loaded_program_ids())
    ours: set[int] = set()

    def fail_while_open() -> None:
        with ProbeSet.open() as probes:
            probes.self_test()
            ours.update(set(bpfsys.loaded_program_ids()) - before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_open()
    assert ours
    assert gone(ours)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_after_the_death_of_the_process(how: signal.Signals) -> None:
    before = set(bpfsys.loaded_program_ids())
    code = (
        "import threading, time\nfrom sysmeter.kernel import ProbeSet\np = ProbeSet.open()\n"
        "p.watch({threading.get_native_id(): 'it'})\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        theirs = set(bpfsys.loaded_program_ids()) - before
        assert len(theirs) >= 6
        process.send_signal(how)
        process.wait()
    assert gone(theirs)


def test_without_root() -> None:
    become_nobody = "import os, sysmeter.kernel, json\nos.setgid(65534); os.setuid(65534)\n"
    message, hint = error_of(python(become_nobody + REPORT_ERROR))
    assert "needs root" in message
    assert "sudo" in hint
    assert "--no-probes" in hint


def test_root_without_the_capabilities() -> None:
    def drop() -> None:
        libc = ctypes.CDLL(None)
        for capability in (21, 38, 39):
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: gone at the exec that follows

    message, hint = error_of(python(REPORT_ERROR, before=drop))
    assert "CAP_BPF" in message
    assert "CAP_PERFMON" in message
    assert "--privileged" in hint


def test_another_project_named_bcc_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("__version__ = '0.2'\n")
    message, hint = error_of(python(REPORT_ERROR, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}))
    assert str(tmp_path) in message
    assert "BPF Compiler Collection" in message
    assert "python3-bpfcc" in hint


def test_a_bcc_that_leaves_the_process_at_import(tmp_path: Path) -> None:
    (tmp_path / "bcc.py").write_text("import sys\nsys.exit(3)\n")
    message, _hint = error_of(python(REPORT_ERROR, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}))
    assert "cannot be imported" in message


def test_a_wrong_header_directory(tmp_path: Path) -> None:
    message, hint = error_of(python(REPORT_ERROR, env={"SYSMETER_KERNEL_SOURCE": "/nonexistent"}))
    assert "/nonexistent" in message
    assert "SYSMETER_KERNEL_SOURCE" in hint
    message, hint = error_of(python(REPORT_ERROR, env={"SYSMETER_KERNEL_SOURCE": str(tmp_path)}))
    assert "kernel headers" in message


def test_tracefs_is_mounted_where_it_is_missing() -> None:
    code = (
        "import subprocess\nfrom sysmeter.kernel import ProbeSet\n"
        "subprocess.run(['umount', '/sys/kernel/tracing'], check=True)\n"
        "with ProbeSet.open() as p: print(p.notes)"
    )
    done = python(code, "unshare", "--mount", "--propagation", "private")
    assert done.returncode == 0, done.stderr
    assert "mounted tracefs at /sys/kernel/tracing" in done.stdout


SELF_TEST = """
from sysmeter.kernel import ProbeSet
with ProbeSet.open() as p:
    print(p.self_test())
    print(p.close().statuses)
"""


def test_a_pid_namespace_is_said_plainly() -> None:
    done = python(SELF_TEST, "unshare", "--pid", "--fork", "--mount-proc")
    assert done.returncode == 0, done.stderr
    assert "pid namespace" in done.stdout
    assert "'status': 'ok'" not in done.stdout


def test_a_time_namespace_is_said_plainly() -> None:
    if not Path("/proc/self/ns/time").exists():
        return  # the kernel has no time namespaces, so there is nothing to guard against
    done = python(SELF_TEST, "unshare", "--time", "--monotonic", "1000", "--fork")
    assert done.returncode == 0, done.stderr
    assert "time namespace" in done.stdout
    assert "'status': 'ok'" not in done.stdout


def test_the_self_test_leaves_no_trace() -> None:
    with ProbeSet.open() as probes:
        outcome = probes.self_test()
        assert outcome.clock == (True, None)
        assert outcome.unavailable == {}
        assert probes.check_clock() == (True, None)
        result = probes.close()
    assert len(result.events) == 0
    for name in DEFAULT_PROBES:
        status = result.statuses[name]
        assert (status["status"], status["events"], status["lost"], status["missed"]) == ("ok", 0, 0, 0)


@pytest.mark.parametrize(
    ("deaf", "affected"),
    [("page_fault", {"page_fault"}), ("context_switch", {"context_switch", "runq_delay"})],
)
def test_the_self_test_notices_a_probe_that_sees_nothing(
    monkeypatch: pytest.MonkeyPatch, deaf: str, affected: set[str]
) -> None:
    watch = Program.watch
    monkeypatch.setattr(Program, "watch", lambda self, tid, names: watch(self, tid, [n for n in names if n != deaf]))
    with ProbeSet.open() as probes:
        probes.self_test()
        assert set(probes.unavailable) == affected
        statuses = probes.close().statuses
    for name, status in statuses.items():
        assert status["status"] == ("unavailable" if name in affected else "ok")
        assert (status["events"] is None) == (name in affected)
    assert "saw none of" in (statuses[deaf]["reason"] or "")


def test_the_self_test_notices_a_filter_that_lets_everything_through(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Program.watch

    def watch_all(self: Program, tid: int, names: Iterable[str]) -> None:
        for thread in [tid, *map(int, os.listdir("/proc/self/task"))]:
            watch(self, thread, names)

    monkeypatch.setattr(Program, "watch", watch_all)
    with ProbeSet.open() as probes:
        probes.self_test()
        assert set(probes.unavailable) == set(DEFAULT_PROBES)
        assert all("not watched" in reason for reason in probes.unavailable.values())


def test_the_self_test_must_come_first() -> None:
    with ProbeSet.open() as probes:
        probes.watch({threading.get_native_id(): "this one"})
        with pytest.raises(KernelError, match="before"):
            probes.self_test()


def test_a_thread_that_does_not_exist_cannot_be_watched() -> None:
    with ProbeSet.open(("syscalls",)) as probes, pytest.raises(KernelError, match="no thread 4194399"):
        probes.watch({4194399: "nobody"})


def test_a_probe_whose_tracepoint_this_kernel_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from sysmeter.kernel import program

    has = program.has_tracepoint
    monkeypatch.setattr(program, "has_tracepoint", lambda fs, cat, event: cat != "exceptions" and has(fs, cat, event))
    with ProbeSet.open() as probes:
        assert "no tracepoint exceptions:page_fault_user" in probes.unavailable["page_fault"]
        probes.self_test()
        assert list(probes.unavailable) == ["page_fault"]
        statuses = probes.close().statuses
    assert statuses["page_fault"]["events"] is None
    assert statuses["syscalls"]["status"] == "ok"


def test_a_kernel_without_the_optional_tracepoints_has_the_probe_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from sysmeter.kernel import program
    from sysmeter.kernel.catalogue import CATALOGUE

    optional = {hook.event for hook in CATALOGUE["interrupts"].hooks if hook.optional}
    assert optional
    has = program.has_tracepoint
    monkeypatch.setattr(program, "has_tracepoint", lambda fs, cat, event: event not in optional and has(fs, cat, event))
    before = set(bpfsys.loaded_program_ids())
    with ProbeSet.open(("interrupts",)) as probes:
        ours = set(bpfsys.loaded_program_ids()) - before
        attached = {hook.event for hook in probes._program.hook_fds}
        probes.self_test()
        assert probes.unavailable == {}
        status = probes.close().statuses["interrupts"]
    assert attached == {hook.event for hook in CATALOGUE["interrupts"].hooks} - optional
    assert (status["status"], status["missed"]) == ("ok", 0)
    assert gone(ours)


def test_a_kernel_without_a_tracepoint_that_the_claim_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from sysmeter.kernel import program

    has = program.has_tracepoint
    monkeypatch.setattr(program, "has_tracepoint", lambda fs, cat, event: cat != "irq_vectors" and has(fs, cat, event))
    with ProbeSet.open() as probes:
        assert "no tracepoint irq_vectors:local_timer_entry" in probes.unavailable["interrupts"]
        probes.self_test()
        assert list(probes.unavailable) == ["interrupts"]
        assert probes.close().statuses["softirqs"]["status"] == "ok"


def test_rings_larger_than_memory() -> None:
    with pytest.raises(KernelError) as caught:
        ProbeSet.open(ring_bytes=1 << 40)
    assert caught.value.hint


def test_what_the_compiler_says_stays_off_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from sysmeter.kernel import source
    from sysmeter.kernel.bccload import ProbeLoadError

    compose = source.compose
    monkeypatch.setattr(source, "compose", lambda *a, **k: compose(*a, **k) + '\n#line 7 "probes/mine.c"\nnonsense\n')
    before = set(bpfsys.loaded_program_ids())
    with pytest.raises(ProbeLoadError) as caught:
        ProbeSet.open()
    assert "did not compile" in caught.value.message
    assert "probes/mine.c:7" in caught.value.message
    assert "nonsense" in caught.value.detail
    assert capfd.readouterr().err == ""
    assert set(bpfsys.loaded_program_ids()) <= before


def test_a_struct_that_differs_from_its_dtype_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    from sysmeter.kernel import source

    assertions = source.layout_assertions
    wrong = source.WATCHED_THREAD
    monkeypatch.setattr(
        source,
        "layout_assertions",
        lambda struct, dtype: assertions(struct, wrong if struct == "look" else dtype),
    )
    with pytest.raises(KernelError, match="did not compile"):
        ProbeSet.open()


def test_the_helper_thread_of_the_self_test_is_gone_afterwards() -> None:
    with ProbeSet.open() as probes:
        n_threads = threading.active_count()
        probes.self_test()
        assert threading.active_count() == n_threads
    assert selftest.MAX_ATTEMPTS >= 1
