"""Ctrl-C during the demo, at different moments: nothing is left behind.

The file's name puts it before the tests that share a cluster: what it looks for is anything on the whole machine.
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
from driver import REPOSITORY
from leftovers import leftovers


@pytest.fixture
def clean_machine() -> Iterator[None]:
    before = leftovers()
    yield
    assert leftovers() - before == set()


@pytest.mark.parametrize(("marker", "delay"), [
    ("boot the endpoint", 0.7),
    ("create-cluster --wait", 1.5),
    ("train", 2.0),
], ids=["endpoint", "machines", "training"])
def test_ctrl_c_leaves_nothing_behind(clean_machine: None, marker: str, delay: float, tmp_path: Path) -> None:
    demo = subprocess.Popen([sys.executable, str(REPOSITORY / "examples/demo/demo.py"), "--name", "abort"],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                            env={**os.environ, "TMPDIR": str(tmp_path)})
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
        # The moment inside the step is what is being varied, so here a sleep is the point.
        time.sleep(delay)
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=120)
    finally:
        watchdog.cancel()
        if demo.poll() is None:
            demo.kill()
    assert demo.returncode == 130, "".join(lines) + rest
    assert "taken down, nothing left" in rest, rest
