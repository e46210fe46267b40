"""A training under one of three trainers whose samples of a step are the same on any number of ranks, so that losses
are too, up to the order of additions. Started by torch_ranks.py.

    trainer_worlds.py --kind huggingface|lightning|accelerate --output FOLDER --steps LAST [--sharded] [--plain STEP]

With --sharded the weights are under FSDP2. Lightning has that on CPUs; Accelerate, and the Hugging Face Trainer with
it, takes FSDP for a matter of accelerators, and `as_accelerators` lets it take these ranks for such. With --plain
Accelerate alone goes on from what `export_state` left in FOLDER/plain at that step.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch

ROWS, LENGTH, WORDS, WIDTH = 120, 8, 32, 16
BATCH = 12
"""Samples of a step, of all ranks together."""
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


def llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    size = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": LENGTH,
    }
    return LlamaForCausalLM(LlamaConfig(**size, num_hidden_layers=2, num_attention_heads=2))


def net() -> torch.nn.Sequential:
    torch.manual_seed(3)
    layers = [
        torch.nn.Embedding(WORDS, WIDTH),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, WORDS),
    ]
    return torch.nn.Sequential(*layers)


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    said = model(batch["input_ids"])
    return torch.nn.functional.cross_entropy(said.flatten(0, 1), batch["labels"].roll(1, 1).flatten())


def shard(model: torch.nn.Sequential) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def note(folder: Path, step: int, loss: float) -> None:
    with Path(folder, f"losses-{RANK}.txt").open("a") as log:
        print(step, float(loss).hex(), file=log)


def as_accelerators() -> None:
    """Accelerate takes the ranks that are known by now for such with an accelerator each; the device stays the CPU."""
    from accelerate.state import DistributedType, PartialState

    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def keep_whole(model: Any, folder: Path) -> None:
    """The weights at the end, whole: a collective where they are sharded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    whole: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if RANK == 0:
        torch.save({name: value.clone() for name, value in whole.items()}, folder / "weights.pt")


def huggingface(folder: Path, steps: int, sharded: bool) -> None:
    from transformers import TrainerCallback, TrainingArguments

    from hyperpod_kit.checkpoint.adapters.huggingface import CheckpointedTrainer

    class Losses(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                note(folder, state.global_step, logs["loss"])

    os.environ["FSDP_VERSION"] = "2"  # transformers 4.57 has no word for it
    fsdp2 = {"version": 2, "sync_module_states": False, "cpu_ram_efficient_loading": False}
    training = TrainingArguments(
        str(folder),
        max_steps=steps,
        lr_scheduler_type="constant",
        per_device_train_batch_size=BATCH // RANKS,
        save_steps=1,
        save_total_limit=3,
        logging_steps=1,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **({"fsdp": "full_shard auto_wrap", "fsdp_config": fsdp2} if sharded else {}),
    )
    assert training.device.type == "cpu"  # the ranks have met
    if sharded:
        as_accelerators()
    trainer = CheckpointedTrainer(llama(), training, train_dataset=Rows(), callbacks=[Losses()])
    trainer.train()
    keep_whole(trainer.model_wrapped, folder)


def lightning(folder: Path, steps: int, sharded: bool) -> None:
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy

    from hyperpod_kit.checkpoint.adapters.lightning import CheckpointedFit

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def configure_model(self) -> None:
            if sharded and not hasattr(self.net, "unshard"):
                shard(self.net)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            loss = loss_of(self.net, batch)
            note(folder, self.trainer.global_step + 1, loss.item())
            return loss

        def configure_optimizers(self) -> dict[str, Any]:
            adam = torch.optim.AdamW(self.parameters(), lr=1e-2)
            linear = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.1, 200)
            return {"optimizer": adam, "lr_scheduler": {"scheduler": linear, "interval": "step"}}

    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1) if sharded else "ddp",
        devices=RANKS,
        max_steps=steps,
        default_root_dir=folder,
        callbacks=[CheckpointedFit(every=1)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    model = Net()
    trainer.fit(model, torch.utils.data.DataLoader(Rows(), batch_size=BATCH // RANKS, shuffle=True))
    keep_whole(model, folder)


def accelerate(folder: Path, steps: int, sharded: bool, plain: int = 0) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
    from accelerate.state import PartialState

    from hyperpod_kit.checkpoint.adapters.accelerate import CheckpointedAccelerator

    plugin = None
    if sharded:
        PartialState(cpu=True)
        as_accelerators()
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="NO_WRAP")
    kind = Accelerator if plain else CheckpointedAccelerator
    its = kind(
        cpu=not sharded,
        project_dir=str(folder),
        fsdp_plugin=plugin,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    model = net()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH // RANKS, shuffle=True)
    model, adam, loader = its.prepare(model, adam, loader)
    if plain:
        its.load_state(str(folder / "plain"))
    step = plain or its.load_state()
    while step < steps:
        loader.set_epoch(step // len(loader))
        batches = its.skip_first_batches(loader, step % len(loader))
        if plain:
            batches.iteration = loader.iteration  # accelerate before 1.13 by itself begins to count epochs anew
        for batch in batches:
            loss = loss_of(model, batch)
            its.backward(loss)
            adam.step()
            adam.zero_grad()
            step += 1
            note(folder, step, loss.item())
            if not plain:
                its.save_state(step=step)
            if step == steps:
                break
    if not plain:
        its.export_state(folder / "plain")
    keep_whole(model, folder)
    its.end_training()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kind", choices=["huggingface", "lightning", "accelerate"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--plain", type=int, default=0)
    given = parser.parse_args()
    more = {"plain": given.plain} if given.plain else {}
    globals()[given.kind](given.output, given.steps, given.sharded, **more)


if __name__ == "__main__":
    main()
