"""A command that leaves something behind, as podman leaves its containers: ended with it, or with the wrapper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.job.base import descendants
from hyperpod_kit.job.step import srun_step
from tests.support.wait import until

CONMON = """\
#!/bin/sh
sleep 600 &
echo $! >{pid}.new
mv {pid}.new {pid}
wait
"""
PODMAN = """\
#!/bin/sh
# A session of its own, and a parent that has gone.
setsid {monitor} </dev/null >/dev/null 2>&1 &
{then}
"""


def gone(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("name", ["podman", "other"])
@pytest.mark.parametrize("killed", [False, True])
def test_what_a_command_leaves_behind(tmp_path: Path, name: str, killed: bool) -> None:
    told, program, monitor = tmp_path / "pid", tmp_path / name, tmp_path / descendants.MONITOR
    monitor.write_text(CONMON.format(pid=told))
    then = "sleep 600" if killed else f"while ! [ -e {told} ]; do :; done"
    program.write_text(PODMAN.format(monitor=monitor, then=then))
    for path in (program, monitor):
        path.chmod(0o755)
    # A parent that dies, as a slurmstepd does.
    words = [
        sys.executable,
        "-I",
        "-S",
        srun_step.path_of_kit_main_on_nodes(),
        "exec",
        "--",
        str(program),
        "run",
        "image",
    ]
    parent = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({words!r})"])
    until(told.exists, what="a container")
    container = int(told.read_text())
    try:
        if killed:
            parent.kill()
        parent.wait(60)
        if name == "podman":
            until(lambda: gone(container), what="the end of the container")
        else:
            assert not gone(container), "what another command leaves is its own matter"
    finally:
        if not gone(container):
            os.kill(container, signal.SIGKILL)


def test_all_below_are_found() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    until(lambda: len(descendants.below(child.pid)) == 1, what="a grandchild")
    [grandchild] = descendants.below(child.pid)
    assert {child.pid, grandchild} <= set(descendants.below(os.getpid()))
    for pid in (grandchild, child.pid):
        os.kill(pid, signal.SIGKILL)
    child.wait(10)
