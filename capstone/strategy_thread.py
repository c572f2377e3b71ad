"""The strategy thread: spins, drains what it sees as one batch, keeps the book, decides, and times it all."""

from __future__ import annotations

from capstone import combination, layout
from capstone.compiled import compiled, record_value, words
from capstone.edges import close_window, open_window
from capstone.feedfile import KIND_DELETE
from capstone.gaps import keep_gap
from capstone.gaps import n_words as n_gap_words
from capstone.quoter import wanted_quote
from capstone.tail_store import n_words as n_tail_words
from capstone.tail_store import offer_batch
from capstone.unsafe import clock_ns, load_acquire, store_release
from sysmeter.buckets import N_STATS
from sysmeter.records import GAP_IN_BATCH, GAP_IN_SPIN

_queue = combination.component("queue")
_available = _queue.available
_first = _queue.first
_read = _queue.read
_release = _queue.release
_N_QUEUE_WORDS = _queue.n_words()
_book = combination.component("book")
_apply = _book.apply
_clear = _book.clear
_top = _book.top
_stall = combination.component("stall")
_arm_stall = _stall.arm
_stall_is_due = _stall.is_due
_spin_stall = _stall.spin
_note_waiting = _stall.note_waiting

_N_GAP_WORDS = n_gap_words()
_N_TAIL_WORDS = n_tail_words()
_P = layout
_STOP_BYTES = layout.STOP * 8
_FEED_DONE_BYTES = layout.FEED_DONE * 8
_FEED_READY_BYTES = layout.FEED_READY * 8
_STRATEGY_READY_BYTES = layout.STRATEGY_READY * 8
_STRATEGY_DONE_BYTES = layout.STRATEGY_DONE * 8
_BATCH_WORDS = layout.BATCH_WORDS
_DECISION_WORDS = layout.DECISION_WORDS
_BUCKET_WORDS = layout.BUCKET_WORDS
_N_STATS = N_STATS
_CLOCK_MASK = layout.MESSAGES_PER_CLOCK_READ - 1
_STRATEGY_OPEN = layout.STRATEGY_OPEN
_STRATEGY_CLOSE = layout.STRATEGY_CLOSE
_GAP_IN_SPIN = GAP_IN_SPIN
_GAP_IN_BATCH = GAP_IN_BATCH

# States of the feed handler. After a gap there is no way back: the replay has no snapshot to recover from.
WAITING, LIVE, GAP = 0, layout.HANDLER_LIVE, 2

_LOW_32 = 0xFFFFFFFF
_DELETE = KIND_DELETE


@compiled
def run_strategy(parameters_at):
    """Take every released message. The argument is the address of the parameter words, see layout."""
    p = words(parameters_at, _P.N_PARAMETERS)
    queue_at = p[_P.QUEUE_AT]
    queue = words(queue_at, _N_QUEUE_WORDS)
    book = words(p[_P.BOOK_AT], 1 << 40)
    releases = words(p[_P.RELEASES_AT], p[_P.N_RELEASE_SLOTS])
    release_mask = p[_P.RELEASE_MASK]
    batches = words(p[_P.BATCHES_AT], (p[_P.N_BATCH_SLOTS] + 1) * _BATCH_WORDS)
    decisions = words(p[_P.DECISIONS_AT], p[_P.N_BATCH_SLOTS] * _DECISION_WORDS)
    gaps = words(p[_P.GAPS_STRATEGY_AT], _N_GAP_WORDS)
    tail = words(p[_P.TAIL_AT], _N_TAIL_WORDS)
    think = words(p[_P.THINK_AT], p[_P.N_HISTOGRAM_BUCKETS])
    total = words(p[_P.TOTAL_AT], p[_P.N_HISTOGRAM_BUCKETS])
    think_stats = words(p[_P.THINK_STATS_AT], _N_STATS)
    total_stats = words(p[_P.TOTAL_STATS_AT], _N_STATS)
    buckets = words(p[_P.TIME_BUCKETS_AT], p[_P.N_TIME_BUCKETS] * _BUCKET_WORDS)
    bucket_ns = p[_P.TIME_BUCKET_NS]
    n_buckets = p[_P.N_TIME_BUCKETS]
    full_storage = p[_P.FULL_STORAGE] != 0
    sub_bits = p[_P.SUB_BITS]
    gap_threshold_ns = p[_P.GAP_THRESHOLD_NS]
    stop_above_ns = p[_P.STOP_ABOVE_NS]
    n_warmup = p[_P.N_WARMUP]
    stall = words(p[_P.STALL_AT], p[_P.N_STALL_WORDS])
    n_before_edges = p[_P.N_BEFORE_EDGES]
    n_file = p[_P.N_FILE]
    n_instruments = p[_P.N_INSTRUMENTS]
    instrument = p[_P.INSTRUMENT]
    edges_at = p[_P.EDGES_AT]
    done_at = parameters_at + _FEED_DONE_BYTES

    state = WAITING
    expected_seq = 0
    closing_seq = 0
    inventory = 0
    n_popped = 0
    n_batches = 0
    n_decisions = 0
    sequence_gaps = 0
    duplicates = 0
    other_instruments = 0
    unknown_instruments = 0
    next_lap = n_file
    bucket = 0
    t_bucket_end_ns = 0
    t_last_batch_ns = 0
    opened = False

    store_release(parameters_at + _STRATEGY_READY_BYTES, 1)
    if p[_P.REHEARSAL] == 0:
        while load_acquire(parameters_at + _FEED_READY_BYTES) == 0:
            pass

    last_ns = clock_ns()
    while True:
        if n_popped >= n_before_edges and not opened:
            now_ns = clock_ns()
            if now_ns - last_ns > gap_threshold_ns:
                keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
            last_ns = open_window(edges_at, _STRATEGY_OPEN, True)
            opened = True
        if _stall_is_due(stall, last_ns):
            last_ns = _spin_stall(stall, gaps, last_ns, gap_threshold_ns)
            _note_waiting(stall, _available(queue_at, queue))
        # Read before the queue: what the feed thread pushed last is then seen below.
        feed_done = load_acquire(done_at)
        n = _available(queue_at, queue)
        now_ns = clock_ns()
        if now_ns - last_ns > gap_threshold_ns:
            keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
        last_ns = now_ns
        if n == 0:
            if feed_done != 0:
                break
            continue
        if not opened and n > n_before_edges - n_popped:
            # The window opens between two batches, and in time, whatever an unbounded queue may hold.
            n = n_before_edges - n_popped

        # ── think: from the pop to the decision ──
        t_popped_ns = now_ns
        n_applied = 0
        first_seq = 0
        last_seq = 0
        cursor, cursor_rest = _first(queue)
        for k in range(n):
            if k & _CLOCK_MASK == _CLOCK_MASK:
                now_ns = clock_ns()
                if now_ns - last_ns > gap_threshold_ns:
                    keep_gap(gaps, last_ns, now_ns, _GAP_IN_BATCH)
                last_ns = now_ns
            seq, word1, word2, t0_ns, cursor, cursor_rest = _read(queue, cursor, cursor_rest)
            if k == 0:
                first_seq = seq
            last_seq = seq
            if n_popped + k == next_lap:
                # The file starts over, and with it the market: what the last lap left in the book is void.
                next_lap += n_file
                _clear(book)
            if state == WAITING:
                state = LIVE
                expected_seq = seq
            if seq != expected_seq:
                if seq < expected_seq:
                    duplicates += 1
                    continue
                sequence_gaps += 1
                state = GAP
            expected_seq = seq + 1
            message_instrument = word1 & _LOW_32
            if message_instrument != instrument:
                if message_instrument < n_instruments:
                    other_instruments += 1
                else:
                    unknown_instruments += 1
                continue
            if state == LIVE:
                # Word 1 is instrument, side, kind; word 2 price and quantity, see capstone.feedfile.
                quantity = 0 if (word1 >> 40) & 0xFF == _DELETE else word2 >> 32
                _apply(book, (word1 >> 32) & 0xFF, word2 & _LOW_32, quantity)
                closing_seq = seq
                n_applied += 1
        bid_price, bid_quantity, ask_price, ask_quantity = _top(book)
        wanted_bid, wanted_ask = wanted_quote(bid_price, ask_price, inventory)
        now_ns = clock_ns()
        if now_ns - last_ns > gap_threshold_ns:
            keep_gap(gaps, last_ns, now_ns, _GAP_IN_BATCH)
        last_ns = now_ns
        t_decided_ns = now_ns if state == LIVE else -1

        # ── after the decision: the records ──
        at = n_batches * _BATCH_WORDS if full_storage else 0
        batches[at] = t_popped_ns
        batches[at + 1] = t_decided_ns
        batches[at + 2] = n_popped
        batches[at + 3] = n
        batches[at + 4] = first_seq
        batches[at + 5] = last_seq
        t_last_batch_ns = now_ns
        if state == LIVE:
            if n_applied > 0:
                if full_storage:
                    at = n_decisions * _DECISION_WORDS
                    decisions[at] = closing_seq
                    decisions[at + 1] = (bid_price & _LOW_32) | (bid_quantity << 32)
                    decisions[at + 2] = (ask_price & _LOW_32) | (ask_quantity << 32)
                    decisions[at + 3] = (wanted_bid & _LOW_32) | (wanted_ask << 32)
                n_decisions += 1
            if n_popped >= n_warmup:
                record_value(think, think_stats, t_decided_ns - t_popped_ns, sub_bits)
            first_k = max(0, n_warmup - n_popped)
            peak_ns = 0
            sum_ns = 0
            cursor, cursor_rest = _first(queue)
            for k in range(n):
                if k & _CLOCK_MASK == _CLOCK_MASK:
                    now_ns = clock_ns()
                    if now_ns - last_ns > gap_threshold_ns:
                        keep_gap(gaps, last_ns, now_ns, _GAP_IN_BATCH)
                    last_ns = now_ns
                seq, word1, word2, t0_ns, cursor, cursor_rest = _read(queue, cursor, cursor_rest)
                if k < first_k:
                    continue
                response_ns = t_decided_ns - t0_ns
                record_value(total, total_stats, response_ns, sub_bits)
                sum_ns += response_ns
                peak_ns = max(peak_ns, response_ns)
            if first_k < n:
                if not full_storage:
                    offer_batch(tail, peak_ns, batches, releases, release_mask)
                    if t_bucket_end_ns == 0:
                        p[_P.T_TIME_BUCKETS] = t_decided_ns
                        t_bucket_end_ns = t_decided_ns + bucket_ns
                    while t_decided_ns >= t_bucket_end_ns and bucket < n_buckets - 1:
                        t_bucket_end_ns += bucket_ns
                        bucket += 1
                    at = bucket * _BUCKET_WORDS
                    buckets[at] += n - first_k
                    buckets[at + 1] += 1
                    buckets[at + 2] += sum_ns
                    buckets[at + 3] = max(buckets[at + 3], peak_ns)
                if peak_ns > stop_above_ns and p[_P.STOPPED_ABOVE] == 0:
                    p[_P.STOPPED_ABOVE] = 1
                    store_release(parameters_at + _STOP_BYTES, 1)
        if n_batches == 0:
            _arm_stall(stall, p[_P.T_START])
        n_batches += 1
        n_popped += n
        _release(queue_at, queue, n)

    if opened:
        close_window(edges_at, _STRATEGY_CLOSE, True)
    p[_P.N_POPPED] = n_popped
    p[_P.N_BATCHES] = n_batches
    p[_P.N_DECISIONS] = n_decisions
    p[_P.SEQUENCE_GAPS] = sequence_gaps
    p[_P.DUPLICATES] = duplicates
    p[_P.OTHER_INSTRUMENTS] = other_instruments
    p[_P.UNKNOWN_INSTRUMENTS] = unknown_instruments
    p[_P.HANDLER_STATE] = state
    p[_P.T_LAST_BATCH] = t_last_batch_ns
    store_release(parameters_at + _STRATEGY_DONE_BYTES, 1)
