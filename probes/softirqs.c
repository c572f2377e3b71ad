/* Softirqs that run while a watched thread is the current task of their CPU: on the way out of an interrupt, or where
 * the thread itself lets them run at the end of a system call. Those that ksoftirqd runs are a preemption by it.
 *
 * Emits EVENT_SOFTIRQ at the exit: t_ns = the entry, value = ns from entry to exit, hard interrupts inside included,
 * detail = the softirq's number. Softirqs of one CPU do not nest.
 */

struct open_softirq {
	u64 t_ns;
	u32 tid; /* 0: nobody that is watched */
	u32 number;
};

BPF_PERCPU_ARRAY(open_softirqs, struct open_softirq, 1);

RAW_TRACEPOINT_PROBE(softirq_entry)
{
	u32 row = 0;
	u32 tid = current_tid();
	struct open_softirq *open = open_softirqs.lookup(&row);

	if (!open)
		return 0;
	open->tid = 0;
	if (!find_watched(tid, PROBE_SOFTIRQS))
		return 0;
	open->tid = tid;
	open->number = (u32)ctx->args[0];
	open->t_ns = bpf_ktime_get_ns();
	return 0;
}

RAW_TRACEPOINT_PROBE(softirq_exit)
{
	u32 row = 0;
	struct open_softirq *open = open_softirqs.lookup(&row);
	struct kernel_event *event;

	/* A thread watched only since the entry has no entry here. */
	if (!open || open->tid == 0 || open->number != (u32)ctx->args[0])
		return 0;
	event = begin_event(PROBE_SOFTIRQS, EVENT_SOFTIRQ, open->t_ns);
	if (event) {
		event->tid = open->tid;
		event->value = bpf_ktime_get_ns() - open->t_ns;
		event->detail = open->number;
		end_event(PROBE_SOFTIRQS, event);
	}
	open->tid = 0;
	return 0;
}
