"""Plain Megatron-core loads an exported checkpoint of examples/frameworks/megatron_gpt.py on one rank, and compares it
with the weights that the training left.

    plain_megatron.py EXPORTED WEIGHTS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "frameworks"))

import megatron_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig


def main(exported: str, weights: str) -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, gated_linear_unit=True, use_cpu_initialization=True
    )
    gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=32)
    found = dist_checkpointing.load({"model": gpt.sharded_state_dict()}, exported)
    gpt.load_state_dict(found["model"])
    for name, expected in torch.load(weights, weights_only=True).items():
        assert torch.equal(gpt.state_dict()[name], expected), name
    print("step", found["step"])


if __name__ == "__main__":
    main(*sys.argv[1:])
