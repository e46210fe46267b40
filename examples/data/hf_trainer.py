"""The HF Trainer over a directory of text, streamed from where it lies: killed at any moment and started again with the
same words, on as many or other processes, it receives the batches that it would have received.

    python examples/data/hf_trainer.py DIR --root ROOT --epochs 2
    torchrun --nproc-per-node 2 examples/data/hf_trainer.py DIR --root ROOT --epochs 2 --batch 4
    hyperpod-kit data verify-ledger ROOT/ledger
"""

from __future__ import annotations

import argparse
import os

from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

from hyperpod_kit.data import IndexedDataset, padded
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.trainer import ElasticTrainer, newest_checkpoint

LENGTH = 64


def inputs(line: str) -> dict[str, object]:
    """Bytes as tokens, padded to one length; what is padding is no label."""
    found, mask = padded(list(line.encode()), LENGTH, 0)
    return {"input_ids": found, "attention_mask": mask, "labels": found * mask - 100 * (1 - mask)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="directory with *.txt")
    parser.add_argument("--root", required=True, help="checkpoints, index and ledger")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=10)
    args = parser.parse_args()

    training = TrainingArguments(
        os.path.join(args.root, "checkpoints"),
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulate,
        dataloader_num_workers=args.workers,
        save_steps=args.save_every,
        save_total_limit=3,
        logging_steps=1,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
    )
    with training.main_process_first(local=False):  # one makes the index, the others find it
        index = build_index([args.data], os.path.join(args.root, "index")).index
    set_seed(training.seed)  # before the model: its first weights are of it
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            attention_dropout=0.1,
        )
    )
    trainer = ElasticTrainer(
        model, training, train_dataset=IndexedDataset(index, transform=inputs), ledger=os.path.join(args.root, "ledger")
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(training.output_dir))


if __name__ == "__main__":
    main()
