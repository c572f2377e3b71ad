"""The text of the one BPF program: generated constants, the common header, the selected probe files,
assertions.

Pure: reads the C files, touches neither bcc nor the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sysmeter import records
from sysmeter.errors import KernelError
from sysmeter.kernel.catalogue import CATALOGUE, PROBE_NAMES, probe_number

PROBES_DIR = Path(__file__).resolve().parents[2] / "probes"
SHIM_DIR = PROBES_DIR / "shim"
COMMON_FILE = "common.h"

MAX_WATCHED = 256
"""Threads that can be watched at once."""

# The constants of `records` that the C files are given.
_GENERATED = ("EVENT_", "FLAG_", "ALLOCATION_", "INTERRUPT_")

# The order of the counters of one probe, as probes/common.h defines it.
COUNTER_EVENTS, COUNTER_LOST, COUNTER_FAILED, COUNTER_BROKEN_LINKS = range(4)
COUNTERS_PER_PROBE = 4

# Field of `struct watched_thread`, the value of the filter map. Only ``probes`` is set by user space.
WATCHED_THREAD = np.dtype(
    [("probes", "<u4"), ("place", "<u4"), ("cpu", "<u4"), ("syscall", "<u4"), ("syscall_argument", "<u8")]
)
LOOK = np.dtype([("t_ns", "<u8"), ("tgid_and_tid", "<u8")])
AWAY_COUNT = np.dtype([("n", "<i8"), ("padding", "<u8", (7,))])


def ring_pages(ring_bytes: int, page_bytes: int) -> int:
    """Pages of the smallest ring the kernel allows (a power of two of pages) that holds ``ring_bytes``.

    Raises:
        ValueError: ``ring_bytes`` is not positive.
    """
    if ring_bytes <= 0:
        raise ValueError(f"a ring of {ring_bytes} bytes cannot hold an event")
    pages = -(-ring_bytes // page_bytes)
    return 1 << (pages - 1).bit_length()


def layout_assertions(struct: str, dtype: np.dtype[np.void]) -> str:
    """C assertions: ``struct`` has the size of ``dtype`` and its fields, each at its offset, of its size."""
    lines = [_assertion(f"sizeof(struct {struct}) == {dtype.itemsize}", f"size of struct {struct}")]
    fields = dtype.fields
    assert fields is not None
    for name, (field_type, offset, *_) in fields.items():
        lines.append(
            _assertion(f"__builtin_offsetof(struct {struct}, {name}) == {offset}", f"offset of {struct}.{name}")
        )
        size = f"sizeof(((struct {struct} *)0)->{name}) == {field_type.itemsize}"
        lines.append(_assertion(size, f"size of {struct}.{name}"))
    return "\n".join(lines) + "\n"


def _assertion(condition: str, what: str) -> str:
    return f'_Static_assert({condition}, "{what} differs between the C source and its numpy dtype");'


def compose(
    names: Iterable[str], *, n_cpus: int, event_ring_pages: int, syscall_ring_pages: int, allocation_ring_pages: int = 1
) -> str:
    """One translation unit with the probes ``names`` (already complete: see :func:`catalogue.with_required`).

    Args:
        names: probes of the catalogue; each file is taken once.
        n_cpus: possible CPUs of the host (the largest number + 1).
        event_ring_pages: pages of the ring for all events but system calls and allocations.
        syscall_ring_pages: pages of the ring for system calls.
        allocation_ring_pages: pages of the ring for allocations; there is none without that probe.

    Raises:
        KernelError: a C file is missing, or two files handle the same tracepoint.
    """
    selected = [CATALOGUE[name] for name in names]
    hooks = [hook for probe in selected for hook in probe.hooks]
    twice = sorted({str(hook) for hook in hooks if hooks.count(hook) > 1})
    if twice:
        raise KernelError(
            f"two probes handle the tracepoint {twice[0]}",
            "a tracepoint may have one handler: let one require the other",
        )
    constants = {
        name: value for name, value in vars(records).items() if name.startswith(_GENERATED) and isinstance(value, int)
    }
    constants |= {f"PROBE_{name.upper()}": probe_number(name) for name in PROBE_NAMES}
    constants |= {
        "N_PROBES": len(PROBE_NAMES),
        "N_CPUS": n_cpus,
        "MAX_WATCHED": MAX_WATCHED,
        "EVENT_RING_PAGES": event_ring_pages,
        "SYSCALL_RING_PAGES": syscall_ring_pages,
        "ALLOCATION_RING_PAGES": allocation_ring_pages,
    }
    parts = ["".join(f"#define {name} {value}\n" for name, value in constants.items())]
    parts.append(_read(COMMON_FILE))
    parts.append('#line 1 "generated/layout"\n')
    parts.append(layout_assertions("kernel_event", records.KERNEL_EVENT))
    parts.append(layout_assertions("watched_thread", WATCHED_THREAD))
    parts.append(layout_assertions("look", LOOK))
    parts.append(_assertion(f"COUNTERS_PER_PROBE == {COUNTERS_PER_PROBE}", "number of counters") + "\n")
    for file in dict.fromkeys(probe.file for probe in selected):
        parts.append(_read(file))
    if any(probe.name == "context_switch" for probe in selected):
        parts.append(layout_assertions("away_count", AWAY_COUNT))
    return "\n".join(parts)


def _read(file: str) -> str:
    path = PROBES_DIR / file
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise KernelError(
            f"the probe source {path} cannot be read: {error.strerror}",
            "run sysmeter from a complete checkout of the project",
        ) from error
    return f'#line 1 "probes/{file}"\n{text}'
