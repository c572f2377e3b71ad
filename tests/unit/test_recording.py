"""Recordings: whole or not there at all."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest

from sysmeter import hist, recording, records
from sysmeter.errors import RecordingError
from sysmeter.recording import ARRAYS, Recording, RecordingWriter

META = dict.fromkeys(recording._META_KEYS) | {
    "format": recording.FORMAT,
    "histograms": {name: {"sub_bits": 5, "count": 3} for name in ("think", "total")},
}


def a_recording(n_batches: int = 3) -> Recording:
    arrays = {name: np.empty(0, dtype) for name, dtype in ARRAYS.items()}
    arrays["batches"] = np.zeros(n_batches, records.BATCH)
    arrays["release_offsets"] = np.arange(n_batches, dtype="<i8")
    for name in ("think_counts", "total_counts"):
        arrays[name] = np.zeros(hist.n_buckets(5), "<i8")
        arrays[name][7] = 3
    return Recording(dict(META), arrays)


@pytest.fixture
def saved(tmp_path):
    with RecordingWriter(tmp_path / "r") as writer:
        writer.commit(a_recording())
    return tmp_path / "r"


def test_round_trip_and_modes(saved):
    loaded = recording.load(saved)
    assert loaded.meta == META
    assert len(loaded["batches"]) == 3
    assert os.stat(saved).st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in saved.iterdir())


def test_others_can_read_it_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        with RecordingWriter(tmp_path / "r") as writer:
            writer.commit(a_recording())
    finally:
        os.umask(before)
    assert os.stat(tmp_path / "r").st_mode & 0o777 == 0o755
    assert os.stat(tmp_path / "r" / "meta.json").st_mode & 0o777 == 0o644


def test_nothing_is_left_without_commit(tmp_path):
    with pytest.raises(ZeroDivisionError), RecordingWriter(tmp_path / "r"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_existing_place_is_refused(saved):
    with pytest.raises(RecordingError, match="exists"):
        RecordingWriter(saved)


def test_live_writers_place_is_not_taken_for_stale(tmp_path):
    with RecordingWriter(tmp_path / "a") as writer:
        assert recording.remove_stale(tmp_path) == []
        with RecordingWriter(tmp_path / "b") as other:
            other.commit(a_recording())
        writer.commit(a_recording())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "meta.json").write_text("{"), "meta.json"),
        (lambda path: (path / "meta.json").write_text("[]"), "format"),
        (lambda path: (path / "meta.json").write_text(json.dumps({**META, "format": "other/9"})), "other/9"),
        (lambda path: (path / "meta.json").write_text(json.dumps({"format": recording.FORMAT})), "lacks"),
        (lambda path: (path / "batches.npy").unlink(), "batches.npy"),
        (lambda path: os.truncate(path / "batches.npy", 150), "batches.npy"),
        (lambda path: os.truncate(path / "batches.npy", 5), "batches.npy"),
        (lambda path: np.save(path / "batches.npy", np.zeros(3)), "batches.npy"),
        (lambda path: np.save(path / "batches.npy", np.array([{}]), allow_pickle=True), "batches.npy"),
        (lambda path: np.save(path / "release_offsets.npy", np.zeros(2, "<i8")), "differ in length"),
        (lambda path: np.save(path / "think_counts.npy", np.zeros(9, "<i8")), "think"),
        (lambda path: np.save(path / "total_counts.npy", np.zeros(hist.n_buckets(5), "<i8")), "total"),
    ],
)
def test_damage_is_named(saved, damage, words):
    damage(saved)
    with pytest.raises(RecordingError, match=words):
        recording.load(saved)


def test_a_recording_whose_last_field_had_no_name_yet_is_read(saved):
    """The field ``detail`` of a kernel event was once ``reserved``: the same bytes."""
    former = [
        ("reserved" if name == "detail" else name, records.KERNEL_EVENT[name]) for name in records.KERNEL_EVENT.names
    ]
    events = np.zeros(5, former)
    events["t_ns"], events["flags"] = range(5), records.FLAG_BROKEN_LINK
    np.save(saved / "kernel_events.npy", events)
    loaded = recording.load(saved)["kernel_events"]
    assert loaded.dtype == records.KERNEL_EVENT
    assert loaded["t_ns"].tolist() == list(range(5))
    assert set(loaded["flags"].tolist()) == {records.FLAG_BROKEN_LINK}
    assert set(loaded["detail"].tolist()) == {0}
    np.save(saved / "kernel_events.npy", events[:0])
    assert recording.load(saved)["kernel_events"].dtype == records.KERNEL_EVENT
    np.save(saved / "gaps_feed.npy", events)
    with pytest.raises(RecordingError, match="gaps_feed"):
        recording.load(saved)


def test_what_is_no_recording(tmp_path):
    with pytest.raises(RecordingError, match="does not exist"):
        recording.load(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="not a directory"):
        recording.load(tmp_path / "file")
    with pytest.raises(RecordingError, match="not a Recording"):
        recording.load(tmp_path)


@pytest.mark.kernel
def test_full_disk_leaves_nothing_half_written(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        with pytest.raises(RecordingError, match="No space"), RecordingWriter(small / "r") as writer:
            writer.commit(a_recording(100_000))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
