"""What becomes of the failures of bcc and of the host: the user's words for each. No bcc, no root."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from sysmeter.errors import KernelError
from sysmeter.kernel import bccload, privileges, progstats, selftest
from sysmeter.kernel.catalogue import CATALOGUE
from sysmeter.kernel.outputcapture import captured_output
from sysmeter.records import KERNEL_EVENT

COMPILE = "Failed to compile BPF module <text>"


@pytest.mark.parametrize(
    ("step", "printed", "raised", "message", "hint"),
    [
        (
            "compile",
            "Unable to find kernel headers. Try rebuilding …",
            COMPILE,
            "kernel headers",
            "SYSMETER_KERNEL",
        ),
        ("compile", "probes/x.c:3:1: error: expected ';'\n  x\n", COMPILE, "probes/x.c:3:1", "--no-probes"),
        (
            "compile",
            "could not open bpf map: counters, error: Operation not permitted",
            COMPILE,
            "refused",
            "privil",
        ),
        (
            "compile",
            "could not open bpf map: event_ring, error: Cannot allocate memory",
            COMPILE,
            "memory",
            "smaller",
        ),
        (
            "compile",
            "could not open bpf map: event_ring, error: Invalid argument",
            COMPILE,
            "no BPF ring",
            "5.8",
        ),
        ("load", "", "Need super-user privileges to run", "refused", "privileged"),
        (
            "load",
            "R1 invalid mem access",
            "Failed to load BPF program f: Permission denied",
            "verifier",
            "no-probes",
        ),
        ("attach", "", "Failed to attach BPF program f to tracepoint t", "did not attach", "no-probes"),
    ],
)
def test_failures_of_bcc(step: str, printed: str, raised: str, message: str, hint: str) -> None:
    error = bccload.explain_failure(step, Exception(raised), printed)
    assert message in error.message
    assert hint in error.hint
    assert raised in error.detail
    assert printed.strip() in error.detail


def test_lockdown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bccload, "lockdown_mode", lambda: "confidentiality")
    error = bccload.explain_failure("load", Exception("Need super-user privileges to run"), "")
    assert "confidentiality" in error.message


def test_bcc_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcc", None)
    with pytest.raises(KernelError) as caught:
        bccload.import_bcc()
    assert "not installed" in caught.value.message
    assert "python3-bpfcc" in caught.value.hint


def test_a_namesake_of_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcc", type(sys)("bcc"))
    with pytest.raises(KernelError, match="namesake"):
        bccload.import_bcc()


def test_a_call_that_leaves_the_process_becomes_an_error() -> None:
    with pytest.raises(bccload.ProbeLoadError):
        bccload._translated("load", lambda: sys.exit(1))


def test_an_interrupt_stays_an_interrupt() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bccload._translated("load", interrupted)


def test_what_c_code_prints_is_caught_from_both_descriptors(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_output() as captured:
        os.write(1, b"one ")
        subprocess.run(["sh", "-c", "printf two >&2"], check=True)
    assert captured.text == "one two"
    assert capfd.readouterr() == ("", "")


def test_output_is_put_back_after_an_exception(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), captured_output():
        raise ZeroDivisionError
    os.write(2, b"visible")
    assert capfd.readouterr().err == "visible"


@pytest.mark.parametrize(
    ("mask", "missing"),
    [(1 << 21, []), (1 << 38 | 1 << 39, []), (1 << 38, ["CAP_BPF"]), (0, ["CAP_BPF", "CAP_PERFMON"])],
)
def test_capabilities(mask: int, missing: list[str]) -> None:
    assert privileges.missing_capabilities(mask) == missing
    assert privileges.effective_capabilities(f"Name:\tx\nCapEff:\t{mask:016x}\n") == mask


def test_kernels_that_do_not_count_what_they_skip() -> None:
    assert progstats.why_misses_unknown((6, 7), raw=False) is None
    assert progstats.why_misses_unknown((5, 12), raw=True) is None
    assert progstats.why_misses_unknown((6, 0), raw=False, uprobe=True) is None
    for version, raw, uprobe in (((6, 1), False, False), ((5, 11), True, False), ((5, 19), False, True)):
        reason = progstats.why_misses_unknown(version, raw, uprobe)
        assert reason is not None
        assert f"Linux {version[0]}.{version[1]}" in reason


def test_misses_are_read_at_their_place_and_unknown_on_a_short_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = bytes(208) + struct.pack("=Q", 7)
    monkeypatch.setattr(progstats.bpfsys, "program_info", lambda _fd, n_bytes: info[:n_bytes])
    assert progstats.recursion_misses(0) == 7
    monkeypatch.setattr(progstats.bpfsys, "program_info", lambda _fd, _n_bytes: info[:200])
    assert progstats.recursion_misses(0) is None


class FakeProgram:
    """Its ``look`` gives a clock wrong by ``offset_ns`` and a thread number wrong by ``shift``."""

    def __init__(self, offset_ns: int = 0, shift: int = 0) -> None:
        self.offset_ns, self.shift = offset_ns, shift

    def look(self) -> tuple[int, int, int]:
        import threading
        import time

        return time.monotonic_ns() + self.offset_ns, 1, threading.get_native_id() + self.shift


@pytest.mark.parametrize("offset_ns", [10**12, -(10**12)])
def test_clocks_that_disagree(offset_ns: int) -> None:
    agree, reason = selftest.compare_clocks(FakeProgram(offset_ns))  # type: ignore[arg-type]
    assert not agree
    assert reason is not None
    assert "ns away" in reason


def test_clocks_that_agree() -> None:
    assert selftest.compare_clocks(FakeProgram()) == (True, None)  # type: ignore[arg-type]


def test_foreign_thread_numbers() -> None:
    assert selftest.thread_number_problem(FakeProgram()) is None  # type: ignore[arg-type]
    problem = selftest.thread_number_problem(FakeProgram(shift=1000))  # type: ignore[arg-type]
    assert problem is not None
    assert "pid namespace" in problem


@pytest.mark.parametrize("wrong", ["kind", "tid", "t_ns", "value"])
def test_an_event_counts_as_seen_only_if_all_of_it_fits(wrong: str) -> None:
    import numpy as np

    events = np.zeros(1, dtype=KERNEL_EVENT)
    events["kind"], events["tid"], events["t_ns"], events["value"] = (
        CATALOGUE["page_fault"].kind,
        5,
        50,
        0x7000_0010,
    )
    provocation = selftest.Provocation(40, 60, 0x7000_0000)
    assert selftest.saw(CATALOGUE["page_fault"], 5, provocation, events)
    events[wrong] += 0x10000
    assert not selftest.saw(CATALOGUE["page_fault"], 5, provocation, events)
