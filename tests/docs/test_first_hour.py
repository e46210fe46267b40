"""The first hour as a program types it, without the clone and the demo, which have minutes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples/first_hour/first_hour.py"


@pytest.mark.full
def test_an_own_configuration_and_an_own_script_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HPK_SHM_DIR": str(tmp_path / "shm"), "TMPDIR": str(tmp_path)}
    argv = [sys.executable, str(PROGRAM), "--skip", "clone", "--skip", "demo"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^own script +4 .* killed at step \d+, resumed at step [1-9]\d*, 2 attempts$", done.stdout, re.M)
    assert re.search(r"^all +10 ", done.stdout, re.M)
    assert not list(tmp_path.glob("hyperpod-kit-first-hour-*"))


def test_the_own_script_is_as_short_as_a_page() -> None:
    assert len(PROGRAM.with_name("fsdp2.py").read_text().splitlines()) <= 45
