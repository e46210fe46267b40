"""Plain Megatron-core saves a small GPT on one rank; it is imported, and MegatronCheckpoints loads it into another GPT.

megatron_in.py FOLDER
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

from hyperpod_kit.checkpoint.adapters.megatron import MegatronCheckpoints
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint


def gpt(seed: int) -> GPTModel:
    torch.manual_seed(seed)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, gated_linear_unit=True, use_cpu_initialization=True
    )
    return GPTModel(config, get_gpt_layer_local_spec(), vocab_size=128, max_sequence_length=32)


def main(folder: Path) -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1)
    torch.cuda.synchronize = lambda *_: None  # its save waits for a GPU
    saved, other = gpt(1), gpt(2)
    (folder / "plain").mkdir()
    dist_checkpointing.save({"model": saved.sharded_state_dict(), "iteration": 4}, str(folder / "plain"))
    made = import_checkpoint(folder / "plain", "megatron", folder / "root")
    assert (made.step, made.unchecked) == (4, 0), made
    with MegatronCheckpoints(str(folder / "root"), rng=False) as checkpoints:
        found = checkpoints.load({"model": other.sharded_state_dict()})
        assert found is not None and found["iteration"] == 4, found
        other.load_state_dict(found["model"])
    weights = {name: one for name, one in saved.state_dict().items() if isinstance(one, torch.Tensor)}
    assert weights and all(torch.equal(one, other.state_dict()[name]) for name, one in weights.items())
    print("loaded", len(weights))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
