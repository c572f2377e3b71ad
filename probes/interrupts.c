/* Hard interrupts that come while a watched thread is the current task of their CPU, whether it was in user mode or in
 * the kernel: what they take is taken from that thread.
 *
 * Emits EVENT_INTERRUPT at the exit: t_ns = the entry, value = ns from entry to exit, detail = INTERRUPT_*, value2 = the
 * vector, or the number of a device's interrupt. The time that the processor and the kernel need before the entry and
 * after the exit is not in it.
 *
 * Hard interrupts of one CPU do not nest (they run with interrupts off), so one open one per CPU is enough. Raw
 * tracepoints, because the other kind is skipped while one of our other programs is at work on the CPU.
 */

struct open_interrupt {
	u64 t_ns;
	u32 tid; /* 0: nobody that is watched */
	u32 kind;
};

BPF_PERCPU_ARRAY(open_interrupts, struct open_interrupt, 1);

static __always_inline int interrupt_begins(u32 kind)
{
	u32 row = 0;
	u32 tid = current_tid();
	struct open_interrupt *open = open_interrupts.lookup(&row);

	if (!open)
		return 0;
	open->tid = 0;
	if (!find_watched(tid, PROBE_INTERRUPTS))
		return 0;
	open->tid = tid;
	open->kind = kind;
	open->t_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int interrupt_ends(u32 kind, u64 number)
{
	u32 row = 0;
	struct open_interrupt *open = open_interrupts.lookup(&row);
	struct kernel_event *event;

	/* A thread watched only since the entry has no entry here. */
	if (!open || open->tid == 0 || open->kind != kind)
		return 0;
	event = begin_event(PROBE_INTERRUPTS, EVENT_INTERRUPT, open->t_ns);
	if (event) {
		event->tid = open->tid;
		event->value = bpf_ktime_get_ns() - open->t_ns;
		event->value2 = number;
		event->detail = kind;
		end_event(PROBE_INTERRUPTS, event);
	}
	open->tid = 0;
	return 0;
}

RAW_TRACEPOINT_PROBE(local_timer_entry)
{
	return interrupt_begins(INTERRUPT_LOCAL_TIMER);
}

RAW_TRACEPOINT_PROBE(local_timer_exit)
{
	return interrupt_ends(INTERRUPT_LOCAL_TIMER, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(reschedule_entry)
{
	return interrupt_begins(INTERRUPT_RESCHEDULE);
}

RAW_TRACEPOINT_PROBE(reschedule_exit)
{
	return interrupt_ends(INTERRUPT_RESCHEDULE, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(call_function_entry)
{
	return interrupt_begins(INTERRUPT_CALL_FUNCTION);
}

RAW_TRACEPOINT_PROBE(call_function_exit)
{
	return interrupt_ends(INTERRUPT_CALL_FUNCTION, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(call_function_single_entry)
{
	return interrupt_begins(INTERRUPT_CALL_FUNCTION_SINGLE);
}

RAW_TRACEPOINT_PROBE(call_function_single_exit)
{
	return interrupt_ends(INTERRUPT_CALL_FUNCTION_SINGLE, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(irq_work_entry)
{
	return interrupt_begins(INTERRUPT_IRQ_WORK);
}

RAW_TRACEPOINT_PROBE(irq_work_exit)
{
	return interrupt_ends(INTERRUPT_IRQ_WORK, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(x86_platform_ipi_entry)
{
	return interrupt_begins(INTERRUPT_PLATFORM);
}

RAW_TRACEPOINT_PROBE(x86_platform_ipi_exit)
{
	return interrupt_ends(INTERRUPT_PLATFORM, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(thermal_apic_entry)
{
	return interrupt_begins(INTERRUPT_THERMAL);
}

RAW_TRACEPOINT_PROBE(thermal_apic_exit)
{
	return interrupt_ends(INTERRUPT_THERMAL, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(spurious_apic_entry)
{
	return interrupt_begins(INTERRUPT_SPURIOUS);
}

RAW_TRACEPOINT_PROBE(spurious_apic_exit)
{
	return interrupt_ends(INTERRUPT_SPURIOUS, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(error_apic_entry)
{
	return interrupt_begins(INTERRUPT_ERROR);
}

RAW_TRACEPOINT_PROBE(error_apic_exit)
{
	return interrupt_ends(INTERRUPT_ERROR, ctx->args[0]);
}

RAW_TRACEPOINT_PROBE(irq_handler_entry)
{
	return interrupt_begins(INTERRUPT_DEVICE);
}

RAW_TRACEPOINT_PROBE(irq_handler_exit)
{
	return interrupt_ends(INTERRUPT_DEVICE, ctx->args[0]);
}
