"""HyperPod's lines are read from the job's own log, whatever else is printed there."""

from __future__ import annotations

import os
from pathlib import Path

from hyperpod_kit.job.step.step_retry_log import MOST, RetryLog

HEAD = b"[Auto Resume] Info: JobID: 7 StepID: 0 "


def test_only_what_comes_from_now_on_and_what_is_of_the_whole_step(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(HEAD + b"Retrying step. Attempt number: 1\n")
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    tail = RetryLog((fd, fd))
    assert tail.readable and tail.news() == []
    os.write(fd, b"loss 3.1\n" + HEAD + b"TaskID: 3 process_task_init\nsrun: " + HEAD + b"Job Expansion complete\n")
    os.write(fd, HEAD + b"Retrying step. Att")
    assert tail.news() == [(HEAD + b"Job Expansion complete").decode()]
    os.write(fd, b"empt number: 2\x1b[2J\n")
    assert tail.news() == [(HEAD + b"Retrying step. Attempt number: 2 [2J").decode()]
    tail.close()
    os.close(fd)


def test_a_log_that_says_it_without_end_fills_no_ledger(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    tail = RetryLog((fd,))
    os.write(fd, (HEAD + b"x\n") * (2 * MOST))
    assert len(tail.news()) == MOST and tail.news() == []
    tail.close()
    os.close(fd)


def test_a_pipe_says_nothing() -> None:
    reading, writing = os.pipe()
    tail = RetryLog((writing,))
    assert not tail.readable and tail.news() == []
    os.close(reading)
    os.close(writing)
