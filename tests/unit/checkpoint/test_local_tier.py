"""A run with a node-local disk in front of its root: what waits there, what a new start takes from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, Restored, State  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402

TRAINER = """
import os, signal, sys, torch
from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.errors import CheckpointError
model = torch.nn.Linear(64, 64)
state = State(model)
manager = Manager(sys.argv[1], local=sys.argv[2])
manager._agent.tries = 0
manager.restore(state)
torch.nn.init.constant_(model.weight, 7.0)
try:
    assert not manager.save(5, state).wait("durable", 30)
except CheckpointError as error:  # the agent was dead before the save came back
    assert "the checkpoint agent has ended" in str(error)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_reached_only_the_local_disk_is_restored_and_brought_to_storage(tmp_path: Path, shm: Path) -> None:
    root, disk = tmp_path / "root", tmp_path / "disk"
    environment = {**os.environ, "HPK_FAILPOINT": "agent.before_commit"}
    trainer = [sys.executable, "-c", TRAINER, str(root), str(disk)]
    died = subprocess.run(trainer, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not any(entry.committed for entry in catalog.list_checkpoints(str(root)))
    for entry in os.scandir(shm):
        os.unlink(entry.path)  # as after a reboot: only the disk has it
    state = State(torch.nn.Linear(64, 64))
    manager = Manager(root, local=disk)
    found = manager.restore(state)
    assert isinstance(found, Restored) and (found.step, found.tier) == (5, "local")
    assert isinstance(state.model, torch.nn.Linear)
    assert torch.equal(state.model.weight, torch.full((64, 64), 7.0))
    assert manager.save(6, state).seq > found.seq
    assert manager.close()
    committed = [entry.name.step for entry in catalog.list_checkpoints(str(root)) if entry.committed]
    assert 6 in committed


def test_keep_none_deletes_nothing(tmp_path: Path, shm: Path) -> None:
    state = State(torch.nn.Linear(4, 4))
    manager = Manager(tmp_path / "root", keep=None)
    manager.restore(state)
    for step in range(5):
        assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    assert manager.close()
    assert len([entry for entry in catalog.list_checkpoints(str(tmp_path / "root")) if entry.committed]) == 5
