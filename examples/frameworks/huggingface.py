"""The Hugging Face Trainer on a small Llama and bytes of text. One line, which ends in `# +`, is what hyperpod-kit
changes: with the line above it instead, it is the program that it was.

    python examples/frameworks/huggingface.py --output OUTPUT
    torchrun --nproc-per-node 2 examples/frameworks/huggingface.py --output OUTPUT

Kill it at any moment and start it again with the same words: it goes on bit for bit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

# from transformers import Trainer
from hyperpod_kit.checkpoint.adapters.huggingface import CheckpointedTrainer as Trainer  # +

LENGTH = 32


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Pieces of a text, as bytes."""

    def __init__(self, text: bytes) -> None:
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self._tokens) // LENGTH

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        piece = self._tokens[number * LENGTH : (number + 1) * LENGTH]
        return {"input_ids": piece, "labels": piece}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--text", default=__file__)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--save-every", type=int, default=3)
    args = parser.parse_args()

    training = TrainingArguments(
        args.output,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_steps=args.save_every,
        save_total_limit=3,
        logging_steps=1,
        learning_rate=1e-3,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    set_seed(training.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            attention_dropout=0.1,
        )
    )
    trainer = Trainer(model, training, train_dataset=Text(Path(args.text).read_bytes()))
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
