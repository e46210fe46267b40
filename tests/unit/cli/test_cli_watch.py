"""What is shown of a long wait."""

from __future__ import annotations

import threading
from typing import List

import pytest

from hyperpod_kit.cli.terminal import output
from tests.support.clock import FakeClock


def test_a_line_that_stays_is_said_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    monkeypatch.setattr(output, "time", clock)
    with output.live_status() as show:
        for line in ("Creating", "Creating", "Creating", "Creating", "Creating", "InService"):
            show(line)
            clock.sleep(10.0)
    assert [line.split() for line in capsys.readouterr().err.splitlines()] == [
        ["0", "s", "Creating"],
        ["30", "s", "Creating"],
        ["50", "s", "InService"],
    ]


def test_work_without_a_terminal_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "QUIET", 0.01)
    heard = threading.Event()
    said: List[str] = []

    def hear(line: str) -> None:
        said.append(line)
        heard.set()

    monkeypatch.setattr(output, "print_to_stderr", hear)
    with output.progress_bar("bundle 0123", 430) as advance:
        advance(7)
        assert heard.wait(30)
        heard.clear()
        assert heard.wait(30)
    assert said[-1] == "bundle 0123: 7 of 430"
