"""What each cause is, how it is measured, and what one can do about it: the words of `diagnose --explain`."""

from __future__ import annotations

from typing import NamedTuple

from sysmeter.report.layout import MIN_WIDTH, wrap


class Explanation(NamedTuple):
    """``is_what``, ``measured`` and ``remedy`` are a paragraph each."""

    is_what: str
    measured: str
    remedy: str


EXPLANATIONS: dict[str, Explanation] = {
    "voluntary": Explanation(
        "The thread gave up the CPU itself: it slept or waited inside a system call (named), or for a page to be"
        " read in.",
        "sched_switch away from the thread with a sleeping state, to its wake-up (sched_wakeup). The call is the"
        " last one it entered before (raw_syscalls:sys_enter), with the address of a futex or the number of a"
        " descriptor.",
        "A low-latency thread does not block: spin or poll instead of waiting, use lock-free queues in place of"
        " mutexes, move logging and I/O to another thread. For a futex, look up whose lock the address is.",
    ),
    "preempted": Explanation(
        "The scheduler gave the thread's CPU to the named task (comm/tid), though the thread wanted to run on.",
        "sched_switch away from the thread in the state 'running', to its switch back; each task that ran on this"
        " CPU meanwhile is named with its own time.",
        "Keep others off the CPU: isolcpus= or a cpuset partition of its own, taskset for daemons,"
        " workqueue.cpumask for kworkers, rcu_nocbs= for RCU threads, IRQ affinity for interrupt threads."
        " SCHED_FIFO is no cure on small hosts: the kernel takes the CPU back from it by force in long"
        " pieces.",
    ),
    "run queue": Explanation(
        "The thread was woken and waited until it got a CPU; the task that had the CPU meanwhile is named.",
        "sched_wakeup of the thread, to its switch-in.",
        "Give the thread a CPU of its own (isolcpus, cpuset), or do not let it sleep in the first place.",
    ),
    "throttled": Explanation(
        "The CPU quota of the thread's cgroup was used up; it stands still until the next period.",
        "sched_switch away from the running thread with the idle task next: nobody else wanted the CPU.",
        "Raise or remove the quota (cpu.max, or cpu.cfs_quota_us; in Kubernetes the CPU limit; in systemd"
        " CPUQuota=), or pin to whole CPUs without a quota. cpu.stat counts nr_throttled.",
    ),
    "stopped": Explanation(
        "The process was stopped by a signal (SIGSTOP, SIGTSTP) or by a tracer (a debugger, strace).",
        "sched_switch away from the thread in the state 'stopped' or 'traced', to its wake-up.",
        "Find out who sends the signal (auditd, bpftrace on signal:signal_generate); do not attach tracers while"
        " measuring.",
    ),
    "migration": Explanation(
        "The thread was moved from one CPU to another, by the balancer or because its affinity was changed. Its"
        " caches stay behind, and it may share the new CPU.",
        "sched_migrate_task inside a preemption; the time is the whole of that preemption, until it ran on the"
        " new CPU.",
        "Pin the thread (taskset, sched_setaffinity, cpuset) and find out who changes its affinity: container"
        " runtimes and cpuset managers do.",
    ),
    "hard interrupt": Explanation(
        "The CPU handled an interrupt while the thread was running: the local timer (scheduler tick), a"
        " reschedule or call-function interrupt from another CPU, or a device (named as in /proc/interrupts).",
        "irq_vectors:*_entry to *_exit and irq:irq_handler_entry to _exit on the thread's CPU, and the edges"
        " around them: what the processor needs to enter and leave, measured in this run for each kind.",
        "Timer: nohz_full= with one task a CPU. Call function: membarrier, TLB shoot-downs (munmap, mprotect,"
        " madvise) and perf in other threads of the process cause it. Device: IRQ affinity"
        " (/proc/irq/N/smp_affinity, irqbalance banned from the CPU). In a virtual machine each interrupt may cost"
        " an exit to the hypervisor.",
    ),
    "softirq": Explanation(
        "The kernel ran deferred work (TIMER, NET_RX, SCHED, RCU …) on the thread's CPU, in the thread's time.",
        "irq:softirq_entry to softirq_exit while the thread was the current task; interrupts inside are charged apart.",
        "Keep what raises it off the CPU: network queues and RPS (NET_RX), IRQ affinity, rcu_nocbs= (RCU),"
        " nohz_full= (TIMER, SCHED).",
    ),
    "page fault": Explanation(
        "The thread touched a page that was not mapped, and the kernel mapped it (minor) or read it (major).",
        "exceptions:page_fault_user and _kernel on the thread; the tracepoint has no end, so the time is bounded"
        " by the thread's own next clock read, its next trap, and half a millisecond.",
        "Touch all memory before the window and lock it (mlockall), avoid madvise(MADV_DONTNEED), free() that"
        " trims the heap (M_TRIM_THRESHOLD) and NUMA balancing; use huge pages with care (compaction).",
    ),
    "system call": Explanation(
        "The thread was in the named system call without leaving the CPU.",
        "raw_syscalls:sys_enter on the thread; bounded like a page fault, as the end is not recorded.",
        "Move the call out of the hot path. gettimeofday and clock_gettime are no system calls where the clock"
        " source is fast (see the line 'clock').",
    ),
    "collection": Explanation(
        "Python's garbage collector ran in the process, in the measured thread or in one that held the"
        " interpreter lock.",
        "gc.callbacks, before and after each collection; cross-checked with gc.get_stats(). Beside threads that"
        " hold no lock (the compiled loop) a collection is concurrent, never a cause.",
        "gc.freeze() after warm-up, a higher gc.set_threshold(), gc.disable() with collections at quiet times,"
        " fewer reference cycles. `sysmeter live --compare-gc` shows what each does.",
    ),
    "interpreter lock": Explanation(
        "The thread waited for Python's global interpreter lock, which another thread of the process held.",
        "Off the CPU by its own will, in futex at an address inside the interpreter's own state (_PyRuntime).",
        "Move other Python work to another process, or into code that releases the lock; a smaller"
        " sys.setswitchinterval() gives it back sooner.",
    ),
    "injected stall": Explanation(
        "The run was asked to stall the thread (--stall-every), or a self-test did.",
        "The loop notes begin and end of each stall itself.",
        "None: it is there to show what a stall does.",
    ),
    "queue full": Explanation(
        "The queue had no room for the message, and the strategy thread was at work on older ones.",
        "From the intended time to the decision on the message one queue length ahead.",
        "A longer queue only moves the wait; make the service faster or the rate lower.",
    ),
    "outside the guest": Explanation(
        "The thread had the CPU, did not run, and the kernel saw nothing: the hypervisor ran something else, or"
        " handled an exit of this virtual CPU.",
        "Inferred: two clock reads of a spinning thread far apart, less all that the kernel saw in between, on a"
        " virtual machine, with every probe in place and nothing lost. A clock interrupt that was due inside must"
        " come late, which is checked and printed; where it did not, the time is unexplained. The steal column is"
        " printed beside it.",
        "Ask for dedicated or pinned virtual CPUs, or measure on bare metal. Inside the guest nothing helps but"
        " fewer exits: no timer ticks (nohz_full), no IPIs.",
    ),
    "sysmeter itself": Explanation(
        "This tool held the thread: its observer ran on the measured CPU, or the thread read its own witnesses.",
        "Switches to the observer's or the workload's other threads; the clock reads around the window's edges.",
        "Leave it a CPU that is not measured. What observation costs is printed with each run.",
    ),
    "backlog": Explanation(
        "The message waited behind older messages of its episode, which were being worked on. The cause of the"
        " episode is what made the queue.",
        "From its release (or its turn at the feed) until the thread had done what came before, less what held"
        " the thread.",
        "Look at the other causes of the episode; a faster service drains a backlog sooner.",
    ),
    "own service": Explanation(
        "The program's own work on the message: nothing else is known to have held the thread.",
        "The thread's own clock reads, which lie closer than the gap threshold; in a large batch, this run's pace.",
        "Make the code faster: this part is yours.",
    ),
    "unexplained": Explanation(
        "A gap in the thread's clock reads that no evidence covers. The line says why nothing is inferred: a"
        " probe that was off or lost events, a host that is no virtual machine (then: firmware, SMI, NMI), or a"
        " clock interrupt that contradicts the inference.",
        "What is left when all that is known is taken out. Nothing is rounded into another cause.",
        "Run with all default probes, and again if events were lost; on bare metal look at SMI counters"
        " (turbostat) and at perf for NMIs (nmi_watchdog=0).",
    ),
}


def render_explanation(cause: str, width: int) -> str:
    """The explanation of a cause, whose name is a key of :data:`EXPLANATIONS`."""
    width = max(width, MIN_WIDTH)
    found = EXPLANATIONS[cause]
    lines = [cause]
    for label, text in (("what", found.is_what), ("measured", found.measured), ("remedy", found.remedy)):
        lines += wrap(text, width, f"  {label:<9} ")
    return "\n".join(lines)
