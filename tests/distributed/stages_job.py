"""Jobs whose ranks hold other names: pipeline stages, experts of their own, DTensors over some of the ranks."""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any, Dict, List, Tuple


def _rank() -> Tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _linear(seed: int, width: int = 5) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Linear(width, 3)


def _build(kind: str, seed: int) -> Any:
    """`seed`: of the initial values; what is shared must be the same on all ranks that share it."""
    import torch

    rank, world = _rank()
    model = torch.nn.Module()
    if kind in ("stages", "stages_dp"):
        stage = rank if kind == "stages" else rank // 2
        model.add_module("embed", _linear(seed))  # tied across the first and the last stage
        if 0 < stage < (world if kind == "stages" else world // 2) - 1:
            del model.embed
        model.add_module(f"stage{stage}", _linear(seed + 10 + stage, 4 + stage))
        model.add_module("norm", torch.nn.BatchNorm1d(3))
    elif kind == "experts":
        model.add_module("router", _linear(seed))
        model.add_module("experts", torch.nn.ModuleList([_linear(seed + 100 * rank + n) for n in range(2)]))
    elif kind in ("submesh", "submesh_same"):
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Shard, distribute_tensor

        halves = [list(range(world // 2)), list(range(world // 2, world))]
        meshes = [DeviceMesh("cpu", half) for half in halves]
        mine = rank // (world // 2)
        torch.manual_seed(seed + mine)
        value = distribute_tensor(torch.randn(4, 6), meshes[mine], [Shard(0)])
        model.register_parameter("w" if kind == "submesh_same" else f"w{mine}", torch.nn.Parameter(value))
    return model


def _step(model: Any, optimizer: Any, number: int) -> None:
    import torch

    for name, param in model.named_parameters():
        param.grad = torch.ones_like(param) * (0.1 * (number + 1) + len(name))
    optimizer.step()


def _holds(model: Any, optimizer: Any) -> Dict[str, str]:
    import torch

    out = {}
    found = dict(model.state_dict())
    for number, values in optimizer.state_dict()["state"].items():
        found.update({f"{number}.{key}": value for key, value in values.items()})
    for name, value in found.items():
        value = (value.to_local() if hasattr(value, "to_local") else value).detach().contiguous()
        out[name] = hashlib.sha256(bytes(value.reshape(-1).view(torch.uint8).tolist())).hexdigest()
    return out


def job(kind: str, root: str, do: str, own: List[str], tier: str = "storage", how: Any = None) -> Dict[str, Any]:
    """`save` three steps and commit (with tier memory: until all have sealed it, then the agents are killed), or
    `restore` from other values. What this rank holds then."""
    import torch
    import torch.distributed as dist

    from hyperpod_kit.checkpoint import Manager, State

    model = _build(kind, 0 if do == "save" else 50)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    state, manager = State(model, optimizer, own=own), Manager(root, **(how or {}))
    got = manager.restore(state)
    if do == "save":
        for number in range(3):
            _step(model, optimizer, number)
            handle = manager.save(number, state, on_busy="wait")
        reached = handle.wait("durable" if tier == "storage" else "sealed", 20)
        answer: Dict[str, Any] = {"state": handle.state, "reason": handle.reason, "reached": reached}
        if tier == "memory":
            dist.barrier()
            manager._agent.tries = 0  # nobody takes its place
            os.kill(manager._agent.pid, signal.SIGKILL)
            assert manager._agent.wait_exit(20)
            answer["holds"] = _holds(model, optimizer)
            return answer
    else:
        answer = {"got": type(got).__name__, "tier": getattr(got, "tier", ""), "rejected": list(got.rejected)}
    answer["holds"] = _holds(model, optimizer)
    answer["closed"] = manager.close()
    return answer


def refused_at_restore(kind: str, root: str) -> str:
    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import CheckpointError

    model = _linear(0, 8 + 8 * _rank()[0]) if kind == "shapes" else _build(kind, 0)
    manager = Manager(root)
    try:
        manager.restore(State(model))
    except CheckpointError as err:
        manager.close()
        return str(err)
    raise AssertionError("it was restored")


def saved_without_restore(kind: str, root: str) -> Tuple[str, str]:
    from hyperpod_kit.checkpoint import Manager, State

    model = _linear(0, 8 + 8 * _rank()[0]) if kind == "shapes" else _build(kind, 0)
    manager = Manager(root)
    handle = manager.save(0, State(model))
    handle.wait("durable", 60)
    manager.close()
    return handle.state, str(handle.reason)


def changes_in_mid_training(root: str) -> List[Tuple[str, str]]:
    """A save, then a tensor that only rank 1 has, then one that all have; what became of each save."""
    import torch

    from hyperpod_kit.checkpoint import Manager, State

    rank, _ = _rank()
    model = _linear(0)
    state, manager = State(model), Manager(root)
    manager.restore(state)
    out = []

    def save(number: int) -> None:
        handle = manager.save(number, state)
        handle.wait("durable", 60)
        out.append((handle.state, str(handle.reason)))

    save(0)
    if rank == 1:
        model.register_buffer("late", torch.zeros(7))
    save(1)
    if rank == 0:
        model.register_buffer("late", torch.zeros(7))
    save(2)
    manager.close()
    return out
