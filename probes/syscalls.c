/* System calls entered by watched threads. Calls that the vDSO answers in user space are not system calls.
 *
 * Emits EVENT_SYSCALL: value = number of the call, value2 = its first argument (for futex the address of the lock), 0
 * where this architecture's registers are not known here or could not be read. Both also stay with the thread, so that a
 * switch can say which call it sleeps in even where a flood of calls has filled the ring.
 *
 * A raw tracepoint: it costs less at every call of every process on the host, and, unlike the other kind, does not
 * make the kernel skip our other programs when an interrupt arrives while it runs.
 */

#include <uapi/linux/ptrace.h>

/* The registers as the kernel saved them: what the system call was given. Source: syscall(2), "Architecture calling
 * conventions". On arm64 the return value takes the first argument's register, so the kernel keeps a copy of it. */
static __always_inline u64 first_argument(struct pt_regs *registers)
{
	u64 argument = 0;

#if defined(__x86_64__)
	bpf_probe_read_kernel(&argument, sizeof(argument), &registers->di);
#elif defined(__aarch64__)
	bpf_probe_read_kernel(&argument, sizeof(argument), &registers->orig_x0);
#endif
	return argument;
}

RAW_TRACEPOINT_PROBE(sys_enter)
{
	u32 tid = current_tid();
	u64 argument;
	struct watched_thread *thread = find_watched(tid, PROBE_SYSCALLS);
	struct kernel_event *event;

	if (!thread)
		return 0;
	argument = first_argument((struct pt_regs *)ctx->args[0]);
	thread->syscall = 1 + (u32)ctx->args[1];
	thread->syscall_argument = argument;
	event = syscall_ring.ringbuf_reserve(sizeof(struct kernel_event));
	if (!event) {
		count(PROBE_SYSCALLS, COUNTER_LOST);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->t_ns = bpf_ktime_get_ns();
	event->kind = EVENT_SYSCALL;
	event->cpu = bpf_get_smp_processor_id();
	event->tid = tid;
	event->value = ctx->args[1];
	event->value2 = argument;
	bpf_get_current_comm(&event->comm, COMM_BYTES);
	count(PROBE_SYSCALLS, COUNTER_EVENTS);
	syscall_ring.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}
