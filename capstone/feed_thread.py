"""The feed thread: releases each message at its intended time (paced), or as fast as the queue takes it (flat)."""

from __future__ import annotations

from capstone import combination, layout
from capstone.compiled import compiled, words
from capstone.edges import close_window, open_window
from capstone.gaps import keep_gap
from capstone.gaps import n_words as n_gap_words
from capstone.unsafe import clock_ns, load_acquire, store_release
from sysmeter.records import GAP_IN_SPIN

_queue = combination.component("queue")
_has_room = _queue.has_room
_push = _queue.push
_N_QUEUE_WORDS = _queue.n_words()

_N_GAP_WORDS = n_gap_words()
_P = layout
_STOP_BYTES = layout.STOP * 8
_FEED_DONE_BYTES = layout.FEED_DONE * 8
_FEED_READY_BYTES = layout.FEED_READY * 8
_STRATEGY_READY_BYTES = layout.STRATEGY_READY * 8
_STRATEGY_DONE_BYTES = layout.STRATEGY_DONE * 8
_MESSAGE_WORDS = layout.MESSAGE_WORDS
_FEED_OPEN = layout.FEED_OPEN
_FEED_CLOSE = layout.FEED_CLOSE
_GAP_IN_SPIN = GAP_IN_SPIN

# The order to stop is looked for at each turn of a spin, and once in so many messages where none is due to spin.
_STOP_CHECK_MASK = layout.MESSAGES_PER_CLOCK_READ - 1

_START_DELAY_NS = layout.START_DELAY_NS


@compiled
def run_feed(parameters_at):
    """Release the planned messages. The argument is the address of the parameter words, see layout."""
    p = words(parameters_at, _P.N_PARAMETERS)
    n_file = p[_P.N_FILE]
    feed = words(p[_P.FEED_AT], n_file * _MESSAGE_WORDS)
    queue_at = p[_P.QUEUE_AT]
    queue = words(queue_at, _N_QUEUE_WORDS)
    releases = words(p[_P.RELEASES_AT], p[_P.N_RELEASE_SLOTS])
    release_mask = p[_P.RELEASE_MASK]
    gaps = words(p[_P.GAPS_FEED_AT], _N_GAP_WORDS)
    gap_threshold_ns = p[_P.GAP_THRESHOLD_NS]
    paced = p[_P.PACED] != 0
    n_planned = p[_P.N_PLANNED]
    n_warmup = p[_P.N_WARMUP]
    n_before_edges = p[_P.N_BEFORE_EDGES]
    seq_span = p[_P.SEQ_SPAN]
    rate_hz = p[_P.RATE_HZ]
    step_ns = 1_000_000_000 // rate_hz
    step_rest = 1_000_000_000 % rate_hz
    stop_at = parameters_at + _STOP_BYTES

    store_release(parameters_at + _FEED_READY_BYTES, 1)
    if p[_P.REHEARSAL] == 0:
        while load_acquire(parameters_at + _STRATEGY_READY_BYTES) == 0:
            pass

    full_waits = 0
    opened = False
    last_ns = clock_ns()
    # Intended time of message i is t_start + i*10**9 // rate: the division is carried along as a remainder.
    intended_ns = last_ns + _START_DELAY_NS if paced else last_ns
    rest = 0
    p[_P.T_START] = intended_ns
    in_file = 0
    seq_offset = 0
    message = 0
    stopped = False
    while message < n_planned:
        if message == n_before_edges and not opened:
            now_ns = clock_ns()
            if now_ns - last_ns > gap_threshold_ns:
                keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
            last_ns = open_window(p[_P.EDGES_AT], _FEED_OPEN, False)
            opened = True
        if message & _STOP_CHECK_MASK == 0 and load_acquire(stop_at) != 0:
            break
        if paced:
            now_ns = clock_ns()
            if now_ns - last_ns > gap_threshold_ns:
                keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
            last_ns = now_ns
            while now_ns < intended_ns:
                if load_acquire(stop_at) != 0:
                    stopped = True
                    break
                now_ns = clock_ns()
                if now_ns - last_ns > gap_threshold_ns:
                    keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
                last_ns = now_ns
            if stopped:
                break
        waited = False
        if not _has_room(queue_at, queue):
            full_waits += 1
            waited = True
            while not _has_room(queue_at, queue):
                now_ns = clock_ns()
                if now_ns - last_ns > gap_threshold_ns:
                    keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
                last_ns = now_ns
                if load_acquire(stop_at) != 0:
                    stopped = True
                    break
            if stopped:
                break
        if waited or not paced:
            # Paced: the spin's last read is the release, unless the queue was full meanwhile.
            now_ns = clock_ns()
            if now_ns - last_ns > gap_threshold_ns:
                keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
            last_ns = now_ns
        releases[message & release_mask] = last_ns
        if message == n_warmup:
            p[_P.T_FIRST_RELEASE] = last_ns
        t0_ns = intended_ns if paced else last_ns
        at = in_file * _MESSAGE_WORDS
        _push(queue_at, queue, feed[at] + seq_offset, feed[at + 1], feed[at + 2], t0_ns)
        intended_ns += step_ns
        rest += step_rest
        if rest >= rate_hz:
            rest -= rate_hz
            intended_ns += 1
        in_file += 1
        if in_file == n_file:
            in_file = 0
            seq_offset += seq_span
        message += 1

    now_ns = clock_ns()
    if now_ns - last_ns > gap_threshold_ns:
        keep_gap(gaps, last_ns, now_ns, _GAP_IN_SPIN)
    if opened:
        close_window(p[_P.EDGES_AT], _FEED_CLOSE, False)
    p[_P.RING_FULL_WAITS] = full_waits
    p[_P.N_RELEASED] = message
    store_release(parameters_at + _FEED_DONE_BYTES, 1)
    if p[_P.REHEARSAL] == 0:
        # Leaving compiled code frees memory of Python's, which must not fall into the other thread's window.
        while load_acquire(parameters_at + _STRATEGY_DONE_BYTES) == 0:
            pass
