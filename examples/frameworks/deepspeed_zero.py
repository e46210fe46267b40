"""DeepSpeed with ZeRO on a small model. The lines that end in `# +` are what hyperpod-kit changes: with the lines above
them instead, it is the program that it was.

    torchrun --nproc-per-node 2 examples/frameworks/deepspeed_zero.py --output OUTPUT --stage 2

Without a GPU: DS_ACCELERATOR=cpu. Kill it at any moment and start it again with the same words: it goes on bit for bit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.adapters.deepspeed import ZeroCheckpoints  # +

WIDTH, ROWS = 128, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--stage", type=int, default=2)
    args = parser.parse_args()

    deepspeed.init_distributed("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1 + rank)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, WIDTH)]
    model = torch.nn.Sequential(*layers)
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 50}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    folder = os.path.join(args.output, "deepspeed")
    checkpoints = ZeroCheckpoints(engine, os.environ.get("HPK_CHECKPOINT_ROOT") or f"{args.output}/checkpoints")  # +
    # _, said = engine.load_checkpoint(folder)
    said = checkpoints.load()  # +
    step = said["step"] if said else 0
    while step < args.steps:
        data = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
        loss = (engine(data) - data.roll(1)).square().mean()
        engine.backward(loss)
        engine.step()
        step += 1
        with Path(args.output, f"losses-{rank}.txt").open("a") as log:
            print(step, loss.item().hex(), file=log)
        if step % args.save_every == 0:
            engine.save_checkpoint(folder, f"step-{step}", client_state={"step": step})
    checkpoints.close()  # +
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        weights = {name: value.detach().clone().float() for name, value in model.named_parameters()}
    torch.save(weights, Path(args.output, f"weights-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
