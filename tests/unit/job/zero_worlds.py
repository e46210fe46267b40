"""A training under ZeRO whose losses are the same on any number of ranks: all of them see the same batches.

    zero_worlds.py FOLDER --rank RANK --ranks COUNT --stage STAGE --last STEP
                   [--plain DIR | --universal DIR] [--ours ROOT | --saved DIR]

With --plain or --universal DeepSpeed alone loads what is there, with --ours ZeroCheckpoints loads and saves at ROOT,
with --saved DeepSpeed alone saves the last step into DIR.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

WIDTH, ROWS = 64, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name in ("rank", "ranks", "stage", "last"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("plain", "universal", "ours", "saved"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    os.environ.update(RANK=str(given.rank), LOCAL_RANK=str(given.rank), WORLD_SIZE=str(given.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_WORLD_SIZE=str(given.ranks))
    meeting = f"file://{given.folder}/meeting"
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, which takes a minute
    dist.init_process_group("gloo", init_method=meeting, rank=given.rank, world_size=given.ranks)
    deepspeed.init_distributed("gloo")

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "zero_optimization": {"stage": given.stage},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
        "checkpoint": {"load_universal": bool(given.universal)},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    said, checkpoints = None, None
    if given.plain or given.universal:
        place, said = engine.load_checkpoint(given.plain or given.universal)
        assert place is not None, "nothing was loaded"
    if given.ours:
        from hyperpod_kit.checkpoint.adapters.deepspeed import ZeroCheckpoints

        checkpoints = ZeroCheckpoints(engine, given.ours)
        said = checkpoints.load() or said
        print("restored", getattr(checkpoints.found, "step", None), flush=True)
    for step in range(said["step"] if said else 0, given.last):
        torch.manual_seed(step)
        data = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)
        loss = (engine(data).float() - data.roll(1).float()).square().mean()
        engine.backward(loss)
        engine.step()
        with Path(given.folder, f"losses-{given.rank}.txt").open("a") as log:
            print(step + 1, loss.item().hex(), file=log)
        if checkpoints is not None:
            engine.save_checkpoint(str(given.folder / "deepspeed"), f"step-{step + 1}", client_state={"step": step + 1})
            assert checkpoints.newest is not None and checkpoints.newest.wait("durable", 120)
    if given.saved:
        engine.save_checkpoint(given.saved, client_state={"step": given.last})
    assert checkpoints is None or checkpoints.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
