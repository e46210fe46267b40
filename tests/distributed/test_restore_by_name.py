"""Ranks that name different checkpoints to restore: an error on all of them, and nobody waits for anybody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import sharded_job  # noqa: E402

pytestmark = pytest.mark.distributed


def job(root: str) -> list[str]:
    from hyperpod_kit.checkpoint import Manager, Restored, State, load_state, load_weights
    from hyperpod_kit.checkpoint.repository.records import catalog
    from hyperpod_kit.errors import CheckpointError

    def state() -> State:
        return State(torch.nn.Linear(2, 2), rng=False)

    with Manager(root) as manager:
        for step in (1, 2):
            assert manager.save(step, state(), on_busy="wait").wait("durable", 60)
    newest, older = (entry.checkpoint_id for entry in catalog.list_checkpoints(root))
    own = (older, None)[int(os.environ["RANK"])]
    refused = []
    with Manager(root) as manager:
        for restore in (
            lambda: manager.restore(state(), checkpoint_id=own),
            lambda: manager.inspect(own),
            lambda: load_state(root, state(), checkpoint_id=own),
            lambda: load_weights(root, torch.nn.Linear(2, 2), checkpoint_id=own),
        ):
            with pytest.raises(CheckpointError, match=r"rank 0 restores .*, and rank 1 the newest") as caught:
                restore()
            refused.append(caught.value.message)
        got = manager.restore(state(), checkpoint_id=older)
        assert isinstance(got, Restored) and (got.step, got.checkpoint_id) == (1, older) and newest != older
    return refused


def test_ranks_that_name_different_checkpoints_all_raise(tmp_path: Path) -> None:
    first, second = sharded_job.run(tmp_path, 2, job, str(tmp_path / "root"))
    assert first == second and len(first) == 4
