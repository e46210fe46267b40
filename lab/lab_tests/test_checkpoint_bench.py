"""The bench: its arithmetic, that its limits touch every byte, and one small run from end to end."""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_lab.checkpoint_bench import cli, limits, machine, run, summary
from hyperpod_lab.checkpoint_bench.timed_assignment import TimedAssignment


def run_of(**changes: Any) -> dict[str, Any]:
    save = {
        "bytes": 100,
        "floor": {"memmove 1": [9.0, 9.0, 9.0], "torch 2": [2.0, 1.0, 3.0]},
        "start": 0.1,
        "write": {"1": [5.0, 6.0, 4.0], "2": [8.0, 4.0, 9.0]},
        "first": {"stall": 7.0, "persist": 7.0},
        "stall": [3.0, 2.0, 9.0],
        "persist": [10.0, 9.0, 30.0],
    }
    return {"save": {**save, **changes}}


def test_ratios_are_of_medians_against_the_best_way() -> None:
    ratios = summary.summarize_run(run_of())
    assert (ratios["floor_s"], ratios["write_s"]) == (2.0, 5.0)
    assert ratios["stall_over_floor"] == 1.5
    assert ratios["persist_over_limit"] == 0.5


def test_a_way_that_was_given_up_is_no_limit() -> None:
    ratios = summary.summarize_run(run_of(floor={"torch 1": [1.0], "torch 2": [2.0, 2.0, 2.0]}))
    assert ratios["floor_s"] == 2.0


def test_slow_ways_to_a_limit_are_not_asked_again() -> None:
    ways: dict[str, list[float]] = {"1": [], "2": [], "4": []}
    assert limits.ways_that_may_be_fastest(ways) == ["1", "2", "4"]
    ways = {"1": [1.0], "2": [1.4], "4": [1.6]}
    assert limits.ways_that_may_be_fastest(ways) == ["1", "2"]
    ways = {"1": [1.0, 1.1], "2": [1.4, 1.2], "4": [1.6]}
    assert limits.ways_that_may_be_fastest(ways) == ["1"]


def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter(range(0, 10**6, 1000))
    monkeypatch.setattr(machine, "_busy_core_seconds_since_boot", lambda: float(next(busy)))
    patience = machine.QuietWait(0.25)
    assert not patience.wait_until_quiet() and patience.remaining < 0.1
    looks = next(busy)
    # It looked once, at its beginning and at its end.
    assert not patience.wait_until_quiet() and next(busy) == looks + 3000
    monkeypatch.setattr(machine, "_busy_core_seconds_since_boot", lambda: 0.0)
    assert patience.wait_until_quiet()


def test_where_the_time_is_short_three_samples_are_enough_for_all_ranks(tmp_path: Path) -> None:
    def job(deadline: float) -> TimedAssignment:
        return TimedAssignment("save", "tiny", "single", 0, 1, 1, 5, str(tmp_path), "1", deadline, 0.0)

    late, early = job(time.monotonic() - 1), job(time.monotonic() + 3600)
    assert [late.has_enough_samples(taken, float) for taken in range(1, 6)] == [False, False, True, True, True]
    assert [early.has_enough_samples(taken, float) for taken in range(1, 6)] == [False, False, False, False, True]
    assert early.has_enough_samples(
        3, lambda clock: clock + 7200
    )  # another rank's clock says that it is late: all end together


def test_what_an_early_phase_leaves_later_ones_have() -> None:
    pace = run.TimeShare(100.0, 3)
    assert [pace.begin_next_phase_and_return_deadline() for _ in range(3)] == [
        210.0,
        320.0,
        430.0,
    ] and pace.training_deadline == 550.0


def test_restores_are_ratios_in_their_own_direction() -> None:
    run = run_of()
    run["cold"] = {"seconds": [4.0], "start": [0.1], "limit": {"1": [3.0], "4": [2.0]}, "page_cache": "dropped"}
    run["hot"] = {"seconds": [4.0], "start": [0.1], "floor": {"torch 2": [1.0]}, "proof": {"2": [2.0]}}
    ratios = summary.summarize_run(run)
    assert ratios["cold_restore_over_limit"] == 0.5
    assert ratios["hot_restore_over_proof"] == 2.0


def test_the_summary_is_the_worst_run() -> None:
    worst = summary.worst_ratios(
        [{"stall_over_floor": 1.1, "persist_over_limit": 0.8}, {"stall_over_floor": 1.3, "persist_over_limit": 0.9}]
    )
    assert worst["stall_over_floor"] == 1.3
    assert worst["persist_over_limit"] == 0.8
    assert worst["hot_restore_over_proof"] is None


@pytest.mark.parametrize("count", [1, 2])
def test_the_proof_digests_every_byte_and_then_copies_it(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    tensors = [torch.arange(size, dtype=torch.float32) + 1 for size in (1, 4097, 0, 70_000)]
    floor = limits.MemoryFloor(tensors, 2)
    digested: list[int] = []
    real = digest.algorithm("blake2b")
    counting = real._replace(leaf=lambda data: digested.append(len(data)) or real.leaf(data))
    monkeypatch.setattr(digest, "algorithm", lambda name: counting)
    monkeypatch.setattr(digest, "CHUNK", 65536)
    assert floor.time_digest_and_copy(count, "blake2b") > 0
    assert sum(digested) == sum(tensor.numel() * 4 for tensor in tensors) and max(digested) <= 65536
    for target, source in floor._pairs:
        assert torch.equal(target, source)


@pytest.mark.parametrize("way", ["memmove 1", "memmove 2", "memmove 3", "torch 1", "torch 2"])
def test_the_memory_floor_copies_every_byte(way: str) -> None:
    tensors = [torch.arange(size, dtype=torch.float32) + 1 for size in (1, 4097, 0, 333, 70_000)]
    floor = limits.MemoryFloor(tensors, 3)
    assert floor.bytes == 4 * (1 + 4097 + 333 + 70_000)
    floor.time_copy(way)
    at = 0
    for tensor in tensors:
        size = tensor.numel() * 4
        assert floor.map[at : at + size] == tensor.numpy().tobytes()
        at += (size + 63) // 64 * 64


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_write_limit_writes_all_pages_and_leaves_nothing(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 5 * 4096 + 17
    source = mmap.mmap(-1, 6 * 4096)
    written = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append(len(data)) or pwrite(fd, data, at))
    limits.time_write_and_fsync(source, size, tmp_path, "x", threads)
    assert sum(written) == 5 * 4096
    assert list(tmp_path.iterdir()) == []


def test_the_read_limit_reads_all_bytes_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(paths, (limits.BLOCK + 5, 100), strict=True):
        path.write_bytes(bytes(size))
    read = []
    preadv = os.preadv

    def counted(fd: int, buffers: Any, at: int) -> int:
        read.append(preadv(fd, buffers, at))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counted)
    limits.time_read(paths, 3)
    assert sum(read) == limits.BLOCK + 105


@pytest.mark.full
def test_a_small_run_measures_compares_and_leaves_nothing(
    tmp_path: Path, shm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(
        [
            "--sizes",
            "tiny",
            "--modes",
            "single",
            "--phases",
            "save,cold",
            "--repeat",
            "1",
            "--json",
            "--patience",
            "0",
            "--dir",
            str(tmp_path),
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert (code, report["errors"]) == (0, [])
    assert 0 < report["summary"]["persist_over_limit"] < 10
    assert 0 < report["summary"]["cold_restore_over_limit"] < 10
    assert report["summary"]["hot_restore_over_proof"] is None
    assert list(shm.iterdir()) == []
    assert [path for path in tmp_path.iterdir() if path != shm] == []


def test_an_unknown_size_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--sizes", "9g"]) == 2
    assert "0.5g" in capsys.readouterr().err
