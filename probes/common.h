/* What every probe shares: the event record, the filter by thread, the rings and the counters.
 *
 * sysmeter/kernel/source.py puts this file in front of the selected probe files and compiles the whole as
 * one translation unit. Before it come lines generated from Python (so that each number has one home):
 *   EVENT_*, FLAG_*        kinds and flags of sysmeter/records.py; ALLOCATION_*, INTERRUPT_*: what they may concern
 *   PROBE_*                number of a probe: its bit in watched_thread.probes, its rows in `counters`
 *   N_PROBES, N_CPUS, MAX_WATCHED, EVENT_RING_PAGES, SYSCALL_RING_PAGES, ALLOCATION_RING_PAGES
 * and behind it assertions that struct kernel_event equals records.KERNEL_EVENT byte for byte.
 *
 * A probe file holds handlers only: TRACEPOINT_PROBE(category, event), RAW_TRACEPOINT_PROBE(event), or
 * uprobe__LIBRARY__FUNCTION(ctx), each in one file only. Map operations stand in functions, never in macros: bcc does not rewrite those.
 */

#define COMM_BYTES 16

struct kernel_event {
	u64 t_ns; /* bpf_ktime_get_ns: CLOCK_MONOTONIC of the initial time namespace */
	u32 kind;
	u32 cpu;
	u32 tid;
	u32 other_tid;
	s64 value;
	u64 value2;
	char comm[COMM_BYTES];
	char other_comm[COMM_BYTES];
	u32 flags;
	u32 detail;
};

/* Where a watched thread was when its last switch was seen. */
#define PLACE_UNKNOWN 0
#define PLACE_RUNNING 1
#define PLACE_AWAY 2

struct watched_thread {
	u32 probes; /* bit PROBE_x: events of probe x are wanted */
	u32 place;
	u32 cpu; /* the CPU it runs on, or from which it is away */
	u32 syscall; /* 1 + number of the system call it entered last; 0: none seen */
	u64 syscall_argument; /* the first of that call */
};

/* Key: tid as the initial pid namespace numbers it. */
BPF_HASH(watched, u32, struct watched_thread, MAX_WATCHED);

/* System calls have a ring of their own: a flood of them must not push out switches. */
BPF_RINGBUF_OUTPUT(event_ring, EVENT_RING_PAGES);
BPF_RINGBUF_OUTPUT(syscall_ring, SYSCALL_RING_PAGES);

/* Rows of `counters`: COUNTERS_PER_PROBE for each probe, in the order below. */
#define COUNTER_EVENTS 0 /* records handed to a ring */
#define COUNTER_LOST 1 /* records for which a ring had no room */
#define COUNTER_FAILED 2 /* updates of a map that failed: an event was not followed up */
#define COUNTER_BROKEN_LINKS 3
#define COUNTERS_PER_PROBE 4

BPF_PERCPU_ARRAY(counters, u64, N_PROBES * COUNTERS_PER_PROBE);

static __always_inline void count(u32 probe, u32 counter)
{
	u32 row = probe * COUNTERS_PER_PROBE + counter;
	u64 *value = counters.lookup(&row);

	if (value)
		*value += 1;
}

static __always_inline u32 current_tid(void)
{
	return (u32)bpf_get_current_pid_tgid();
}

/* The entry of `tid` if it is watched by `probe`, else NULL. The idle task, 0, is nobody's subject. */
static __always_inline struct watched_thread *find_watched(u32 tid, u32 probe)
{
	struct watched_thread *thread;

	if (tid == 0)
		return NULL;
	thread = watched.lookup(&tid);
	if (!thread || !(thread->probes & (1U << probe)))
		return NULL;
	return thread;
}

/* A zeroed record in the ring for everything but system calls; NULL, and counted as lost, when it is full. */
static __always_inline struct kernel_event *begin_event(u32 probe, u32 kind, u64 t_ns)
{
	struct kernel_event *event = event_ring.ringbuf_reserve(sizeof(struct kernel_event));

	if (!event) {
		count(probe, COUNTER_LOST);
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->t_ns = t_ns;
	event->kind = kind;
	event->cpu = bpf_get_smp_processor_id();
	return event;
}

/* No wake-up: an interrupt for the reader would land on the CPU that is being measured. */
static __always_inline void end_event(u32 probe, struct kernel_event *event)
{
	count(probe, COUNTER_EVENTS);
	event_ring.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Never attached: user space runs it to learn what BPF holds for the time and for the calling thread's id. */
struct look {
	u64 t_ns;
	u64 tgid_and_tid;
};

BPF_ARRAY(looks, struct look, 1);

int take_look(struct bpf_raw_tracepoint_args *ctx)
{
	u32 row = 0;
	struct look *look = looks.lookup(&row);

	if (look) {
		look->t_ns = bpf_ktime_get_ns();
		look->tgid_and_tid = bpf_get_current_pid_tgid();
	}
	return 0;
}
