"""Saved by one number of ranks, restored by another: every tensor bit-equal, of every kind, sharded and replicated."""

from __future__ import annotations

import json
import os
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.environment import HPK_AGENT_LINGER, HPK_SHM_DIR
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.report import Budget, PartOutcome

CHANGES = ((4, 2), (4, 3), (2, 4), (3, 1), (1, 2), (8, 3))
_STEP = 7


def reshard_checkpoints(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Save and restore with each change of the world size once, more as `part.requested` says; record what was
    wrong."""
    begin = time.monotonic()
    while part.done < part.requested and not budget.over:
        before, after = CHANGES[part.done % len(CHANGES)]
        ground = here.make_subground(str(part.done))
        seed_here = seed + part.done
        wrong = _run_world(ground, seed_here, before, save=True)
        ground.kill_agents()
        if not wrong:
            wrong = _run_world(ground, seed_here, after, save=False)
        ground.kill_agents()
        part.done += 1
        part.counts[f"{before} -> {after}"] += 1
        if wrong:
            part.record_violation(f"seed {seed_here}, {before} -> {after} ranks: {wrong}")
    part.seconds = time.monotonic() - begin


def _run_world(ground: Ground, seed: int, world: int, *, save: bool) -> str:
    """Let `world` ranks save, or restore and compare; return what was wrong, or ""."""
    meeting = str(ground.disk / f"rendezvous-{world}-{save}")
    outcome_paths = [ground.disk / f"answer-{world}-{save}.{rank}" for rank in range(world)]
    ranks: list[BaseProcess] = [
        life.spawn(
            _run_rank, (ground.root, str(ground.shm), meeting, str(outcome_paths[rank]), seed, rank, world, save)
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.join(90.0)
        if rank.exitcode is None:
            rank.kill()
            rank.join()
    outcomes = [_read_outcome(path) for path in outcome_paths]
    return "; ".join(f"rank {rank}: {outcome}" for rank, outcome in enumerate(outcomes) if outcome != "equal")


def _run_rank(
    root: str, shm: str, meeting: str, outcome_path: str, seed: int, rank: int, world: int, save: bool
) -> None:
    os.environ.update({HPK_SHM_DIR: shm, HPK_AGENT_LINGER: "10", "GLOO_SOCKET_IFNAME": "lo"})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        outcome = _save_or_compare_returning_verdict(root, seed, save)
    except Exception as err:
        outcome = f"{type(err).__name__}: {str(err)[:600]}"
    by_descriptor.write_text(outcome_path, json.dumps(outcome))
    os._exit(0)


def _read_outcome(path: Path) -> Any:
    if not path.exists():
        return "no answer"
    return json.loads(path.read_text())


def _save_or_compare_returning_verdict(root: str, seed: int, save: bool) -> str:
    from hyperpod_kit.checkpoint import Manager, Restored, State

    model, optimizer = _make_sharded_model()
    state = State(model, optimizer, rng=False)
    manager = Manager(root)
    got = manager.restore(state)
    if save:
        _fill_with_expected_tensors(model, optimizer, seed)
        saved = manager.save(_STEP, state, on_busy="wait").wait(SaveState.DURABLE, timeout=60.0)
        wrong = []
        if not saved or not manager.close():
            wrong.append("it was not saved")
    else:
        wrong = _find_differences(model, optimizer, seed)
        if not isinstance(got, Restored) or got.step != _STEP:
            wrong.insert(0, f"restored {got}")
        manager.close()
    return "; ".join(wrong) or "equal"


def _make_sharded_model() -> tuple[Any, Any]:
    """Return a model of every kind of tensor, its parameters sharded over all ranks (some ranks get no row of
    some), and its optimizer."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Module()
    model.table = torch.nn.Parameter(torch.zeros(13, 6))
    model.wide = torch.nn.Parameter(torch.zeros(8, 3, 2))
    model.few = torch.nn.Parameter(torch.zeros(2))
    model.tied = model.table
    for name, (dtype, shape) in _BUFFERS.items():
        model.register_buffer(f"{name}_", torch.zeros(shape, dtype=getattr(torch, dtype)))
    model.register_buffer("slanted_", torch.zeros(5, 4, dtype=torch.float32).t())
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return model, torch.optim.AdamW(model.parameters())


_BUFFERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "nothing": ("float32", (0, 4)),
    "point": ("int64", ()),
    "truth": ("bool", (9,)),
    "half": ("float16", (3, 3)),
    "brain": ("bfloat16", (7, 2)),
    "eight": ("float8_e4m3fn", (5, 3)),
    "five": ("float8_e5m2", (4,)),
    "unsigned": ("float8_e4m3fnuz", (6,)),
    "complex": ("complex64", (2, 3)),
    "double": ("complex128", (3,)),
    "short": ("uint16", (5,)),
    "byte": ("uint8", (11,)),
}


def _named_tensors(model: Any, optimizer: Any) -> dict[str, Any]:
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, parameter in model.named_parameters():
        tensors |= {f"{name}:{key}": value for key, value in optimizer.state[parameter].items() if key != "step"}
    return tensors


def _expected_tensor(seed: int, name: str, tensor: Any) -> Any:
    """Return what the whole of this tensor must be."""
    import torch

    from hyperpod_lab.torture.subject import put_bytes

    expected = torch.zeros(tensor.shape, dtype=tensor.dtype)
    put_bytes(expected, random.Random(f"{seed}/{name}").randbytes(expected.numel() * expected.element_size()))
    return expected


def _fill_with_expected_tensors(model: Any, optimizer: Any, seed: int) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    for parameter in model.parameters():
        optimizer.state[parameter].update(
            step=torch.tensor(3.0), exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter)
        )
    with torch.no_grad():
        for name, tensor in _named_tensors(model, optimizer).items():
            expected = _expected_tensor(seed, name, tensor)
            if isinstance(tensor, DTensor):
                tensor.to_local().copy_(distribute_tensor(expected, tensor.device_mesh, tensor.placements).to_local())
            else:
                tensor.copy_(expected)


def _find_differences(model: Any, optimizer: Any, seed: int) -> list[str]:
    from torch.distributed.tensor import DTensor

    from hyperpod_lab.torture.subject import get_bytes

    wrong = []
    tensors = _named_tensors(model, optimizer)
    if len(tensors) != 3 + len(_BUFFERS) + 1 + 3 * 2:
        wrong.append(f"{len(tensors)} tensors")
    if model.tied is not model.table:
        wrong.append("the tie")
    for name, tensor in tensors.items():
        restored = tensor
        if isinstance(tensor, DTensor):
            restored = tensor.full_tensor()
        if get_bytes(restored) != get_bytes(_expected_tensor(seed, name, tensor)):
            wrong.append(name)
    return wrong
