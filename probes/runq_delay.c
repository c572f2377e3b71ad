/* Wake-ups of watched threads: the start of their wait for a CPU. Its end is the switch-in, and a preempted
 * thread's wait starts at its switch-out; both come from context_switch.c, which this probe requires.
 *
 * Emits EVENT_WAKEUP: tid and comm of the thread woken, other_* of the task during which the wake-up was
 * completed, value = the CPU it was put on. That task is the waker, except where the wake-up was handed to
 * another CPU or came from an interrupt: then it is whoever was interrupted.
 */

TRACEPOINT_PROBE(sched, sched_wakeup)
{
	u64 t_ns = bpf_ktime_get_ns();
	u32 tid = args->pid;
	struct kernel_event *event;

	if (!find_watched(tid, PROBE_RUNQ_DELAY))
		return 0;
	event = begin_event(PROBE_RUNQ_DELAY, EVENT_WAKEUP, t_ns);
	if (!event)
		return 0;
	event->tid = tid;
	event->other_tid = current_tid();
	event->value = args->target_cpu;
	__builtin_memcpy(event->comm, args->comm, COMM_BYTES);
	bpf_get_current_comm(&event->other_comm, COMM_BYTES);
	end_event(PROBE_RUNQ_DELAY, event);
	return 0;
}
