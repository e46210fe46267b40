"""A small GPT of Megatron-core with its distributed optimizer. The lines that end in `# +` are what hyperpod-kit
changes: with the lines above them instead, it is the program that it was.

    torchrun --nproc-per-node 2 examples/frameworks/megatron_gpt.py --output OUTPUT --tensor-parallel 2

Kill it at any moment and start it again with the same words: it goes on bit for bit. Another number of ranks or another
`--tensor-parallel` goes on too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import megatron_on_cpu  # noqa: F401  # nothing where there is a GPU
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

# from megatron.core import dist_checkpointing
from hyperpod_kit.checkpoint.adapters.megatron import MegatronCheckpoints  # +

WORDS, LENGTH, ROWS = 128, 32, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--optimizer-format", default="fully_reshardable")
    args = parser.parse_args()
    checkpoints = os.environ.get("HPK_CHECKPOINT_ROOT") or os.path.join(args.output, "checkpoints")

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(args.tensor_parallel)
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        gated_linear_unit=True,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        pipeline_dtype=torch.float32,
    )
    gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), gpt)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3, use_distributed_optimizer=True), [model])

    def state(*, is_loading: bool = False) -> dict[str, Any]:
        weights = gpt.sharded_state_dict()
        said = {"distrib_optim_sharding_type": args.optimizer_format}
        moments = optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=said)
        return {"step": step, "model": weights, "optimizer": moments}

    step = 0
    dist_checkpointing = MegatronCheckpoints(checkpoints)  # +
    # if newest(checkpoints):
    if dist_checkpointing.newest():  # +
        saved = dist_checkpointing.load(state(is_loading=True), f"{checkpoints}/newest")
        gpt.load_state_dict(saved["model"])
        with torch.no_grad():
            optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]

    rank, replica = dist.get_rank(), parallel_state.get_data_parallel_rank()
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]
    places = torch.arange(LENGTH).expand(ROWS, LENGTH)
    while step < args.steps:
        generator = torch.Generator().manual_seed(step * 1000 + replica)
        tokens = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = model(tokens, places, mask, labels=tokens).mean()
        loss.backward()
        finalize_model_grads([model])
        optimizer.step()
        step += 1
        with Path(args.output, f"losses-{rank}.txt").open("a") as log:
            print(step, loss.item().hex(), file=log)
        if step % args.save_every == 0:
            dist_checkpointing.save(state(), f"{checkpoints}/iter_{step:07d}", async_sharded_save=True)
    dist_checkpointing.close()  # +
    weights = {name: value for name, value in gpt.state_dict().items() if isinstance(value, torch.Tensor)}
    torch.save(weights, Path(args.output, f"weights-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
