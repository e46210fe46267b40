"""A job does not die for its log; a log whose mount was lost is known."""

from __future__ import annotations

import errno
import os
from typing import List

import pytest

from hyperpod_kit.job.base.report import JobReport


@pytest.mark.parametrize(("number", "dead"), [(errno.ENOTCONN, True), (errno.ESTALE, True), (errno.ENOSPC, False)])
def test_a_log_that_cannot_be_written(number: int, dead: bool) -> None:
    def write(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    report = JobReport(write=write)
    report("start", "words")
    assert report.dead is dead


def test_a_short_write_is_continued() -> None:
    written = []

    def write(fd: int, data: bytes) -> int:
        written.append(data[:7])
        return len(written[-1])

    report = JobReport(write=write, is_json=True)
    report("start", "words")
    assert b"".join(written) == b'hyperpod-kit: {"message": "words", "event": "start"}\n' and not report.dead


def test_lines_for_people_are_sentences_that_steer_no_terminal() -> None:
    written: List[bytes] = []

    def write(fd: int, data: bytes) -> int:
        written.append(data)
        return len(data)

    JobReport(write=write)("rejected", "seq-1: \x1b[2Jgone\nhyperpod-kit: finished \udc9b", why="why")
    [line] = written
    assert line.startswith(b"hyperpod-kit: seq-1: ") and line.endswith(b"\n") and line.count(b"\n") == 1
    assert b"\x1b" not in line and b"{" not in line
