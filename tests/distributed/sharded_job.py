"""A tiny training job in every kind of parallelism, as real processes over gloo, and what it holds: a digest a name."""

from __future__ import annotations

import hashlib
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from tests.distributed.rank_process import CONTEXT
from tests.support.ports import free_port

WIDTH = 10  # not divisible by 3 or 4: uneven and empty shards


def factored(model: Any) -> Any:
    """An optimizer of which the state is divided as its parameter and has another shape, as Adafactor's."""
    import torch

    class Factored(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for param in self.param_groups[0]["params"]:
                if param.grad is None or param.dim() < 2:
                    continue
                rows = param.grad.square().mean(1, keepdim=True)
                state = self.state[param]
                if not state:
                    state["rows"] = torch.zeros_like(rows)
                state["rows"].lerp_(rows, 0.5)
                param.sub_(param.grad / (state["rows"].sqrt() + 1.0), alpha=0.01)

    return Factored(model.parameters(), {})


def build(kind: str) -> tuple[Any, Any]:
    """(model, AdamW): a tied weight, a buffer, a bf16 and a 0-dim parameter. `KIND, factored`: another optimizer."""
    import torch

    kind, _, optimizer = kind.partition(", ")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(WIDTH, WIDTH)
            self.norm = torch.nn.BatchNorm1d(WIDTH)
            self.tied = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.tied.weight = self.first.weight
            self.last = torch.nn.Linear(WIDTH, 3)
            self.low = torch.nn.Linear(3, 2, dtype=torch.float32 if kind == "fsdp1" else torch.bfloat16)
            if kind != "fsdp1":
                self.scale = torch.nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Any) -> Any:
            x = self.last(self.tied(self.norm(self.first(x))))
            return self.low(x.to(self.low.weight.dtype)).float() * getattr(self, "scale", 1.0)

    model: Any = Net()
    if kind == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        from torch.distributed.tensor.placement_types import Replicate

        parallelize_module(
            model,
            init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),)),
            {"last": RowwiseParallel(input_layouts=Replicate()), "low": ColwiseParallel(output_layouts=Replicate())},
        )
    elif kind in ("fsdp2", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        world = int(os.environ["WORLD_SIZE"])
        shape, names = ((world,), ("shard",)) if kind == "fsdp2" else ((2, world // 2), ("replicate", "shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        scalar = {model.scale}
        fully_shard(model.last, mesh=mesh)
        fully_shard(model.low, mesh=mesh)
        fully_shard(model, mesh=mesh, ignored_params=scalar)
    elif kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    return model, factored(model) if optimizer else torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: Any, optimizer: Any, number: int) -> None:
    import torch

    torch.manual_seed(number)
    model(torch.randn(8, WIDTH)).square().sum().backward()
    bare = model.module if hasattr(model, "module") else model
    if hasattr(bare, "scale") and bare.scale.grad is not None:
        bare.scale.grad.fill_(0.25)  # ignored by fully_shard: nobody reduces it
    optimizer.step()
    optimizer.zero_grad()


def holds(model: Any, optimizer: Any) -> dict[str, str]:
    """Name -> digest of every whole tensor of model and optimizer, with its type and shape. A collective."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    states: Any = state.get("state", {})
    out = {}
    for name, tensor in weights.items():
        out[name] = tensor
    for name, values in states.items():
        out.update({f"{name}.{key}": value for key, value in values.items()})
    return {
        name: f"{t.dtype} {list(t.shape)} "
        + hashlib.sha256(bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist())).hexdigest()[:16]
        for name, t in out.items()
        if isinstance(t, torch.Tensor)
    }


def odd_tensors(rank: int) -> dict[str, Any]:
    """Each rank's own: kinds that a file of tensors can get wrong."""
    import torch

    torch.manual_seed(rank)
    return {
        "complex": torch.randn(3, 5, dtype=torch.complex64),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(7 + rank, dtype=torch.int16),
        "bits": torch.rand(9) > 0.5,
        "turned": torch.randn(6, 4).t(),
        "fp8": torch.randn(33).to(torch.float8_e4m3fn),
        "low": torch.randn(5, 2).to(torch.bfloat16),
    }


def equal(a: Any, b: Any) -> bool:
    import torch

    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return bool(torch.equal(*flat))


def job(kind: str, root: str, do: str, full: bool = False) -> dict[str, Any]:
    """`save`: train three steps and commit. `restore`: from other weights, restore. What this rank then holds."""
    import torch

    from hyperpod_kit.checkpoint import Manager, RestoreProgress, State
    from hyperpod_kit.checkpoint.transfer import restore_progress

    restore_progress.CALL_INTERVAL_S = 0.0

    rank = int(os.environ["RANK"])
    torch.manual_seed(0 if do == "save" else 99)
    model, optimizer = build(kind)
    extra: dict[str, Any] = {"own": odd_tensors(rank)} if do == "save" else {}
    state = State(model, optimizer, extra=extra, full=full)
    manager = Manager(root)
    heard: list[RestoreProgress] = []
    got = manager.restore(state, progress=heard.append)
    answer: dict[str, Any] = {
        "got": type(got).__name__,
        "progress": [one._asdict() for one in heard],
        "tier": getattr(got, "tier", ""),
        "rejected": getattr(got, "rejected", ()),
    }
    if do == "save":
        for number in range(3):
            step(model, optimizer, number)
        assert manager.save(2, state, on_busy="wait").wait("durable", 60)
    answer["extra_is_as_saved"] = all(equal(extra["own"][k], v) for k, v in odd_tensors(rank).items())
    answer["holds"] = holds(model, optimizer)
    step(model, optimizer, 7)
    answer["after_a_step"] = holds(model, optimizer)
    assert manager.close()
    return answer


def hybrid_by_groups(root: str) -> str:
    """Save FSDP1's hybrid sharding over 2 x 2 ranks, given as process groups. The error."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import StateNotSerializable

    rank = int(os.environ["RANK"])
    within = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    across = [torch.distributed.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    model = FullyShardedDataParallel(
        torch.nn.Linear(WIDTH, 4),
        process_group=(within, across),
        use_orig_params=True,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
    )
    manager, state = Manager(root), State(model)
    manager.restore(state)
    try:
        manager.save(0, state)
    except StateNotSerializable as err:
        assert manager.close()
        return str(err)
    raise AssertionError("it was saved")


def hybrid_by_groups_whole(root: str, seed: int) -> dict[str, Any]:
    """The same with whole tensors on rank 0: train and save, or restore into other weights. What the ranks then hold,
    and how much this rank kept of what was gathered."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from hyperpod_kit.checkpoint import Manager, Restored, State

    rank = int(os.environ["RANK"])
    within = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    across = [torch.distributed.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    torch.manual_seed(seed)
    model = FullyShardedDataParallel(
        torch.nn.Linear(WIDTH, 4),
        process_group=(within, across),
        use_orig_params=True,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    manager, state = Manager(root), State(model, optimizer, full=True)
    restored = isinstance(manager.restore(state), Restored)
    if not restored:
        step(model, optimizer, 0)
        kept = [piece.tensor for piece in state.tensors(manager.ranks).pieces if piece.temporary]
        assert kept and all(tensor.is_meta == bool(rank) for tensor in kept)
        assert manager.save(0, state, on_busy="wait").wait("durable", 60)
    answer = {"restored": restored, "holds": holds(model, optimizer)}
    assert manager.close()
    return answer


def _rank(rank: int, world: int, port: int, folder: str, function: str, arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        HPK_SHM_DIR=folder + "/shm",
        HPK_AGENT_LINGER="20",
    )
    import importlib

    import torch

    torch.set_num_threads(1)
    try:
        torch.distributed.init_process_group("gloo")
        module, _, name = function.rpartition(".")
        answer: Any = {"answer": getattr(importlib.import_module(module), name)(*arguments)}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    path = Path(folder, f"answer-{rank}.json")
    path.with_suffix(".new").write_text(json.dumps(answer))
    path.with_suffix(".new").rename(path)
    if "error" not in answer:
        torch.distributed.destroy_process_group()


def run(folder: Path, world: int, function: Any, *arguments: Any, timeout: float = 60.0) -> list[Any]:
    """What `function(*arguments)` returned on each of `world` ranks."""
    (folder / "shm").mkdir(exist_ok=True)
    port = free_port()
    name = f"{function.__module__}.{function.__qualname__}"
    ranks = [
        CONTEXT.Process(target=_rank, args=(rank, world, port, str(folder), name, arguments), daemon=True)
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    files = [folder / f"answer-{rank}.json" for rank in range(world)]
    end = time.monotonic() + timeout
    while any(process.is_alive() for process in ranks) and time.monotonic() < end:
        if any(path.exists() and "error" in path.read_text()[:9] for path in files):
            break  # the others may wait for it
        time.sleep(0.02)
    for process in ranks:
        process.join(1)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    found = [json.loads(path.read_text()) if path.exists() else {} for path in files]
    errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(found) if "error" in answer]
    assert not errors and all(found), f"exit codes {codes} (None: ran for {timeout:g} s)\n" + "\n".join(errors)
    for path in files:
        path.unlink()
    return [answer["answer"] for answer in found]
