"""What the Epilog hands over goes on after it: real slots, real processes, killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, List

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush, flush_captures, flush_users
from hyperpod_kit.checkpoint.agent.flush.flush_handover import (
    EndedJob,
    flush_job_until_saved,
    parse_ended_job,
    start_flush_and_await_announcement,
)
from hyperpod_kit.checkpoint.agent.flush.flush_progress import Sign
from hyperpod_kit.checkpoint.agent.shm import lock, shm_paths
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.errors import UsageError
from hyperpod_kit.system import process
from hyperpod_kit.system.wait import fixed_pause
from tests.support.wait import Deadline, until

REPOSITORY = Path(__file__).resolve().parents[3]
MINE = EndedJob("7", 0, os.getuid(), None)
NOW = fixed_pause(0.05)


def test_an_instance_of_the_unit_is_numbers_alone() -> None:
    assert (
        parse_ended_job("7.2.1001.1002") == EndedJob("7", 2, 1001, 1002)
        and str(parse_ended_job("7.2.1001")) == "7.2.1001"
    )
    for text in ("", "7", "7.2", "7.2.root", "../7.2.1", "7.2.1.1.1", "7.-2.1"):
        with pytest.raises(UsageError):
            parse_ended_job(text)


def test_storage_that_is_away_is_tried_again_until_it_is_back(capture, shm: Path, tmp_path: Path) -> None:
    capture(seq=3, step=30)
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    said: List[str] = []

    def say(words: str) -> None:
        said.append(words)
        (tmp_path / "root").rmdir()
        (tmp_path / "away").rename(tmp_path / "root")

    def once(words: str) -> None:
        (say if not said else said.append)(words)

    announce = tmp_path / "announced"
    done = flush_job_until_saved(
        MINE, folder=str(shm), max_age=86400.0, announcement_path=str(announce), say=once, pauses=NOW
    )
    assert done == 0 and announce.exists() and "its mount is gone" in said[0] and "committed" in said[1]
    assert selection.newest_valid(str(tmp_path / "root")).step == 30 and os.listdir(shm) == []


def test_a_new_start_that_has_taken_it_over_is_left_alone(capture, shm: Path) -> None:
    capture(owner=tuple(process.this_process()))
    deadline = Deadline(60)
    assert (
        flush_job_until_saved(
            MINE, folder=str(shm), max_age=86400.0, announcement_path="", say=lambda _: None, pauses=fixed_pause(600)
        )
        == 1
    )
    assert not deadline.has_passed()


def test_a_try_that_moves_nothing_is_given_up(capture, shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture()
    # As behind a mount that hangs: this never returns.
    monkeypatch.setattr(flush_captures, "open_storage_and_find_newest_epoch_seq", lambda page: threading.Event().wait())
    monkeypatch.setattr(flush_users, "STILL", 0.5)
    (outcome,) = flush_users.flush_as(os.getuid(), folder=str(shm), job="7", timeout=60.0, max_age=86400.0, stall=2.0)
    assert "no progress for 2 s" in outcome.note and not outcome.removed and outcome.again


def test_it_goes_on_in_a_session_of_its_own_once_storage_knows(
    capture, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host without our units, as here."""
    capture(seq=3, step=30)
    monkeypatch.setenv("HPK_ROOT", str(tmp_path))
    (tmp_path / "run/hyperpod-kit").mkdir(parents=True)
    monkeypatch.setenv("PATH", "/nowhere")
    go = tmp_path / "go"
    real = flush_users.flush_as

    def slow(*args: Any, **more: Any) -> Any:
        more["on_progress"](Sign(True, 0, 0, 0.0))
        until(go.exists, what="leave to go on")
        return real(*args, **more)

    monkeypatch.setattr(flush_users, "flush_as", slow)
    assert start_flush_and_await_announcement(MINE, folder=str(shm), max_age=86400.0, say=print) == 0
    assert os.listdir(shm) and not list((tmp_path / "run/hyperpod-kit").iterdir())
    go.touch()
    until(lambda: os.listdir(shm) == [], what="freed memory")
    assert selection.newest_valid(str(tmp_path / "root")).step == 30


def test_a_flush_that_was_killed_begins_again_from_what_is_in_memory(capture, shm: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        capture(rank=rank, world=2, seq=4, step=40)
    program = "import sys; from hyperpod_kit.checkpoint.agent.flush import flush\nflush.flush(job='7'); sys.exit(3)"
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HPK_FAILPOINT": "persist.before_sync"}
    killed = subprocess.run([sys.executable, "-c", program], env=env, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL and len(os.listdir(shm)) >= 4
    (outcome,) = flush.flush(job="7")
    assert outcome.removed and selection.newest_valid(str(tmp_path / "root")).step == 40


FLUSHING = """
import os, sys, time
from hyperpod_kit.checkpoint.agent.shm import lock
held = lock.try_acquire(sys.argv[1])
print("held", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    held.touch_lock_file()
    time.sleep(0.1)
time.sleep(0 if sys.argv[3] == "ends" else 600)
held.release()
"""


@pytest.fixture
def flushing(shm: Path) -> Callable[..., subprocess.Popen[bytes]]:
    def begin(path: Path, seconds: float, then: str) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(
            [sys.executable, "-c", FLUSHING, str(path), str(seconds), then],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert made.stdout is not None and made.stdout.readline() == b"held\n"
        return made

    return begin


def test_a_start_waits_for_a_flush_that_gets_on(shm: Path, flushing: Any) -> None:
    path = shm / "x.lock"
    other = flushing(path, 2.0, "ends")
    lock.acquire_ending_stale_agent(str(path), process.this_process()).release()
    assert other.wait(10) == 0, "nobody ended it"


RELEASING = """
import sys, time
from hyperpod_kit.checkpoint.agent.shm import lock
held = lock.try_acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
held.release()
print("released", flush=True)
sys.stdin.readline()
"""


def test_a_flush_that_releases_the_lock_at_that_moment_goes_on_with_other_runs(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at who holds the lock and the look at whether it gets on."""
    path = str(shm / "x.lock")
    read = lock.read_agent_and_trainer
    other = subprocess.Popen(
        [sys.executable, "-c", RELEASING, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    requests, responses = other.stdin, other.stdout
    assert requests is not None and responses is not None

    def read_before_the_release(path: str) -> Any:
        holder = read(path)
        requests.write(b"\n")
        requests.flush()
        assert responses.readline() == b"released\n"
        return holder

    with other:
        assert responses.readline() == b"held\n"
        monkeypatch.setattr(lock, "read_agent_and_trainer", read_before_the_release)
        lock.acquire_ending_stale_agent(path, process.this_process()).release()
        other.communicate(b"\n", timeout=60)
    assert other.returncode == 0, "it was ended, and with it what it was about to save"


def test_a_start_ends_a_flush_that_stands_still_or_takes_too_long(shm: Path, flushing: Any) -> None:
    path = shm / "x.lock"
    other = flushing(path, 600.0, "ends")
    lock.acquire_ending_stale_agent(str(path), process.this_process(), flush_timeout=1.0).release()
    assert other.wait(10) == -lock.STOP
    other = flushing(path, 0.0, "hangs")
    os.utime(path, (1.0, 1.0))
    lock.acquire_ending_stale_agent(str(path), process.this_process()).release()
    assert other.wait(10) == -lock.STOP


def test_two_flushes_of_one_run_do_not_wait_for_each_other(capture, shm: Path, flushing: Any) -> None:
    slot = capture()
    path = shm_paths.ensure_user_directory() + "/" + f"hpk-{slot.name.uid}-{slot.name.run}-00000.lock"
    other = flushing(Path(path), 600.0, "ends")
    (outcome,) = flush.flush(job="7")
    assert f"another flush (pid {other.pid}) is running" in outcome.note and outcome.again
    other.kill()
    other.wait(10)
    assert flush.flush(job="7")[0].removed
