"""Checkpoints of other numbers of ranks are compared as the tensors that they are, however these are divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint.diffing import compare  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.checkpoint.repository.store.open import open_store  # noqa: E402
from tests.distributed import sharded_job  # noqa: E402

pytestmark = pytest.mark.distributed


def job(root: str, source: str | None) -> None:
    """Two saves, a step between them; or what is in `source` as it is, and a step later."""
    from hyperpod_kit.checkpoint import Manager, State, load_state

    model, optimizer = sharded_job.build("fsdp2")
    state = State(model, optimizer)
    sharded_job.step(model, optimizer, 1)
    if source is not None:
        load_state(source, state)
    with Manager(root, keep=None) as manager:
        assert manager.save(1, state, on_busy="wait").wait("durable", 60)
        with torch.no_grad():
            model.first.weight.add_(1.0)
        assert manager.save(2, state, on_busy="wait").wait("durable", 60)


def test_other_numbers_of_ranks(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    sharded_job.run(tmp_path, 2, job, str(one), None)
    sharded_job.run(tmp_path, 3, job, str(two), str(one))
    of_one, of_two = ([entry.checkpoint_id for entry in catalog.list_checkpoints(str(root))] for root in (one, two))

    def at(root: Path, attempt: str) -> Any:
        return compare.CheckpointAt(open_store(str(root)), attempt)

    same = compare.diff(at(one, of_one[0]), at(two, of_two[1]))
    assert not same.changed and not same.reshaped and same.equal > 10 and "optimizer" not in str(same.values)
    other = compare.diff(at(one, of_one[0]), at(two, of_two[0]))
    (changed,) = other.changed.items()
    assert changed[0] == "model.first.weight" and changed[1].changed == changed[1].items
    assert changed[1].max_abs == pytest.approx(1.0)
