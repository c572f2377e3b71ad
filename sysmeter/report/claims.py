"""The part of the report about claims: zero counters with their witnesses, who took the CPU, the probes."""

from __future__ import annotations

from typing import Any

from sysmeter.report.layout import cells, columns, count, plural, printable, wrap
from sysmeter.units import format_ns

_THREAD_ROWS = (
    ("voluntary_switches", "voluntary switches"),
    ("involuntary_switches", "involuntary switches"),
    ("minor_faults", "minor faults"),
    ("major_faults", "major faults"),
    ("syscalls", "system calls"),
    ("migrations", "migrations"),
    ("runq_delay_ns", "run-queue delay"),
    ("allocations", "allocations"),  # in an audit only
)
_PROCESS_ROWS = (("allocations", "allocations"), ("gc_collections", "collections"))
_WIDTHS = (-25, -21, -1)
_MAX_TASKS = 5
_MAX_SYSCALLS = 5


def claim_lines(result: dict[str, Any], width: int) -> list[str]:
    """The zero counters: value and source, witness and its value, and whether they agree; reasons below."""
    notes: list[str] = []
    lines = wrap("Zero counters: each from two independent sources, over the thread's own window", width)
    lines += _thread_rows(result, notes, width)
    process = result["counters"]["process"]
    audited = "libc" in (process["allocations"].get("sources") or [])
    interval = "in the threads' windows" if audited else "in the whole loop, warm-up included"
    lines.append(f"  process (allocations: {interval})")
    lines += _rows(process, _PROCESS_ROWS, notes, width)
    lines += _source_lines(process["allocations"], width)
    return lines + _numbered(notes, width)


def live_claim_lines(result: dict[str, Any], width: int) -> list[str]:
    """The counters of a live run. None of them is meant to be zero."""
    notes: list[str] = []
    lines = wrap("Counters: each from two independent sources, over the thread's own window", width)
    lines += _thread_rows(result, notes, width)
    lines.append("  process")
    lines += _rows(result["counters"]["process"], _PROCESS_ROWS, notes, width)
    return lines + _numbered(notes, width)


def _thread_rows(result: dict[str, Any], notes: list[str], width: int) -> list[str]:
    lines = []
    for thread in result["threads"]:
        lines.append(f"  {thread}")
        lines += _rows(result["counters"][thread], _THREAD_ROWS, notes, width)
    return lines


def _numbered(notes: list[str], width: int) -> list[str]:
    return [line for number, note in enumerate(notes, start=1) for line in wrap(note, width, f"  [{number}] ")]


def _rows(counters: dict[str, Any], rows: tuple[tuple[str, str], ...], notes: list[str], width: int) -> list[str]:
    lines: list[str] = []
    for key, label in rows:
        if key not in counters:
            continue
        found = counters[key]
        is_time = key.endswith("_ns")
        if found["status"] == "not_measured":
            lines.append(columns([f"    {label}", f"not measured {_note(found, notes)}", ""], _WIDTHS))
            continue
        witness, value = found["witness"], _value(found["value"], is_time)
        first = f"{value}  {found['source']}"
        if witness is None or witness["source"] == found["source"]:
            lines.append(columns([f"    {label}", first, _verdict(found, notes)], _WIDTHS))
            lines += _call_lines(found, width)
            continue
        second = f"{_value(witness['value'], is_time)}  {witness['source']}"
        line = columns([f"    {label}", first, f"{second}: {_verdict(found, notes)}"], _WIDTHS)
        if cells(line) > width:
            line = columns([f"    {label}", first, ""], _WIDTHS)
            lines += [line, *wrap(f"{second}: {_verdict(found, notes)}", width, " " * 8)]
        else:
            lines.append(line)
    return lines


def _call_lines(found: dict[str, Any], width: int) -> list[str]:
    """By function, what a thread called of the allocator, and which system calls that move memory it made."""
    calls = {**(found.get("calls") or {}), **(found.get("syscalls") or {})}
    made = [f"{name} {n:,}x" for name, n in calls.items() if n]
    return wrap(", ".join(made), width, " " * 8, " " * 10) if made else []


def _source_lines(allocations: dict[str, Any], width: int) -> list[str]:
    sources = allocations.get("sources")
    if not sources or "libc" in sources:
        return []
    words = f"allocations: counted by {' and '.join(sources)}'s own counter only; "
    reason = allocations.get("libc_reason")
    words += f"libc's calls were not, {reason}" if reason else "run --audit counts libc's calls"
    return wrap(words, width, " " * 8, " " * 10)


def _value(value: int | None, is_time: bool) -> str:
    if value is None:
        return "unknown"
    return format_ns(value) if is_time else f"{value:,}"


def _verdict(found: dict[str, Any], notes: list[str]) -> str:
    if found["status"] == "not_proven":
        return f"NOT PROVEN {_note(found, notes)}"
    if found["agrees"] is None:
        return f"cannot tell {_note(found, notes)}" if "tolerance_ns" in found else "one source only"
    if "tolerance_ns" in found:
        words = f"agree ±{format_ns(found['tolerance_ns'])}"
        return f"{words} {_note(found, notes)}" if found["reason"] else words
    if found["witness"]["value"] != found["value"] and (found["source"] == "BPF" or found.get("loop_calls")):
        return f"agree {_note(found, notes)}"
    return "agree"


def _note(found: dict[str, Any], notes: list[str]) -> str:
    if found["status"] == "measured" and found["reason"]:
        note = f"Note: {found['reason']}"
    elif found["status"] == "measured":
        note = "The rest fell into the window's edges, the instants in which the witness is read."
        if found.get("loop_calls"):
            note = (
                f"numba counts the warm-up too; over the whole loop libc's calls are {found['loop_calls']:,} as well."
            )
    else:
        lead = "Not measured" if found["status"] == "not_measured" else "Not proven"
        note = f"{lead}: {found['reason'] or 'no reason was recorded'}"
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"


def gc_line(result: dict[str, Any], width: int) -> list[str]:
    """p99, p99.9 and max of the response time, beside the collections of the same window."""
    total, collections = result["latency"]["total"], result["gc"]["collections"]
    shown = [
        f"{label} {format_ns(total[key])}"
        for label, key in (("p99", "p99_ns"), ("p99.9", "p99_9_ns"), ("max", "max_ns"))
    ]
    if collections is None:
        words = "collections not measured"
    else:
        by_generation = ", ".join(f"{n:,} of gen {k}" for k, n in enumerate(collections))
        words = f"collections in the window: {by_generation} (beside the loop, which holds no GIL)"
    return wrap(f"total {', '.join(shown)}; {words}", width, "", "  ")


def off_cpu_lines(result: dict[str, Any], width: int) -> list[str]:
    """For each thread: how long it was off the CPU and why, who ran instead, which system calls it made."""
    lines = wrap("Off the CPU, in the window", width)
    for name, thread in result["threads"].items():
        found = thread["off_cpu"]
        if found is None:
            reason = result["counters"][name]["involuntary_switches"]["reason"] or _probe_reason(result)
            lines += wrap(f"not measured: {reason}", width, f"  {name:<9} ")
            continue
        lines += _off_cpu_of_thread(name, found, width)
        lines += _syscall_lines(thread["syscalls"], width)
    return lines


def _probe_reason(result: dict[str, Any]) -> str:
    probe = (result["probes"] or {}).get("context_switch") or {}
    return probe.get("reason") or "kernel probes were off"


def _off_cpu_of_thread(name: str, found: dict[str, Any], width: int) -> list[str]:
    words = []
    for kind, row in found["kinds"].items():
        if row["count"]:
            words.append(
                f"{kind} {plural(row['count'], 'time')}, {format_ns(row['time_ns'])} "
                f"(longest {format_ns(row['max_ns'])})"
            )
    lines = wrap("; ".join(words) or "never", width, f"  {name:<9} ")
    indent = " " * 12
    preempted = found["kinds"]["preempted"]
    if preempted["count"]:
        lines += wrap("by " + _tasks(preempted["ran_instead"]), width, indent, indent + "   ")
    waits = [
        f"after a {what} {format_ns(row['time_ns'])} in {plural(row['count'], 'wait')}"
        for what, row in (
            ("wake-up", found["runq_after_wakeup"]),
            ("preemption", found["runq_after_preemption"]),
        )
        if row["count"]
    ]
    if waits:
        lines += wrap("run-queue delay " + ", ".join(waits), width, indent, indent + "   ")
    by_clock = sum(found["ended"][key] for key in ("gap_end", "ran_again", "no_gap"))
    if by_clock:
        n_all = sum(found["ended"].values())
        words_ = (
            f"{by_clock:,} of {plural(n_all, 'slice')} end at the thread's own next clock read: "
            "the switch back was not seen"
        )
        lines += wrap(words_, width, indent, indent + "   ")
    if found["switch_ins_without_switch_out"]:
        n_orphans = plural(found["switch_ins_without_switch_out"], "switch", "switches")
        lines += wrap(f"{n_orphans} back without a switch away before", width, indent)
    return lines


def _tasks(ran: dict[str, Any]) -> str:
    words = [
        f"{printable(row['task'])} {row['count']:,}x {format_ns(row['time_ns'])}" for row in ran["tasks"][:_MAX_TASKS]
    ]
    rest = ran["tasks"][_MAX_TASKS:]
    n_rest = len(rest) + ran["n_other_tasks"]
    if n_rest:
        time_ns = sum(row["time_ns"] for row in rest) + ran["other_time_ns"]
        words.append(f"{plural(n_rest, 'other')} {format_ns(time_ns)}")
    return ", ".join(words)


def _syscall_lines(rows: list[dict[str, Any]] | None, width: int) -> list[str]:
    if not rows:
        return []
    words = [f"{row['name'] or 'number ' + str(row['number'])} {row['count']:,}x" for row in rows[:_MAX_SYSCALLS]]
    if len(rows) > _MAX_SYSCALLS:
        words.append(f"{len(rows) - _MAX_SYSCALLS} others")
    return wrap("system calls: " + ", ".join(words), width, " " * 12, " " * 15)


def probe_lines(result: dict[str, Any], width: int) -> list[str]:
    """Each probe's status, with what it lost and missed and how many links of its chain were broken."""
    probes = result["probes"] or {}
    if not probes or all(probe["status"] == "off" for probe in probes.values()):
        return wrap("Probes: off. Kernel events were not measured.", width)
    name_width = max(cells(name) for name in probes) + 2
    widths = (-max(name_width, 18), -13, 12, 9, 9, 14)
    lines = [columns(["Probes", "status", "events", "lost", "missed", "broken links"], widths)]
    for name, probe in probes.items():
        numbers = [_number(probe.get(key)) for key in ("events", "lost", "missed", "broken_links")]
        if probe["status"] != "ok":
            numbers = [""] * 4
        lines.append(columns([f"  {name}", probe["status"], *numbers], widths))
        if probe.get("reason"):
            lines += wrap(str(probe["reason"]), width, " " * 4)
    return lines


def _number(value: int | None) -> str:
    return "-" if value is None else count(value)
