"""The live workload's parts: its orders, its plan, its store, the collector's policies, the real child process."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest

from sysmeter import host
from sysmeter.errors import UsageError, WorkloadError
from sysmeter.gcpolicy import GcPolicy, parse_policy
from sysmeter.hist import LatencyHistogram
from sysmeter.live.orders import GROUP, Order, OrderCache, build_message, parse_fields, split_message
from sysmeter.live.plan import MAX_MESSAGES, check_memory, make_plan
from sysmeter.live.store import MAX_GAPS, Store
from sysmeter.session import LiveSettings
from sysmeter.workload import Workload, own_python

MIB = 1 << 20


@pytest.fixture
def collector():
    """Automatic collection off for a test, and as it was before afterwards."""
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if was_enabled:
        gc.enable()


def test_a_message_is_tag_value_text_whose_checksum_and_length_are_right() -> None:
    for number in (0, 7, 123_456):
        text = build_message(number)
        fields = parse_fields(split_message(text))
        assert (fields[8], fields[35], fields[11]) == ("FIX.4.4", "D", f"ORD-{number:010d}")
        body = text[text.index("35=") : text.rindex("|10=")]
        assert int(fields[9]) == len(body)
        assert int(fields[10]) == sum(body.encode()) % 256


def test_the_cache_holds_the_last_orders_and_what_left_it_is_freed_by_the_collector_alone(collector) -> None:
    class Watched(Order):
        __slots__ = ("__weakref__",)

    cache = OrderCache(2 * GROUP)
    for number in range(4 * GROUP):
        cache.store(parse_fields(split_message(build_message(number))))
    assert len(cache) == 2 * GROUP
    assert cache.n_stored == 4 * GROUP
    orders = [found for found in gc.get_objects() if type(found) is Order]
    assert len(orders) == 4 * GROUP  # the first half is garbage, kept alive by its cycles
    del orders
    gc.collect()
    assert sum(type(found) is Order for found in gc.get_objects()) == 2 * GROUP
    order = Watched("a", parse_fields(split_message(build_message(1))), None)
    gone = weakref.ref(order)
    del order
    assert gone() is not None
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("default", GcPolicy("default")),
        ("off", GcPolicy("off")),
        ("freeze", GcPolicy("freeze")),
        ("threshold:1", GcPolicy("threshold", 1)),
        ("threshold:10000", GcPolicy("threshold", 10_000)),
    ],
)
def test_policies_are_read_and_written_alike(text: str, policy: GcPolicy) -> None:
    assert parse_policy(text) == policy
    assert str(policy) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "on", "off:1", "threshold", "threshold:", "threshold:0", "threshold:-5", "threshold:x", "threshold:²"),
        *("threshold:2147483648", "freeze ", "threshold:1.5"),
    ],
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no policy"):
        parse_policy(text)


def test_policies_do_what_they_say(collector) -> None:
    gc.enable()
    GcPolicy("off").apply()
    assert not gc.isenabled()
    GcPolicy("threshold", 123).apply()
    assert gc.get_threshold()[0] == 123
    assert gc.get_freeze_count() == 0
    GcPolicy("freeze").apply()
    assert gc.get_freeze_count() > 1_000


def plan_for(**changes: Any) -> Any:
    settings = {"rate_hz": 10_000, "seconds": 10.0, "warmup_seconds": 1.0, "mode": "paced", "gc": "default", **changes}
    return make_plan(settings)


def test_the_plan_counts_messages_and_takes_its_edge_early() -> None:
    plan = plan_for()
    assert (plan.n_messages, plan.n_warmup, plan.expected_ns) == (100_000, 10_000, 10 * 10**9)
    assert plan.n_before_edge == 10_000 - 50
    assert plan_for(rate_hz=10).n_before_edge == 9
    assert plan_for(warmup_seconds=0).n_before_edge == 0
    assert plan_for(mode="flat").n_before_edge == 10_000


def test_a_run_too_long_or_all_warm_up_is_refused() -> None:
    assert plan_for(seconds=MAX_MESSAGES / 10_000).n_messages == MAX_MESSAGES
    with pytest.raises(UsageError, match="every one is kept"):
        plan_for(seconds=MAX_MESSAGES / 10_000 + 1)
    with pytest.raises(UsageError, match="leaves nothing to measure"):
        plan_for(warmup_seconds=10)


def test_uncollected_orders_are_estimated_by_policy() -> None:
    assert plan_for(gc="off").n_uncollected(20_000, 6.0) == 100_000
    assert plan_for().n_uncollected(20_000, 6.0) < 25_000
    assert plan_for().n_uncollected(200_000, 6.0) == 50_000  # a quarter of the oldest generation
    assert plan_for(gc="threshold:10000000").n_uncollected(20_000, 6.0) == 100_000
    assert plan_for(gc="threshold:100").n_uncollected(100, 6.0) < plan_for().n_uncollected(100, 6.0)


def test_memory_beyond_the_hosts_is_refused_with_a_remedy() -> None:
    check_memory(79 * MIB, 100 * MIB, "it")
    check_memory(10**15, None, "it")
    with pytest.raises(UsageError, match="81 MiB, and 100 MiB") as refused:
        check_memory(81 * MIB, 100 * MIB, "it")
    assert "--gc default" in refused.value.hint


def test_gaps_beyond_the_room_are_counted_with_the_longest_of_them() -> None:
    store = Store(1)
    for number in range(MAX_GAPS):
        store.keep_gap(number, number + 1, 0)
    store.keep_gap(5, 500, 1)
    store.keep_gap(5, 50, 1)
    assert (len(store.gaps()), store.n_gaps_lost, store.longest_lost_ns) == (MAX_GAPS, 2, 495)
    assert store.gaps()[-1].tolist() == (MAX_GAPS - 1, MAX_GAPS, 0)
    store.forget()
    assert (len(store.gaps()), store.n_gaps_lost) == (0, 0)


def test_memory_that_is_available_is_what_the_kernel_says() -> None:
    available = host.available_memory_bytes()
    assert available is not None
    assert 0 < available <= host.describe_host([0])["memory_bytes"]


def test_one_cpu_is_chosen_as_two_are() -> None:
    assert host.choose_cpu(None) == host.allowed_cpus()[-1]
    assert host.choose_cpu(host.allowed_cpus()[0]) == host.allowed_cpus()[0]
    with pytest.raises(UsageError, match="does not exist") as refused:
        host.choose_cpu(100_000)
    assert "--cpu " in refused.value.hint


def run_live(**changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """(the "done" event, the arrays) of one run in the real child process."""
    base = {"seconds": 0.4, "warmup_seconds": 0.1, "orders": 500, **changes}
    settings = LiveSettings(cpus=(host.choose_cpu(None),), **base)
    described = {**settings.__dict__, "cpus": list(settings.cpus), "housekeeping_cpus": []}
    with Workload(own_python("sysmeter.live"), lambda _text: None) as workload:
        workload.send("prepare", settings=described)
        ready = workload.receive("ready")
        assert ready is not None
        workload.send("go")
        done = workload.receive("done")
        assert done is not None
        return done, workload.read_arrays(done["arrays"])


def test_each_message_is_begun_at_its_intended_time_or_later_and_both_times_are_recorded() -> None:
    done, arrays = run_live()
    run, batches = done["run"], arrays["batches"]
    assert (run["n_done"], run["n_window_messages"]) == (4_000, 3_000) == (len(batches), len(batches) - 1_000)
    intended = run["t_start_ns"] + np.arange(4_000) * 100_000
    assert (arrays["releases"] == intended).all()
    assert (batches["t_popped_ns"] >= intended).all()
    assert (batches["t_popped_ns"][1:] >= batches["t_decided_ns"][:-1]).all()
    for name, begin in (("service", batches["t_popped_ns"]), ("response", intended)):
        expected = LatencyHistogram(7)
        expected.record_many((batches["t_decided_ns"] - begin)[1_000:])
        assert (arrays[f"{name}_counts"] == expected.counts).all()
        described = done["histograms"][name]
        figures = (expected.count, expected.min, expected.max, expected.sum)
        assert (described["count"], described["min_ns"], described["max_ns"], described["sum_ns"]) == figures


def test_collections_recorded_are_the_interpreters_own_count() -> None:
    done, arrays = run_live(threads=2)
    edges, process = done["edges"]["worker"], done["process"]
    rows = arrays["collections"]
    window = rows[
        (rows["t_start_ns"] >= edges["open"]["t_after_ns"]) & (rows["t_end_ns"] <= edges["close"]["t_before_ns"])
    ]
    grown = np.subtract(process["gc_collections_after"], process["gc_collections_before"])
    assert window.size > 10
    counted = np.bincount(window["generation"], minlength=3)
    assert (counted <= grown).all()
    assert grown.sum() - window.size <= 2  # those that reach into an edge
    assert process["gc_collections_lost"] == 0
    assert {process["thread_names"][str(tid)] for tid in rows["tid"]} <= {"worker", "main", "other-1", "other-2"}


def test_off_is_no_collection_and_growing_memory_by_both_sources() -> None:
    done, arrays = run_live(gc="off", mode="flat")
    assert len(arrays["collections"]) == 0
    assert done["process"]["gc_collections_after"] == done["process"]["gc_collections_before"]
    assert done["process"]["gc_enabled"] is False
    edges = done["edges"]["worker"]
    assert edges["close"]["rss_bytes"] - edges["open"]["rss_bytes"] > MIB
    assert done["histograms"]["response"]["count"] == 0
    assert (arrays["releases"] == arrays["batches"]["t_popped_ns"]).all()


def test_freeze_and_threshold_reach_the_process() -> None:
    frozen = run_live(gc="freeze")[0]["process"]
    assert frozen["gc_frozen"] > 500
    assert run_live(gc="threshold:50")[0]["process"]["gc_thresholds"][0] == 50


def test_what_would_fill_the_memory_is_refused_before_the_run() -> None:
    with pytest.raises(WorkloadError, match="100,000,000 orders") as refused:
        run_live(orders=100_000_000)
    assert refused.value.exit_code == 2


def test_a_cpu_that_cannot_be_pinned_to_is_an_error() -> None:
    settings = LiveSettings(cpus=(100_000,), seconds=0.2, warmup_seconds=0, orders=10)
    with Workload(own_python("sysmeter.live"), lambda _text: None) as workload:
        workload.send("prepare", settings={**settings.__dict__, "cpus": [100_000], "housekeeping_cpus": []})
        with pytest.raises(WorkloadError, match="CPU 100000"):
            workload.receive("ready")


def test_the_stop_word_ends_the_loop_in_order() -> None:
    settings = LiveSettings(cpus=(host.choose_cpu(None),), seconds=300, warmup_seconds=0, orders=10, threads=1)
    with Workload(own_python("sysmeter.live"), lambda _text: None) as workload:
        workload.send("prepare", settings={**settings.__dict__, "cpus": list(settings.cpus), "housekeeping_cpus": []})
        workload.receive("ready")
        workload.send("go")
        assert workload.receive("done", 0.3) is None
        workload.stop()
        done = workload.receive("done", 60)
    assert done is not None
    assert done["run"]["stopped_by"] == "interrupt"
    assert 0 < done["run"]["n_done"] < 3_000_000
    assert done["edges"]["worker"]["close"] is not None


def test_it_dies_with_its_parent_like_any_workload() -> None:
    with Workload(own_python("sysmeter.live"), lambda _text: None) as workload:
        tgid = workload.tgid
        os.kill(tgid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(tgid, 0)
