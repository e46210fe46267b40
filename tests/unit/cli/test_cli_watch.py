"""What is shown of a long wait."""

from __future__ import annotations

import pytest

from hyperpod_kit.cli import output
from tests.support.clock import FakeClock


def test_a_line_that_stays_is_said_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    monkeypatch.setattr(output, "time", clock)
    with output.watch() as show:
        for line in ("Creating", "Creating", "Creating", "Creating", "Creating", "InService"):
            show(line)
            clock.sleep(10.0)
    assert [line.split() for line in capsys.readouterr().err.splitlines()] == [
        ["0", "s", "Creating"],
        ["30", "s", "Creating"],
        ["50", "s", "InService"],
    ]
