"""torch.distributed.checkpoint around a model under FSDP2. The lines that end in `# +` are what hyperpod-kit changes:
with the line above each instead, it is the program that it was.

    torchrun --nproc-per-node 2 examples/frameworks/dcp.py --output OUTPUT

Kill it at any moment and start it again with the same words: it goes on bit for bit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

# import torch.distributed.checkpoint as dcp
from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints  # +

WIDTH = 128


class App:
    """Model and optimizer, as torch's tutorial of distributed checkpoints has them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        weights, state = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": state}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optim"])


class Progress:
    """The step, and this rank's random numbers."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "generator": torch.get_rng_state()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.step = saved["step"]
        torch.set_rng_state(saved["generator"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=2)
    args = parser.parse_args()
    checkpoints = os.environ.get("HPK_CHECKPOINT_ROOT") or os.path.join(args.output, "checkpoints")

    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, WIDTH)]
    model = torch.nn.Sequential(*layers)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    progress = Progress()
    state = {"app": App(model, optimizer), "progress": progress}

    dcp = Checkpoints(checkpoints, own=["progress"])  # +
    # dcp.load(state, checkpoint_id=newest(checkpoints))
    dcp.load(state)  # +
    pending = None
    losses = Path(args.output, f"losses-{dist.get_rank()}.txt")
    while progress.step < args.steps:
        data = torch.randn(64, WIDTH)
        loss = (model(data) - data.roll(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        progress.step += 1
        with losses.open("a") as log:
            print(progress.step, loss.item().hex(), file=log)
        if progress.step % args.save_every == 0:
            if pending is not None:
                pending.result()
            pending = dcp.async_save(state, checkpoint_id=f"{checkpoints}/step-{progress.step}")
    dcp.close()  # +
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(whole, Path(args.output, "weights.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
