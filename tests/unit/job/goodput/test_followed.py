"""Records that are followed while a job runs: each look reads what is new, whatever happens to the files meanwhile."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Callable, List

import pytest

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.goodput import followed_root, job_time, root_time, time_rows
from hyperpod_kit.job.goodput.followed_root import FollowedFile, FollowedRoot
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState, JobTime
from hyperpod_kit.job.goodput.time_log import RankTime
from hyperpod_kit.job.goodput.time_rows import TimeRow
from hyperpod_kit.job.goodput.time_table import table_of
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.run.series import FollowedTime
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import RankProgress
from tests.support.rows import share
from tests.unit.job.goodput.histories import History
from tests.unit.job.goodput.test_histories import compare

MOST = 1 << 24


def bytes_read(act: Callable[[], object]) -> int:
    """By all system calls of this process that read, less those of the counting itself."""

    def count() -> int:
        descriptor = os.open("/proc/self/io", os.O_RDONLY)
        try:
            return int(os.pread(descriptor, 64, 0).split()[1])
        finally:
            os.close(descriptor)

    idle = -count() + count()
    before = count()
    act()
    return count() - before - idle


def test_a_look_has_what_was_appended_and_leaves_a_torn_line_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "f"
    followed = FollowedFile(str(path), MOST)
    with pytest.raises(FileNotFoundError):
        followed.read_new()
    path.write_bytes(b"one\ntwo\nthr")
    assert followed.read_new() == ([b"one", b"two"], True)
    assert followed.read_new() == ([], False)
    with path.open("ab") as file:
        file.write(b"ee\nfour\n")
    assert followed.read_new() == ([b"three", b"four"], False)


@pytest.mark.parametrize("act", ["truncated", "swapped", "rotated", "rewritten", "gone and back", "on the same inode"])
def test_another_file_in_its_place_is_read_anew(act: str, tmp_path: Path) -> None:
    path, other = tmp_path / "f", tmp_path / "other"
    path.write_bytes(b"one\ntwo\nthree\n")
    followed = FollowedFile(str(path), MOST)
    followed.read_new()
    if act == "truncated":
        path.write_bytes(b"new\n")
    elif act == "swapped":
        other.write_bytes(b"new\n" + b"x\n" * 100)
        other.rename(path)
    elif act == "rotated":
        path.rename(tmp_path / "f.1")
        path.write_bytes(b"new\n")
    elif act == "rewritten":
        path.write_bytes(b"new\ntwo\nthree\nfour\n")
    elif act == "gone and back":
        path.unlink()
        with pytest.raises(FileNotFoundError):
            followed.read_new()
        path.write_bytes(b"one\ntwo\nthree\n")
    else:
        with path.open("r+b") as file:
            file.write(b"one\nTWO\n")
    lines, anew = followed.read_new()
    assert anew and lines == path.read_bytes().split(b"\n")[:-1]
    assert followed.read_new() == ([], False)


def test_what_is_no_file_or_too_large_counts_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\n")
    followed = FollowedFile(str(path), 100)
    followed.read_new()
    path.write_bytes(b"x\n" * 100)
    with pytest.raises(Untrusted):
        followed.read_new()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Untrusted):
        followed.read_new()
    path.unlink()
    path.write_bytes(b"one\n")
    assert followed.read_new() == ([b"one"], True)


def test_a_line_without_an_end_costs_its_bytes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_root, "LONGEST_LINE", 1000)
    monkeypatch.setattr(followed_root, "_PIECE", 300)
    path = tmp_path / "f"
    followed = FollowedFile(str(path), MOST)
    path.write_bytes(b"one\n" + b"x" * 5000)
    assert followed.read_new().lines == [b"one"]
    assert bytes_read(followed.read_new) < 2000
    with path.open("ab") as file:
        file.write(b"x" * 500 + b"\ntwo\n" + b"y" * 1500 + b"\nthree\n")
    assert followed.read_new().lines == [b"two", b"three"]


def rows_of(days: int) -> List[TimeRow]:
    """A row a minute, of an attempt that does a step a second."""
    first = RankTime("1.0", "n1", 1.8e9).row(RankProgress())
    seconds = {name: 0.0 for name in first.seconds}
    return [
        first._replace(
            t=1.8e9 + 60.0 * minute,
            phase=Phase.STEP,
            begins=0,
            step=60 * minute,
            reports=True,
            seconds={**seconds, Phase.STEP.value: 60.0 * minute},
        )
        for minute in range(1, days * 1440 + 1)
    ]


@pytest.mark.parametrize("days", [1, pytest.param(30, marks=pytest.mark.full)])
def test_a_minute_of_a_long_job_reads_what_is_new(days: int, tmp_path: Path) -> None:
    Ledger(str(tmp_path), "7", 0, clock=lambda: 1.8e9).append("attempt", attempt="7.0.0", nodes=["n1"])
    path = Path(time_rows.path(str(tmp_path), "7.0.0"))
    path.parent.mkdir()
    *earlier, last = rows_of(days)
    path.write_bytes(b"".join(map(time_rows.encoded, earlier)))
    followed = FollowedTime(str(tmp_path), "7")
    assert bytes_read(lambda: followed.account(earlier[-1].t)) > path.stat().st_size > 300_000 * days
    with path.open("ab") as file:
        file.write(time_rows.encoded(last))
    assert bytes_read(lambda: followed.account(last.t)) < 8_000
    table = table_of(followed.account(last.t).pieces)
    assert table.goodput == pytest.approx(1.0)
    assert table.total_seconds == pytest.approx(days * 86400.0, rel=0.01)


@pytest.mark.parametrize("most_rows", [1 << 20, 60])
@pytest.mark.parametrize("seed", share(range(12), 3))
def test_what_is_followed_is_what_is_read_whole(seed: int, most_rows: int, tmp_path: Path) -> None:
    """The logs of a job grow as they grew, torn lines at their ends, while files are truncated, swapped and rotated."""
    whole, state = tmp_path / "whole", tmp_path / "followed"
    whole.mkdir()
    history = History(whole, seed).play()
    drawn = random.Random(seed)
    followed = FollowedRoot(str(state), most_rows)
    logs = {path.relative_to(whole): path.read_bytes().splitlines(keepends=True) for path in whole.rglob("*.jsonl")}
    length = history.t - history.submitted
    for moment in (*sorted(history.submitted + length * drawn.random() for _ in range(4)), history.t + 1.0):
        for name, lines in logs.items():
            written = sum(1 for line in lines if json.loads(line)["t"] <= moment)
            torn = lines[written][: drawn.randrange(len(lines[written]) - 1)] if written < len(lines) else b""
            if written:
                _lay(state / name, b"".join(lines[:written]) + torn, drawn)
        told = job_time.account(followed.runs(), "7", moment, JobStanding(JobState.RUNS))
        read = job_time.account(root_time.runs_in(str(state)), "7", moment, JobStanding(JobState.RUNS))
        assert told.runs == read.runs or most_rows == 60
        _alike(told, read)
    rows = [len(attempt.rows) for run in told.runs for attempt in run.attempts]
    assert sum(rows) <= most_rows + 32 * len(rows)
    told = job_time.account(followed.runs(), "7", history.t, history.standing)
    compare(table_of(told.pieces).seconds, history.seconds(), history.lost_hosts)


def _lay(path: Path, data: bytes, drawn: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    act = drawn.choice(("append", "append", "swap", "rewrite"))
    if act == "append" and path.exists():
        with path.open("ab") as file:
            file.write(data[path.stat().st_size :])
    elif act == "rewrite":
        path.write_bytes(data[: len(data) // 2])
        path.write_bytes(data)
    else:
        other = path.with_suffix(".new")
        other.write_bytes(data)
        other.rename(path)


def _alike(told: JobTime, read: JobTime) -> None:
    found, expected = table_of(told.pieces), table_of(read.pieces)
    for cause, seconds in expected.seconds.items():
        assert found.seconds.get(cause, 0.0) == pytest.approx(seconds, abs=0.01 * expected.total_seconds), cause
