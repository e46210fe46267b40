"""Programs that are forked from one which has imported torch: what the tests start is seen to end by all who wait."""

from __future__ import annotations

import os
import threading

import pytest

from tests.support import warm


@pytest.mark.full
def test_several_threads_wait_for_one_program(monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", lambda args: failed.append(args.exc_value))
    program = warm.Program(["-c", "import time; time.sleep(600)"], env={**os.environ})
    waiting = [threading.Thread(target=program.wait) for _ in range(8)]
    with program.stdout:
        for thread in waiting:
            thread.start()
        program.kill()
        for thread in waiting:
            thread.join()
    assert not failed and program.returncode == -9
