/* Moves of watched threads from one CPU to another.
 *
 * Emits EVENT_MIGRATION: tid = the thread, value = the CPU it goes to, value2 = the one it comes from, other_* = the
 * task that carries the move out (of a running thread its CPU's migration thread, of a woken one the waker).
 */

TRACEPOINT_PROBE(sched, sched_migrate_task)
{
	u64 t_ns = bpf_ktime_get_ns();
	struct kernel_event *event;

	if (!find_watched(args->pid, PROBE_MIGRATIONS))
		return 0;
	event = begin_event(PROBE_MIGRATIONS, EVENT_MIGRATION, t_ns);
	if (!event)
		return 0;
	event->tid = args->pid;
	event->other_tid = current_tid();
	event->value = args->dest_cpu;
	event->value2 = args->orig_cpu;
	bpf_get_current_comm(&event->other_comm, COMM_BYTES);
	end_event(PROBE_MIGRATIONS, event);
	return 0;
}
