"""A retention policy that a training script has written itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import CheckpointFacts, Latest, Manager, Policy, State, list_checkpoints  # noqa: E402


class EvenSteps(Policy):
    def keeps(self, facts: Sequence[CheckpointFacts]) -> set[str]:
        return {one.checkpoint_id for one in facts if one.step % 2 == 0}


class Broken(Policy):
    def keeps(self, facts: Sequence[CheckpointFacts]) -> set[str]:
        raise ZeroDivisionError("of the script's own")


def steps(root: Path, keep: Policy, last: int) -> list[int]:
    """Those that are there after the run, newest first."""
    state = State(torch.nn.Linear(4, 4))
    with Manager(root, keep=keep) as manager:
        begin = manager.restore(state).next_step
        for step in range(begin, last + 1):
            assert manager.save(step, state).wait("durable", 60)
    return [entry.name.step for entry in list_checkpoints(str(root)) if entry.name is not None]


def test_it_is_asked_after_each_save_and_the_newest_stays(shm: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert steps(root, EvenSteps(), 5) == [5, 4, 2, 0]
    assert steps(root, EvenSteps() & Latest(2), 7) == [7, 6]


def test_one_that_raises_deletes_nothing_and_is_said_once(shm: Path, tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "hyperpod_kit.checkpoint"):
        assert steps(tmp_path / "root", Broken(), 4) == [4, 3, 2, 1, 0]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["Broken has deleted no checkpoint: ZeroDivisionError: of the script's own"]
