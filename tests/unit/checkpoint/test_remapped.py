"""A trainer in a container that calls its user by another name (--container-remap-root): the node finds its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.agent.shm import shm_paths, shm_slots
from hyperpod_kit.checkpoint.repository import selection

REMAPPED = ["unshare", "--user", "--map-user=4242", "--map-group=4242"]
TRAINER = """
import os, signal, sys, torch
from hyperpod_kit.checkpoint import Manager, State
assert os.getuid() == 4242
state = State(torch.nn.Linear(4, 4))
manager = Manager(sys.argv[1])
manager.restore(state)
os.kill(manager._agent.pid, signal.SIGSTOP)  # captured, neither sealed nor persisted
assert manager.save(7, state).wait("captured", 10)
os.kill(manager._agent.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.needs("user-namespaces")
def test_what_a_remapped_trainer_left_is_saved_by_its_owner_outside(shm: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    root = str(tmp_path / "run")
    done = subprocess.run(
        [*REMAPPED, sys.executable, "-c", TRAINER, root],
        timeout=120,
        text=True,
        env={**os.environ, "SLURM_JOB_ID": "9"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode in (-9, 137), done.stdout
    assert {name.uid for name in shm_slots.own_slot_names(str(shm))} == {os.getuid()}
    (outcome,) = flush.flush(job="9")
    assert outcome.removed and os.listdir(shm) == []
    assert selection.newest_valid(root).step == 7


def test_outside_of_a_container_it_is_simply_ours() -> None:
    assert shm_paths.node_uid() == os.getuid()
