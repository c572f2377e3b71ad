/* Calls of libc's allocator by watched threads: malloc, calloc, realloc, free, at their entry. A call that one of them
 * makes of another in turn (realloc of nothing is a malloc) is an event of its own. Not aligned_alloc and its kin.
 *
 * Emits EVENT_ALLOCATION: value = the function, ALLOCATION_*; value2 = bytes asked for, 0 for free.
 *
 * Uprobes: a trap of a microsecond or more at each call, for every thread of the process they are attached to. And
 * unlike the programs at tracepoints these can be preempted half-way, by another thread's: they count atomically.
 */

#include <uapi/linux/ptrace.h>

/* A ring of its own: a flood of calls must not push out anything else. */
BPF_RINGBUF_OUTPUT(allocation_ring, ALLOCATION_RING_PAGES);

static __always_inline void count_allocation(u32 counter)
{
	u32 row = PROBE_ALLOCATIONS * COUNTERS_PER_PROBE + counter;
	u64 *value = counters.lookup(&row);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline int emit_allocation(u32 function, u64 n_bytes)
{
	u32 tid = current_tid();
	struct kernel_event *event;

	if (!find_watched(tid, PROBE_ALLOCATIONS))
		return 0;
	event = allocation_ring.ringbuf_reserve(sizeof(struct kernel_event));
	if (!event) {
		count_allocation(COUNTER_LOST);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->t_ns = bpf_ktime_get_ns();
	event->kind = EVENT_ALLOCATION;
	event->cpu = bpf_get_smp_processor_id();
	event->tid = tid;
	event->value = function;
	event->value2 = n_bytes;
	bpf_get_current_comm(&event->comm, COMM_BYTES);
	count_allocation(COUNTER_EVENTS);
	allocation_ring.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

int uprobe__libc__malloc(struct pt_regs *ctx)
{
	return emit_allocation(ALLOCATION_MALLOC, PT_REGS_PARM1(ctx));
}

int uprobe__libc__calloc(struct pt_regs *ctx)
{
	return emit_allocation(ALLOCATION_CALLOC, PT_REGS_PARM1(ctx) * PT_REGS_PARM2(ctx));
}

int uprobe__libc__realloc(struct pt_regs *ctx)
{
	return emit_allocation(ALLOCATION_REALLOC, PT_REGS_PARM2(ctx));
}

int uprobe__libc__free(struct pt_regs *ctx)
{
	return emit_allocation(ALLOCATION_FREE, 0);
}
