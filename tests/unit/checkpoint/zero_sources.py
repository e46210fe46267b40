"""Files with DeepSpeed's names, keys and shapes (those that 0.19.8 writes under ZeRO 2 and 3 on two ranks), less
values of its own classes, so that it need not be there."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

SHARED = "mp_rank_00_model_states.pt"


def optimizer_file(rank: int) -> str:
    return f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def model_states(step: int, ranks: int, module: dict[str, Any]) -> dict[str, Any]:
    return {
        "module": module,
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [OrderedDict(a=torch.Size([3, 5]))],
        "shared_params": {"tied": "a"},
        "lr_scheduler": {"last_batch_iteration": step - 1},
        "skipped_steps": 1,
        "global_steps": step,
        "global_samples": 8 * step,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_config": {"train_micro_batch_size_per_gpu": 8},
        "client_state": {"note": ("x", 1)},
    }


def optimizer_states(step: int, rank: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    flat = torch.randn(3000, generator=generator)
    state = {"step": torch.tensor(float(step - 1)), "exp_avg": flat[:2000], "exp_avg_sq": flat.square()}
    groups = [{"lr": 0.01, "betas": (0.9, 0.999), "params": [0], "step": 7 * step}]
    return {
        "optimizer_state_dict": {
            "clip_grad": 1.0,
            "base_optimizer_state": {"state": {0: state}, "param_groups": groups},
            "single_partition_of_fp32_groups": [torch.randn(3000, generator=generator)],
            "partition_count": [2],
            "ds_version": "0.19.8",
        },
        "ds_version": "0.19.8",
    }


def written(folder: Path, *, stage: int = 2, step: int = 4, ranks: int = 2, tag: str = "") -> Path:
    """As `engine.save_checkpoint(folder)` writes it; the folder of the tag."""
    path = folder / (tag or f"global_step{step}")
    path.mkdir(parents=True)
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(step)).bfloat16()
    for rank in range(ranks):
        torch.save(optimizer_states(step, rank), path / optimizer_file(rank))
        if stage == 3:
            module: dict[str, Any] = OrderedDict(a=torch.empty(0, dtype=torch.bfloat16))
            torch.save(model_states(step, ranks, module), path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage < 3:
        torch.save(model_states(step, ranks, OrderedDict(a=weight, tied=weight)), path / SHARED)
    (folder / "latest").write_text(path.name)
    return path
