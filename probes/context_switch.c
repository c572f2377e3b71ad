/* Switches on every CPU that a watched thread leaves, enters, or is away from.
 *
 * Emits EVENT_SWITCH: tid and comm of the task that leaves, other_* of the one that comes, value = prev_state as
 * the kernel gave it, detail and value2 = the system call a watched thread entered last. While a watched thread is
 * away, the switches among the tasks that run in its place are emitted too, so that user space can tell who had
 * the CPU.
 *
 * The chain. On one CPU the task that comes in one switch must be the task that leaves in the next. Where it is not,
 * a switch in between was not seen: the record carries FLAG_BROKEN_LINK, and the break is counted if a
 * watched thread was on this CPU or away from it. The chain is followed from the moment of attachment, so
 * the first switch after a thread is watched is judged like any other.
 */

/* prev_state of a task that will not run again: EXIT_DEAD, EXIT_ZOMBIE. */
#define STATE_GONE 0x30

#define LINK_KNOWN (1ULL << 32)

/* Per CPU: LINK_KNOWN | tid of the task that came in the last switch; 0 before the first one. */
BPF_PERCPU_ARRAY(last_in, u64, 1);

/* How many watched threads are away from a CPU. Not per-CPU in BPF's sense, because a thread that comes
 * back elsewhere is taken off the account of the CPU it left. A cache line each. */
struct away_count {
	s64 n;
	u64 padding[7];
};
BPF_ARRAY(away, struct away_count, N_CPUS);

static __always_inline void add_away(u32 cpu, s64 change)
{
	struct away_count *account = away.lookup(&cpu);

	if (account)
		__sync_fetch_and_add(&account->n, change);
	else
		count(PROBE_CONTEXT_SWITCH, COUNTER_FAILED);
}

static __always_inline void settle(struct watched_thread *thread)
{
	if (thread->place == PLACE_AWAY)
		add_away(thread->cpu, -1);
}

static __always_inline void mark_away(struct watched_thread *thread, u32 cpu)
{
	settle(thread);
	thread->cpu = cpu;
	thread->place = PLACE_AWAY;
	add_away(cpu, 1);
}

static __always_inline void mark_running(struct watched_thread *thread, u32 cpu)
{
	settle(thread);
	thread->cpu = cpu;
	thread->place = PLACE_RUNNING;
}

/* A thread that exits is forgotten: its number may be given to another task. */
static __always_inline void forget(struct watched_thread *thread, u32 tid)
{
	settle(thread);
	thread->place = PLACE_UNKNOWN;
	if (watched.delete(&tid))
		count(PROBE_CONTEXT_SWITCH, COUNTER_FAILED);
}

TRACEPOINT_PROBE(sched, sched_switch)
{
	u64 t_ns = bpf_ktime_get_ns();
	u32 cpu = bpf_get_smp_processor_id();
	u32 prev = args->prev_pid;
	u32 next = args->next_pid;
	s64 prev_state = args->prev_state;
	u32 row = 0;
	u32 expected = prev;
	bool broken = false;
	bool concerned = false;
	u64 *link = last_in.lookup(&row);
	struct away_count *account = away.lookup(&cpu);
	struct watched_thread *thread;
	struct kernel_event *event;
	u32 syscall = 0;
	u64 argument = 0;

	if (!link || !account) {
		count(PROBE_CONTEXT_SWITCH, COUNTER_FAILED);
		return 0;
	}
	if (*link & LINK_KNOWN)
		expected = (u32)*link;
	broken = expected != prev;
	*link = LINK_KNOWN | next;

	if (account->n > 0)
		concerned = true;
	if (broken) {
		/* A watched thread that ran here has left without being seen. If it was seen elsewhere since, that stands. */
		thread = find_watched(expected, PROBE_CONTEXT_SWITCH);
		if (thread) {
			concerned = true;
			if (thread->place == PLACE_UNKNOWN || (thread->place == PLACE_RUNNING && thread->cpu == cpu))
				mark_away(thread, cpu);
		}
	}
	thread = find_watched(prev, PROBE_CONTEXT_SWITCH);
	if (thread) {
		concerned = true;
		syscall = thread->syscall;
		argument = thread->syscall_argument;
		if (prev_state & STATE_GONE)
			forget(thread, prev);
		else
			mark_away(thread, cpu);
	}
	if (broken && concerned)
		count(PROBE_CONTEXT_SWITCH, COUNTER_BROKEN_LINKS);
	thread = find_watched(next, PROBE_CONTEXT_SWITCH);
	if (thread) {
		concerned = true;
		mark_running(thread, cpu);
	}
	if (!concerned)
		return 0;

	event = begin_event(PROBE_CONTEXT_SWITCH, EVENT_SWITCH, t_ns);
	if (!event)
		return 0;
	event->tid = prev;
	event->other_tid = next;
	event->value = prev_state;
	event->value2 = argument;
	event->detail = syscall;
	__builtin_memcpy(event->comm, args->prev_comm, COMM_BYTES);
	__builtin_memcpy(event->other_comm, args->next_comm, COMM_BYTES);
	event->flags = broken ? FLAG_BROKEN_LINK : 0;
	end_event(PROBE_CONTEXT_SWITCH, event);
	return 0;
}
