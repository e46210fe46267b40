"""Jobs in which several sub-meshes of the ranks hold a tensor of one name alike: each divides all of it."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

KINDS = ("tp x fsdp", "tp x hsdp", "stages x fsdp")


def place() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


class Net(torch.nn.Module):
    """`first` and `last` are in the tensor parallel plan; the rest is outside of it, and cut unevenly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)
        self.out = torch.nn.Linear(6, 5)
        self.gain = torch.nn.Parameter(torch.randn(1))
        self.register_buffer("seen", torch.tensor(3))


def build(kind: str, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    if kind == "stages x fsdp":
        return _stages()
    model = Net()
    if kind == "plain":
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    world = place()[1]
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        return model
    mesh = init_device_mesh("cpu", (world // 2, 1, 2), mesh_dim_names=("replicate", "shard", "tp"))
    if kind == "tp x fsdp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("shard", "tp"))
    parallelize_module(model, mesh["tp"], {"first": ColwiseParallel(), "last": RowwiseParallel()})
    fully_shard(model, mesh=mesh["shard"] if kind == "tp x fsdp" else mesh["replicate", "shard"])
    return model


def _stages() -> torch.nn.Module:
    """Two stages, each divided among half of the ranks; the embedding is on both of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world = place()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("stage", "shard"))
    stage = rank // (world // 2)
    model = torch.nn.Module()
    model.add_module("embed", torch.nn.Linear(6, 5))
    layers = [torch.nn.Linear(5, 5 + number) for number in range(2)]
    model.add_module(f"stage{stage}", layers[stage])
    fully_shard(model, mesh=mesh["shard"])
    return model


def step(model: Any, optimizer: Any, number: int) -> None:
    for name, param in model.named_parameters():
        param.grad = torch.ones_like(param) * (0.1 * (number + 1) + len(name)) + 0.3 * param.detach()
    optimizer.step()


def average_of(model: Any) -> dict[str, Any]:
    """As a program keeps it beside the model."""
    return {name: param.detach() * 0.5 for name, param in model.named_parameters()}


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def named_tensors(model: Any, optimizer: Any, average: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from model.state_dict().items()
    for name, param in model.named_parameters():
        for key, value in optimizer.state[param].items():
            yield f"{name}.{key}", value
    for name, value in average.items():
        yield f"average.{name}", value


def holds(model: Any, optimizer: Any, average: dict[str, Any]) -> dict[str, str]:
    """Name -> digest of each whole tensor. A collective among the ranks that share it."""
    found = {}
    for name, tensor in named_tensors(model, optimizer, average):
        data = whole(tensor).contiguous()
        found[name] = hashlib.sha256(data.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
    return found


def job(kind: str, root: str, do: str, tier: str = "storage", form: str = "State") -> dict[str, Any]:
    """`save` three steps, with tier memory until all have sealed the last and the agents are killed; or `restore` into
    other values. What the ranks hold then, and after one step more."""
    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.checkpoint.state_dict import StateDict

    model = build(kind, 0 if do == "save" else 50)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    average = average_of(model)
    state: Any = State(model, optimizer, extra={"average": average}, full=form == "full")
    if form == "StateDict":
        state = StateDict({"model": model, "optimizer": optimizer, "average": average})
    manager = Manager(root)
    found = manager.restore(state)
    if do == "restore":
        answer = {"found": type(found).__name__, "tier": getattr(found, "tier", ""), "rejected": list(found.rejected)}
        answer["holds"] = holds(model, optimizer, average)
        step(model, optimizer, 3)
        answer["after"] = holds(model, optimizer, average)
        assert manager.close()
        return answer
    for number in range(3):
        step(model, optimizer, number)
        handle = manager.save(number, state, on_busy="wait")
    reached = handle.wait("durable" if tier == "storage" else "sealed", 60)
    saved: dict[str, Any] = {"reached": reached, "reason": str(handle.reason)}
    if tier == "memory":
        dist.barrier()
        manager._agent.tries = 0  # nobody takes its place
        os.kill(manager._agent.pid, signal.SIGKILL)
        assert manager._agent.wait_exit(20)
    saved["holds"] = holds(model, optimizer, average)
    step(model, optimizer, 3)
    saved["after"] = holds(model, optimizer, average)
    if tier == "storage":
        assert manager.close()
    return saved


def room_needed(kind: str) -> tuple[int, int]:
    """The bytes that this rank needs at least for a save of the model, and those of the whole model."""
    from hyperpod_kit.checkpoint.capture import shm_capacity

    model = build(kind, 0)
    everything = [*model.parameters(), *model.buffers()]
    return shm_capacity.min_save_bytes(model, place()[1]), sum(
        tensor.numel() * tensor.element_size() for tensor in everything
    )


def through_dcp(kind: str, root: str, do: str) -> dict[str, str]:
    """The model's state dict through torch.distributed.checkpoint, in a checkpoint of ours."""
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader
    from hyperpod_kit.checkpoint.dcp.writer import Writer

    model: Any = build(kind, 0 if do == "save" else 50)
    values: Any = {"model": model.state_dict()}
    if do == "save":
        dcp.save(values, storage_writer=Writer(root, step=7))
    else:
        dcp.load(values, storage_reader=Reader(root))
    return {name: str(whole(tensor).tolist()) for name, tensor in values["model"].items()}


def weights(kind: str, root: str) -> dict[str, str]:
    """What `load_weights` fills a model with that has other weights."""
    from hyperpod_kit.checkpoint import load_weights

    model = build(kind, 50)
    load_weights(root, model)
    return {
        name: digest
        for name, digest in holds(model, torch.optim.SGD(model.parameters(), 0.1), {}).items()
        if "average" not in name
    }


# --- what is no copy of one tensor --------------------------------------------------------------------------------


def _mesh(ranks: list[int]) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("cpu", ranks)


def odd(kind: str) -> torch.nn.Module:
    """`w` on sub-meshes which cannot hold it alike, or do not."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    rank, _ = place()
    mine = rank // 2
    meshes = [_mesh([0, 1]), _mesh([2, 3])]
    torch.manual_seed(mine if kind == "other values" else 0)
    shape = (4, 6 + 2 * mine) if kind == "other shapes" else (4, 6)
    dtype = torch.float64 if kind == "other types" and mine else torch.float32
    placement = [Shard(0), Shard(1), Replicate()][mine if kind == "other placements" else 0]
    model = torch.nn.Module()
    if kind == "one part lacks":
        if rank < 3:
            local = torch.randn(2, 6)
            w = DTensor.from_local(
                local, meshes[mine], [Shard(0)], run_check=False, shape=torch.Size(shape), stride=(6, 1)
            )
            model.register_parameter("w", torch.nn.Parameter(w))
        return model
    if kind == "other extents":
        meshes, mine = [_mesh([0, 1, 2]), _mesh([3])], rank // 3
    w = distribute_tensor(torch.randn(shape, dtype=dtype), meshes[mine], [placement])
    model.register_parameter("w", torch.nn.Parameter(w))
    return model


def refused(kind: str, root: str) -> tuple[str, str]:
    """When it was refused, and in which words."""
    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import CheckpointError

    model = odd(kind)
    manager = Manager(root)
    try:
        manager.restore(State(model))
        handle = manager.save(0, State(model), on_busy="wait")
        durable = handle.wait("durable", 60)
        return ("", "") if durable else ("save", str(handle.reason))
    except CheckpointError as err:
        return "restore", str(err)
    finally:
        manager.close()
