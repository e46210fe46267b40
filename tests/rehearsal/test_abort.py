"""Ctrl-C during the demo, at different moments, and again while it cleans up: nothing is left behind.

conftest.py puts it before all others: what it looks for is anything on the whole machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Iterator

import pytest
from driver import PROGRAM, REPOSITORY
from leftovers import leftovers

from hyperpod_rehearsal.records.layout import Layout


@pytest.fixture
def clean_machine() -> Iterator[None]:
    yield
    assert leftovers("abort") == set()


def hear_hangups() -> None:
    """Tests that nohup started ignore SIGHUP, and so would the demo."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def demo_until(marker: str, tmp_path: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """Start the demo in a process group of its own and read its output up to the step `marker`."""
    demo = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "examples/demo/demo.py"), "--name", "abort"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=hear_hangups,
    )
    assert demo.stdout is not None
    lines: list[str] = []
    # A demo that prints nothing more must not hang the test.
    watchdog = threading.Timer(300, demo.kill)
    watchdog.start()
    try:
        for line in demo.stdout:
            lines.append(line)
            if f" {marker}\n" in line:
                break
    finally:
        watchdog.cancel()
    return demo, lines


@pytest.mark.parametrize(
    ("marker", "delay", "number"),
    [
        pytest.param("boot the endpoint", 0.7, signal.SIGINT, id="endpoint", marks=pytest.mark.full),
        pytest.param("create-cluster --wait", 1.5, signal.SIGHUP, id="machines"),
        pytest.param("train", 2.0, signal.SIGINT, id="training", marks=pytest.mark.full),
    ],
)
def test_ctrl_c_leaves_nothing_behind(
    clean_machine: None, marker: str, delay: float, number: signal.Signals, tmp_path: Path
) -> None:
    demo, lines = demo_until(marker, tmp_path)
    try:
        # The moment inside the step is what is being varied, so here a sleep is the point.
        time.sleep(delay)
        os.killpg(demo.pid, number)
        # Impatience: the second Ctrl-C meets the clean-up, its own and that of the command it runs.
        time.sleep(0.4)
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=120)
    finally:
        if demo.poll() is None:
            demo.kill()
    assert demo.returncode == 130, "".join(lines) + rest
    assert "taken down, nothing left" in rest and "Traceback" not in rest, rest


def test_a_demo_that_was_killed_is_taken_down_by_name(clean_machine: None, tmp_path: Path) -> None:
    demo, _ = demo_until("boot the endpoint", tmp_path)
    time.sleep(0.7)  # in the middle of `rehearse up`, which goes on alone
    demo.kill()
    done = subprocess.run(
        [str(PROGRAM), "rehearse", "down", "--name", "abort"], capture_output=True, text=True, timeout=150
    )
    demo.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    assert not Layout.for_name("abort").root.exists()
