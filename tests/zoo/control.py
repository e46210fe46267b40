"""How torch itself saves and loads a program: state dicts, and torch.distributed.checkpoint where it is sharded."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import torch

from tests.zoo.training import Training


class Control:
    name = ""

    def save(self, training: Training) -> None:
        raise NotImplementedError

    def load(self, training: Training) -> None:
        raise NotImplementedError


class StateDicts(Control):
    """`torch.save(state_dict())` and `load_state_dict(torch.load())`, each rank for itself."""

    name = "state_dict"

    def save(self, training: Training) -> None:
        self._file = io.BytesIO()
        objects = {name: thing.state_dict() for name, thing in training.objects.items()}
        optimizer = training.optimizer.state_dict() if training.optimizer is not None else None
        torch.save({"model": training.model.state_dict(), "optimizer": optimizer, "objects": objects}, self._file)

    def load(self, training: Training) -> None:
        self._file.seek(0)
        saved: Any = torch.load(self._file, weights_only=False)
        training.model.load_state_dict(saved["model"])
        if training.optimizer is not None:
            training.optimizer.load_state_dict(saved["optimizer"])
        for name, thing in training.objects.items():
            thing.load_state_dict(saved["objects"][name])


class Distributed(Control):
    """torch.distributed.checkpoint, with its functions for the state dicts of models and optimizers."""

    name = "DCP"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _state(self, training: Training) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as of

        state: dict[str, Any] = {"model": of.get_model_state_dict(training.model)}
        if training.optimizer is not None:
            state["optimizer"] = of.get_optimizer_state_dict(training.model, training.optimizer)
        for name, thing in training.objects.items():
            state[name] = copy.deepcopy(thing.state_dict())
        return state

    def save(self, training: Training) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self._state(training), checkpoint_id=self._folder)

    def load(self, training: Training) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import state_dict as of

        state = self._state(training)
        dcp.load(state, checkpoint_id=self._folder)
        of.set_model_state_dict(training.model, state["model"])
        if training.optimizer is not None:
            of.set_optimizer_state_dict(training.model, training.optimizer, state["optimizer"])
        for name, thing in training.objects.items():
            thing.load_state_dict(state[name])
