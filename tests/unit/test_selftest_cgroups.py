"""Where the cpu controller is found, and that groups of processes that are gone are removed: on made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sysmeter.selftest import cgroups
from sysmeter.selftest.cgroups import QuotaUnavailable, find_controller, remove_stale


def proc(tmp_path: Path, mounts: str, groups: str) -> Path:
    root = tmp_path / "proc"
    (root / "self").mkdir(parents=True)
    (root / "7").mkdir()
    (root / "self/mounts").write_text(mounts)
    (root / "7/cgroup").write_text(groups)
    return root


def test_version_1_by_the_mounts_options(tmp_path):
    (tmp_path / "cpu/own").mkdir(parents=True)
    mounts = f"cgroup {tmp_path}/pids cgroup rw,pids 0 0\ncgroup {tmp_path}/cpu cgroup rw,cpu,cpuacct 0 0\n"
    groups = "9:pids:/x\n1:cpu,cpuacct:/own\n0::/\n"
    assert find_controller(7, proc(tmp_path, mounts, groups)) == (tmp_path / "cpu/own", False)


def version_2(tmp_path, enabled):
    (tmp_path / "cg/user/own").mkdir(parents=True)
    (tmp_path / "cg/user/cgroup.subtree_control").write_text(enabled)
    return proc(tmp_path, f"cgroup2 {tmp_path}/cg cgroup2 rw 0 0\n", "0::/user/own\n")


def test_version_2_where_the_controller_is_enabled(tmp_path):
    assert find_controller(7, version_2(tmp_path, "cpuset cpu io\n")) == (tmp_path / "cg/user/own", True)


def test_version_2_without_the_controller(tmp_path):
    with pytest.raises(QuotaUnavailable, match="not enabled"):
        find_controller(7, version_2(tmp_path, "memory pids\n"))


def test_a_group_that_is_not_to_be_seen_from_here(tmp_path):
    (tmp_path / "cpu").mkdir()
    tree = proc(tmp_path, f"cgroup {tmp_path}/cpu cgroup rw,cpu 0 0\n", "1:cpu:/docker/abc\n")
    with pytest.raises(QuotaUnavailable, match="not to be seen"):
        find_controller(7, tree)


def test_no_controller_at_all(tmp_path):
    with pytest.raises(QuotaUnavailable, match="no cgroup"):
        find_controller(7, proc(tmp_path, "proc /proc proc rw 0 0\n", ""))


def test_only_groups_of_processes_that_are_gone_are_removed(tmp_path):
    own_start = cgroups._start_time(os.getpid())
    alive = tmp_path / f"sysmeter-selftest-{os.getpid()}-{own_start}"
    # The number of this process, but of one that started at another time.
    reused = tmp_path / f"sysmeter-selftest-{os.getpid()}-{own_start - 1}"
    gone = tmp_path / "sysmeter-selftest-99999999-1"
    other = tmp_path / "system.slice"
    for group in (alive, reused, gone, other, gone / "strategy"):
        group.mkdir()
    assert set(remove_stale(tmp_path, tmp_path)) == {reused, gone}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, other.name])
