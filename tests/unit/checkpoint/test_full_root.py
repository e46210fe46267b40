"""A root with room for exactly as many checkpoints as are kept goes on saving, never by giving up the last good one.

The file systems are real: a tmpfs of that size.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Iterator, List

import pytest
import torch

from hyperpod_kit.checkpoint import Manager, Restored, State
from hyperpod_kit.checkpoint.capture.root_capacity import keeps_only_newest_checkpoint
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.policy import Best, EverySteps, Latest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.errors import CheckpointError
from tests.support.rows import full

SLACK = 512 * 1024
"""Bytes for small files: epochs, proofs, directories."""

needs_mounts = pytest.mark.needs("mounts")


@contextlib.contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[str]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "hpk-test", str(folder)], check=True)
    try:
        yield str(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def state_of() -> State:
    torch.manual_seed(3)
    return State(torch.nn.Linear(700, 700))


def size_of_one(folder: Path, shm: Path) -> int:
    """Bytes of one checkpoint of `state_of`, in whole pages."""
    root = folder / "one"
    with Manager(str(root)) as manager:
        state = state_of()
        manager.restore(state)
        handle = manager.save(0, state, on_busy="wait")
    assert handle.checkpoint_id is not None
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in (root / handle.checkpoint_id).iterdir())


def committed(root: str) -> List[int]:
    return [entry.name.step for entry in catalog.list_checkpoints(root) if entry.committed]


@needs_mounts
@pytest.mark.parametrize("kept", [2, *full(3)])
def test_a_root_with_room_for_those_that_are_kept_goes_on_saving(tmp_path: Path, shm: Path, kept: int) -> None:
    size = size_of_one(tmp_path, shm)
    with tmpfs(tmp_path / "root", kept * size + SLACK) as root:
        for start in range(2):  # on a root that is full already, too
            with Manager(root, keep=Latest(kept)) as manager:
                state = state_of()
                found = manager.restore(state)
                for step in range(found.next_step, found.next_step + 20):
                    handle = manager.save(step, state, on_busy="wait")
                    assert handle.wait("durable", 120), handle
                    assert len(committed(root)) <= kept and verify.verify_checkpoint(root, str(handle.checkpoint_id))
            assert isinstance(found, Restored) == (start > 0)
            assert committed(root) == list(range(20 * start + 19, 20 * start + 19 - kept, -1))
        assert os.statvfs(root).f_bavail * 4096 < size, "there was never room for one more"


@needs_mounts
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_nothing_can_be_given_up_for_fails_and_says_so(tmp_path: Path, shm: Path) -> None:
    size = size_of_one(tmp_path, shm)
    with tmpfs(tmp_path / "root", 2 * size + SLACK) as root:
        manager, state = Manager(root, keep=Latest(3), max_lost=None), state_of()
        manager.restore(state)
        # One after the other: the shard of the next save may take the room in which this one would write its index.
        outcomes = []
        for step in range(4):
            handle = manager.save(step, state, on_busy="wait")
            outcomes.append(handle.wait("durable", 120))
        assert outcomes == [True, True, False, False]
        reason = str(handle.reason)
        assert "No space left on device" in reason and "the policy allows no checkpoint" in reason
        assert selection.newest_valid(root).step == 1
        manager.close()
        kept = {entry.checkpoint_id for entry in catalog.list_checkpoints(root)}
        assert sum(path.stat().st_size for name in kept for path in Path(root, name).iterdir()) <= 2 * size


@needs_mounts
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_damaged_one_is_not_what_a_full_root_is_left_with(tmp_path: Path, shm: Path) -> None:
    """The two newest were damaged since: the good one stays, and they go."""
    size = size_of_one(tmp_path, shm)
    with tmpfs(tmp_path / "root", 3 * size + SLACK) as root:
        manager, state = Manager(root, keep=Latest(3)), state_of()
        manager.restore(state)
        for step in range(3):
            assert manager.save(step, state, on_busy="wait").wait("durable", 120)
        for entry in catalog.list_checkpoints(root)[:2]:
            path = Path(root, entry.checkpoint_id, layout.shard_file(0))
            data = bytearray(path.read_bytes())
            data[5000:5100] = bytes(100)
            path.write_bytes(data)
        handle = manager.save(3, state, on_busy="wait")
        assert handle.wait("durable", 120), handle
        assert committed(root)[-1] == 0, "the only one that is whole, but for the new one"
        assert verify.verify_checkpoint(root, catalog.list_checkpoints(root)[-1].checkpoint_id)
        manager.close()


@needs_mounts
def test_keeping_one_where_there_is_room_for_one_is_refused(tmp_path: Path, shm: Path) -> None:
    size = size_of_one(tmp_path, shm)
    with tmpfs(tmp_path / "root", size + SLACK) as root:
        with Manager(root, keep=Latest(1)) as manager:
            state = state_of()
            manager.restore(state)
            manager.save(0, state, on_busy="wait")
        with pytest.raises(CheckpointError, match="only one checkpoint fits") as caught:
            Manager(root, keep=Latest(1))
        assert caught.value.hint is not None and f"df -h {root}" in caught.value.hint
        manager = Manager(root, keep=Latest(2))  # what is there can be restored
        assert isinstance(manager.restore(state_of()), Restored)
        manager.close()


def test_which_policies_keep_one() -> None:
    assert (
        keeps_only_newest_checkpoint(Latest(1))
        and keeps_only_newest_checkpoint(EverySteps(100))
        and keeps_only_newest_checkpoint(Latest(1) | Best("loss"))
    )
    assert not keeps_only_newest_checkpoint(Latest(2)) and not keeps_only_newest_checkpoint(Latest(1) | EverySteps(1))
