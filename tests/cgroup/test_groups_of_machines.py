"""Ending a rehearsal's machine, whose own Slurm may have frozen processes in groups of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from hyperpod_rehearsal.machines import cgroups

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm", "cgroup-v1", "system-python")]


def test_what_is_frozen_in_a_group_below_is_ended_too() -> None:
    path = f"tests-{secrets.token_hex(4)}"
    [freezer] = [one for one in cgroups.mounted_hierarchies() if one.kind == "freezer"]
    below = freezer.mount / path / "slurm_node" / "step_0"
    process = subprocess.Popen(["sleep", "600"])
    try:
        below.mkdir(parents=True)
        (below / "cgroup.procs").write_text(str(process.pid))
        (below / "freezer.state").write_text("FROZEN")
        assert cgroups.member_pids(path) == {process.pid}
        assert cgroups.kill_members(path), "something is left"
        assert process.wait(10) < 0
        assert cgroups.remove_group(path) and not Path(freezer.mount, path).exists()
    finally:
        if os.path.isdir(below):
            (below / "freezer.state").write_text("THAWED")
        process.kill()
        process.wait(10)
        cgroups.remove_group(path)
