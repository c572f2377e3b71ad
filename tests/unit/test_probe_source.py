"""The catalogue and the composed C source: pure parts, no bcc, no root."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sysmeter import records, session
from sysmeter.errors import KernelError
from sysmeter.kernel import DEFAULT_PROBES, PROBE_NAMES, source
from sysmeter.kernel.catalogue import CATALOGUE, Hook, probe_number, spread_unavailability, with_required


def compose(*names: str) -> str:
    return source.compose(names, n_cpus=4, event_ring_pages=8, syscall_ring_pages=2)


def handlers(text: str) -> list[str]:
    """Names of the BPF functions that the probe macros in ``text``, and its uprobe handlers, define."""
    plain = [f"tracepoint__{c}__{e}" for c, e in re.findall(r"^TRACEPOINT_PROBE\((\w+), (\w+)\)", text, re.M)]
    raw = [f"raw_tracepoint__{e}" for e in re.findall(r"^RAW_TRACEPOINT_PROBE\((\w+)\)", text, re.M)]
    return plain + raw + re.findall(r"^int (uprobe__\w+)\(struct pt_regs \*ctx\)", text, re.M)


def test_the_probes_and_which_of_them_are_on_by_default() -> None:
    always = ("context_switch", "runq_delay", "page_fault", "syscalls", "interrupts", "softirqs", "migrations")
    assert always == DEFAULT_PROBES == session.PROBE_NAMES
    assert (*DEFAULT_PROBES, session.AUDIT_PROBE) == PROBE_NAMES
    assert [probe_number(name) for name in PROBE_NAMES] == list(range(8))
    assert len({probe.kind for probe in CATALOGUE.values()}) == len(CATALOGUE)


@pytest.mark.parametrize("name", PROBE_NAMES)
def test_a_file_defines_exactly_the_handlers_its_entry_names(name: str) -> None:
    probe = CATALOGUE[name]
    text = (source.PROBES_DIR / probe.file).read_text(encoding="utf-8")
    assert sorted(handlers(text)) == sorted(hook.function for hook in probe.hooks)
    assert probe.claim
    assert 0 < len(probe.summary) <= 60


@pytest.mark.parametrize("name", PROBE_NAMES)
def test_an_event_takes_two_programs_where_it_has_an_entry_and_an_exit(name: str) -> None:
    sides = [hook.event.rpartition("_")[2] for hook in CATALOGUE[name].hooks]
    in_pairs = sides.count("entry") == sides.count("exit") == len(sides) / 2
    assert CATALOGUE[name].n_programs == (2 if in_pairs else 1)


def test_every_kind_of_interrupt_has_its_tracepoints_and_its_name() -> None:
    text = (source.PROBES_DIR / "interrupts.c").read_text(encoding="utf-8")
    kinds = {name for name in vars(records) if name.startswith("INTERRUPT_") and name != "INTERRUPT_NAMES"}
    assert set(re.findall(r"interrupt_begins\((INTERRUPT_\w+)\)", text)) == kinds
    assert set(re.findall(r"interrupt_ends\((INTERRUPT_\w+), ", text)) == kinds
    assert set(records.INTERRUPT_NAMES) == {getattr(records, name) for name in kinds}
    for vector in CATALOGUE["interrupts"].hooks:
        assert f"RAW_TRACEPOINT_PROBE({vector.event})" in text


def test_one_handler_for_each_tracepoint() -> None:
    found = handlers(compose(*PROBE_NAMES))
    assert len(found) == len(set(found)) == sum(len(probe.hooks) for probe in CATALOGUE.values()) == 5 + 20 + 2 + 1 + 4


def test_a_probe_brings_what_it_requires() -> None:
    assert with_required(["runq_delay"]) == ("context_switch", "runq_delay")
    assert with_required(["syscalls", "page_fault", "syscalls"]) == ("page_fault", "syscalls")
    assert with_required([]) == ()


def test_an_unknown_probe() -> None:
    with pytest.raises(KernelError) as caught:
        with_required(["cache_miss"])
    assert "cache_miss" in caught.value.message
    assert "context_switch" in caught.value.hint


def test_a_probe_is_unavailable_with_the_one_it_requires() -> None:
    unavailable = {"context_switch": "gone"}
    spread_unavailability(unavailable, PROBE_NAMES)
    assert set(unavailable) == {"context_switch", "runq_delay"}
    assert "gone" in unavailable["runq_delay"]


def test_two_handlers_of_one_tracepoint_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    copy = replace(CATALOGUE["runq_delay"], hooks=(Hook("sched", "sched_switch"),))
    monkeypatch.setitem(CATALOGUE, "runq_delay", copy)
    with pytest.raises(KernelError, match="sched:sched_switch"):
        compose(*PROBE_NAMES)


def test_only_the_selected_files_are_taken_and_common_comes_first() -> None:
    text = compose("page_fault")
    assert "probes/syscalls.c" not in text
    assert text.index("probes/common.h") < text.index("probes/page_fault.c")
    assert "#define EVENT_RING_PAGES 8\n" in text
    assert f"#define EVENT_PAGE_FAULT {records.EVENT_PAGE_FAULT}\n" in text
    assert f"#define FLAG_BROKEN_LINK {records.FLAG_BROKEN_LINK}\n" in text
    assert f"#define ALLOCATION_REALLOC {records.ALLOCATION_REALLOC}\n" in text
    assert "allocation_ring" not in text


def test_a_missing_probe_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source, "PROBES_DIR", tmp_path)
    with pytest.raises(KernelError, match=r"common\.h"):
        compose("syscalls")


def test_no_map_operation_in_a_macro_and_no_division() -> None:
    for path in source.PROBES_DIR.glob("*.[ch]"):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        code = re.sub(r"^#include .*$", "", code, flags=re.M)
        assert "/" not in code, path
        for macro in re.findall(r"^#define .*(?:\\\n.*)*", code, re.M):
            assert not re.search(r"\.(lookup|update|delete|ringbuf_\w+|increment)\(", macro), macro


def test_every_submission_wakes_nobody() -> None:
    for path in source.PROBES_DIR.glob("*.[ch]"):
        for arguments in re.findall(r"ringbuf_submit\((.*)\);", path.read_text(encoding="utf-8")):
            assert arguments.endswith("BPF_RB_NO_WAKEUP"), path


@pytest.mark.parametrize(("wanted", "pages"), [(1, 1), (4096, 1), (4097, 2), (3 * 4096, 4), (1 << 20, 256)])
def test_ring_sizes_are_powers_of_two(wanted: int, pages: int) -> None:
    assert source.ring_pages(wanted, 4096) == pages


@pytest.mark.parametrize("wanted", [0, -1])
def test_a_ring_without_room(wanted: int) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        source.ring_pages(wanted, 4096)


def test_the_record_has_80_bytes() -> None:
    assert records.KERNEL_EVENT.itemsize == 80


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("change", [None, ("value2", "<u4"), ("comm", "S8"), ("cpu", "<u8")])
def test_the_layout_check_accepts_the_dtype_and_no_other(change: tuple[str, str] | None, tmp_path: Path) -> None:
    fields: list[tuple[str, str]] = []
    assert records.KERNEL_EVENT.fields is not None
    for name, (kind, *_) in records.KERNEL_EVENT.fields.items():
        fields.append((name, change[1] if change and change[0] == name else kind.str))
    common = (source.PROBES_DIR / "common.h").read_text(encoding="utf-8")
    struct = common[common.index("#define COMM_BYTES") : common.index("/* Where a watched thread")]
    types = f'#include "{source.SHIM_DIR}/include/linux/types.h"\n'
    checks = source.layout_assertions("kernel_event", np.dtype(fields))
    file = tmp_path / "layout.c"
    file.write_text(types + struct + checks, encoding="utf-8")
    done = subprocess.run(["cc", "-std=gnu11", "-fsyntax-only", str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (change is None), done.stderr
    if change:
        assert "differs between the C source and its numpy dtype" in done.stderr
