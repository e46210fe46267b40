"""A framework's own evaluation is told to the watch for jobs that hang."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")


class Phases:
    """Stands for a Manager: only whether an evaluation is under way."""

    def __init__(self) -> None:
        self.evaluating = False

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        self.evaluating = True
        try:
            yield
        finally:
            self.evaluating = False


def test_the_loop_of_transformers() -> None:
    pytest.importorskip("transformers")
    from hyperpod_kit.checkpoint.adapters.huggingface import CheckpointedTraining

    manager = Phases()

    class Loop:
        def evaluation_loop(self, *args: Any, **options: Any) -> tuple[Any, ...]:
            return (*args, options, manager.evaluating)

    class Training(CheckpointedTraining, Loop):
        pass

    trainer: Any = Training.__new__(Training)
    trainer._run = None
    assert trainer.evaluation_loop(1, description="x") == (1, {"description": "x"}, False), "outside of `train`"
    trainer._run = SimpleNamespace(manager=manager)
    assert trainer.evaluation_loop(1, description="x") == (1, {"description": "x"}, True)
    assert not manager.evaluating


def test_lightnings_validation() -> None:
    pytest.importorskip("lightning")
    from hyperpod_kit.checkpoint.adapters.lightning import CheckpointedFit

    fit: Any = CheckpointedFit(every=1)
    for manager in (None, Phases(), Phases()):
        fit._manager = manager
        fit.on_validation_start(None, None)
        assert manager is None or manager.evaluating
        fit.on_validation_end(None, None)
        assert manager is None or not manager.evaluating
