/* Page-fault traps taken by watched threads, in user mode and in kernel mode (a system call that touches a user
 * page not present). A page that is mapped without a trap, as MAP_POPULATE does, is not seen here.
 *
 * Emits EVENT_PAGE_FAULT: value = the address touched, value2 = the instruction, FLAG_KERNEL_MODE where due.
 */

static __always_inline int emit_fault(u64 address, u64 instruction, u32 flags)
{
	u64 t_ns = bpf_ktime_get_ns();
	u32 tid = current_tid();
	struct kernel_event *event;

	if (!find_watched(tid, PROBE_PAGE_FAULT))
		return 0;
	event = begin_event(PROBE_PAGE_FAULT, EVENT_PAGE_FAULT, t_ns);
	if (!event)
		return 0;
	event->tid = tid;
	event->value = address;
	event->value2 = instruction;
	event->flags = flags;
	bpf_get_current_comm(&event->comm, COMM_BYTES);
	end_event(PROBE_PAGE_FAULT, event);
	return 0;
}

TRACEPOINT_PROBE(exceptions, page_fault_user)
{
	return emit_fault(args->address, args->ip, 0);
}

TRACEPOINT_PROBE(exceptions, page_fault_kernel)
{
	return emit_fault(args->address, args->ip, FLAG_KERNEL_MODE);
}
