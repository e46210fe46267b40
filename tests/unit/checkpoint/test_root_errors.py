"""A root or a shared memory without room, or read-only: said with path and numbers, and no reason not to restore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

UNSHARE = ["unshare", "--mount", "--propagation", "private"]
JOB = Path(__file__).with_name("root_errors_job.py")
SCRIPT = """set -e
mount -t tmpfs -o size=1m tmpfs "$ROOT"
mount -t tmpfs -o size=24m tmpfs "$HPK_SHM_DIR"
"$@" first full
find "$HPK_SHM_DIR" -name 'hpk-*' | grep . && exit 1
"$@" readonly memory
"""


SMALL = """set -e
mount -t tmpfs -o size=64m tmpfs "$HPK_SHM_DIR"
HPK_CHECKPOINT_ROOT=$ROOT/run HPK_STATE=$ROOT/run/.hpk HPK_ATTEMPT=7.0.0 "$@" small
"""


@pytest.mark.full
@pytest.mark.needs("mounts")
@pytest.mark.parametrize("script", [SCRIPT, SMALL], ids=["full and read-only", "as in a container of docker's"])
def test_no_room(tmp_path: Path, script: str) -> None:
    root, shm = tmp_path / "root", tmp_path / "shm"
    root.mkdir()
    shm.mkdir()
    done = subprocess.run(
        [*UNSHARE, "bash", "-c", script, "x", sys.executable, str(JOB)],
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **os.environ,
            "ROOT": str(root),
            "HPK_SHM_DIR": str(shm),
            "PYTHONPATH": os.getcwd(),
            "OMP_NUM_THREADS": "1",
            "HPK_AGENT_LINGER": "0",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
