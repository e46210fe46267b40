"""Tensor subclasses through torch.distributed.checkpoint, with our Writer and Reader."""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.unit.checkpoint.test_subclasses import Scaled, made

NOT_SAVED = 77


class WithoutParts(torch.Tensor):
    """Means something else than its numbers, and cannot be taken apart."""

    @staticmethod
    def __new__(cls, data: Any) -> Any:
        return torch.Tensor._make_subclass(cls, data)


def place() -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def quantized(rows: int, number: int, *, same_scale: bool = True) -> Any:
    """A tensor of `rows` rows, each of which has its number; the scale is `number`'s, or this rank's."""
    rank = place()[0]
    whole = torch.arange(rows, dtype=torch.int8).unsqueeze(1).expand(rows, 6).contiguous() + number
    return Scaled(whole, torch.full((3,), float(number if same_scale else number + rank)))


def divided(number: int, *, same_scale: bool = True) -> Any:
    """A DTensor of 12 rows whose local parts are subclasses."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    rank, world = place()
    each = 12 // world
    tensor: Any = DTensor.from_local(
        torch.zeros(each, 6), init_device_mesh("cpu", (world,)), [Shard(0)], run_check=False
    )
    part = quantized(12, number, same_scale=same_scale)
    # The class knows no view, so from_local would make it plain.
    tensor._local_tensor = Scaled(part.whole[rank * each : (rank + 1) * each].clone(), part.scale)
    return tensor


def values(number: int, *, same_scale: bool = True) -> dict[str, Any]:
    memory = torch.full((6, 8), number, dtype=torch.int8)
    inside = Scaled(quantized(4, number), torch.full((3,), float(number)))  # a subclass as a part of another
    return {
        "model": {
            "plain": made(number, extra=True),
            "parameter": torch.nn.Parameter(made(number + 1)),
            "view": Scaled(memory.t()[:4, :6], torch.full((3,), float(number))),
            "nested": inside,
            "divided": divided(number, same_scale=same_scale),
            "usual": torch.full((2,), float(number)),
        },
        "step": number,
    }


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """What the state dict holds, less what each rank has alone."""
    model = state["model"]
    local = model["divided"]._local_tensor
    return {
        "plain": [model["plain"].whole.tolist(), model["plain"].scale.tolist(), float(model["plain"].extra)],
        "parameter": [model["parameter"].whole.tolist(), model["parameter"].scale.tolist()],
        "view": [model["view"].whole.tolist(), model["view"].scale.tolist()],
        "nested": [model["nested"].whole.whole.tolist(), model["nested"].whole.scale.tolist()],
        "usual": model["usual"].tolist(),
        "step": state["step"],
        "scale": local.scale.tolist(),
    }


def rows(state: dict[str, Any]) -> list[list[int]]:
    """The rows of the divided tensor that lie here."""
    return list(state["model"]["divided"]._local_tensor.whole.tolist())


def save(root: str, same_scale: bool = True) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.writer import Writer

    state = values(3, same_scale=same_scale)
    dcp.save(state, storage_writer=Writer(root, step=7))
    return {"numbers": numbers(state), "rows": rows(state)}


def save_with_manager(root: str) -> dict[str, Any]:
    from hyperpod_kit.checkpoint import Manager
    from hyperpod_kit.checkpoint.state_dict import StateDict

    state = values(3)
    with Manager(root) as manager:
        manager.restore(StateDict(values(3)))
        assert manager.save(7, StateDict(state), on_busy="wait").wait("durable", 60)
    return {"numbers": numbers(state), "rows": rows(state)}


def load(root: str) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    state = values(NOT_SAVED)
    memory = state["model"]["plain"].whole.data_ptr(), state["model"]["view"].whole.data_ptr()
    try:
        dcp.load(state, storage_reader=Reader(root))
    except dcp.api.CheckpointException as err:
        return {"refused": str(err)}
    in_place = memory == (state["model"]["plain"].whole.data_ptr(), state["model"]["view"].whole.data_ptr())
    return {"numbers": numbers(state), "rows": rows(state), "in place": in_place}


def unsettled(root: str) -> dict[str, Any]:
    """A DTensor whose local part is the result of a collective that nobody has waited for, on both sides."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from hyperpod_kit.checkpoint.dcp.reader import Reader
    from hyperpod_kit.checkpoint.dcp.writer import Writer

    rank, world = place()
    mesh = init_device_mesh("cpu", (world,))

    def gathered(number: float) -> Any:
        tensor = DTensor.from_local(torch.full((4, 8), number + rank), mesh, [Shard(0)], run_check=False)
        return tensor.redistribute(mesh, [Replicate()], async_op=True)

    dcp.save({"w": gathered(3.0)}, storage_writer=Writer(root, step=1))
    state = {"w": gathered(NOT_SAVED)}
    name = type(state["w"]._local_tensor).__name__
    dcp.load(state, storage_reader=Reader(root))
    return {"class": name, "sum": float(state["w"].to_local().sum()), "expected": float(gathered(3.0).to_local().sum())}


def load_without_tensors(root: str) -> dict[str, Any]:
    """As torch's `dcp_to_torch_save` reads: nobody has made the tensors that are filled."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    state: dict[str, Any] = {}
    _load_state_dict(state, storage_reader=Reader(root), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    plain = state["model"]["plain"]
    return {"names": sorted(state["model"]), "whole": plain["whole"].tolist(), "scale": plain["scale"].tolist()}


def load_other(root: str, kind: str) -> str:
    """Into a state dict that has another tensor in one place; what is refused."""
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    model: dict[str, Any] = {"plain": made(NOT_SAVED, extra=True), "usual": torch.zeros(2)}
    if kind == "plain here":
        model["plain"] = torch.zeros(4, 6)
    elif kind == "subclass here":
        model["usual"] = Scaled(torch.zeros(2, dtype=torch.int8), torch.zeros(1))
    elif kind == "other context":
        model["plain"] = made(NOT_SAVED, bits=4, extra=True)
    elif kind == "other shape":
        model["plain"] = Scaled(torch.zeros(4, 5, dtype=torch.int8), torch.zeros(3), 8, torch.tensor(0.0))
    elif kind == "in a DTensor":
        usual = divided(0)
        usual._local_tensor = torch.zeros(12 // place()[1], 6)
        model = {"divided": usual}
    try:
        dcp.load({"model": model}, storage_reader=Reader(root))
    except dcp.api.CheckpointException as err:
        return str(err)
    return "loaded"


def save_refused(root: str, kind: str) -> str:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.writer import Writer

    tensor: Any = WithoutParts(torch.zeros(4, 6))
    model = {"w": tensor, "usual": torch.zeros(2)}
    if kind == "in a DTensor":
        whole = divided(3)
        whole._local_tensor = tensor
        model["w"] = whole
    elif kind == "in a parameter":
        model["w"] = torch.nn.Parameter(tensor)
    elif kind == "as a view":
        model["w"] = tensor[:2]
    elif kind == "two names":
        model = {"w": made(3), "w.whole": torch.zeros(2)}
    try:
        dcp.save({"model": model}, storage_writer=Writer(root, step=1))
    except dcp.api.CheckpointException as err:
        return str(err)
    return "saved"
