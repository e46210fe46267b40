"""torchtitan's debug model. The lines that end in `# +` are what hyperpod-kit changes: without them it is the program
that it was.

    torchrun --nproc-per-node 2 examples/frameworks/torchtitan_llama.py --output OUTPUT

Kill it at any moment and start it again with the same words: it goes on bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import cpu_for_torchtitan  # noqa: F401  # nothing where there is a GPU; first
import torch
import torch.distributed as dist
import torchtitan.train
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torchtitan.config import ConfigManager

from hyperpod_kit.checkpoint.adapters.torchtitan import install  # +

SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>")


def prepare(folder: Path, text: str) -> None:
    """A tokenizer of bytes and a data set, which torchtitan has in its repository and not in its package."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(zip(("bos_token", "eos_token"), SPECIAL))))
    lines = [json.dumps({"text": piece}) for piece in text.split("\n\n")]
    (folder / "data" / "text.json").write_text("\n".join(lines))


class Trainer(torchtitan.train.Trainer):
    """Keeps the loss of each step, and the weights at the end."""

    def forward_backward_step(self, *given: Any, **words: Any) -> torch.Tensor:
        loss: torch.Tensor = super().forward_backward_step(*given, **words)
        with Path(self.job_config.job.dump_folder, f"losses-{dist.get_rank()}.txt").open("a") as log:
            print(self.step, loss.item().hex(), file=log)
        return loss

    def train(self) -> None:
        super().train()
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(self.model_parts[0], options=whole)
        if dist.get_rank() == 0:
            torch.save(weights, Path(self.job_config.job.dump_folder, "weights.pt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--text", default=__file__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-every", type=int, default=2)
    args, more = parser.parse_known_args()

    folder = Path(args.output, f"assets-{os.environ['RANK']}")
    prepare(folder, Path(args.text).read_text())
    words = {
        "model.name": "llama3",
        "model.flavor": "debugmodel",
        "model.hf_assets_path": folder,
        "job.dump_folder": args.output,
        "training.dataset": "c4_test",
        "training.dataset_path": folder / "data",
        "training.seq_len": 32,
        "training.local_batch_size": 2,
        "training.mixed_precision_param": "float32",
        "training.steps": args.steps,
        "checkpoint.interval": args.save_every,
        "checkpoint.keep_latest_k": 3,
    }
    switches = ["--checkpoint.enable", "--checkpoint.no-last_save_model_only"]
    given = [*(f"--{name}={value}" for name, value in words.items()), *switches, *more]
    install()  # +
    trainer = Trainer(ConfigManager().parse_args(given))
    trainer.train()
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
