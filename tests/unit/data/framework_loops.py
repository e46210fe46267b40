"""One loop over an ElasticLoader as each framework writes it: `python framework_loops.py FRAMEWORK ACT FOLDER`.

What was trained on is noted outside of the loader, by the step itself. An act is what a user does besides: look at a
batch, leave the loop, train on a part of each epoch, come back from a checkpoint, lose a worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.data import ElasticLoader
from hyperpod_kit.errors import DataError

SAMPLES, BATCH, EPOCHS = 40, 4, 2
FEW = 3
"""Batches of a loop that is left, or of an epoch that is limited."""
SEED = 2


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sample n is n."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((8,), float(number))


class Rows(Numbers):
    """The same, as a Trainer takes it."""

    def __getitem__(self, number: int) -> Any:
        return {"x": torch.full((8,), float(number))}


class Notes:
    """What this rank trained on, as a line for each step."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"trained.{os.environ.get('RANK', '0')}.jsonl"
        self.steps = 0

    def trained(self, batch: torch.Tensor) -> None:
        """Called by the step itself."""
        self.steps += 1
        with open(self._path, "a") as stream:
            stream.write(json.dumps([int(one) for one in batch[:, 0].tolist()]) + "\n")


def loader_for(act: str, **options: Any) -> ElasticLoader:
    return ElasticLoader(Numbers(), BATCH, seed=SEED, num_workers=2 if act == "killed" else 0, **options)


def kill_a_worker() -> None:
    """One of this process's children, at a moment when batches are on their way."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)


def own_loop(loader: ElasticLoader, given: Any, notes: Notes, act: str, step: Any, save: Any, restored: bool) -> None:
    """The loop of those who write it themselves. `given`: what the framework makes of the loader."""
    if act == "peek":
        next(iter(given))
    if act == "break":
        for number, batch in enumerate(given, 1):
            step(batch)
            if number == FEW:
                loader.trained()
                break
    epoch = loader.epoch
    while epoch < EPOCHS:
        if act == "limit":
            loader.set_epoch(epoch)
        for number, batch in enumerate(islice(given, FEW) if act == "limit" else given):
            step(batch)
            if act == "killed" and number == 1:
                kill_a_worker()
            if act == "restart" and not restored and notes.steps == FEW:
                save()
                return
        epoch = epoch + 1 if act == "limit" else loader.epoch


def plain(act: str, folder: Path, restored: bool) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    notes, loader = Notes(folder), loader_for(act)
    state = folder / f"plain.{os.environ.get('RANK', '0')}.pt"
    if restored:
        loader.load_state_dict(torch.load(state))
    own_loop(loader, loader, notes, act, notes.trained, lambda: torch.save(loader.state_dict(), state), restored)


def accelerate(act: str, folder: Path, restored: bool) -> None:
    from accelerate import Accelerator

    prepared(Accelerator(cpu=True, gradient_accumulation_steps=2), act, folder, restored)


def accelerate_deepspeed(act: str, folder: Path, restored: bool) -> None:
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import DistributedType, PartialState

    deepspeed_on_cpus()
    os.environ.pop("ACCELERATE_USE_CPU")
    # Accelerate takes DeepSpeed for a matter of accelerators: the one line that lets it take CPUs.
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_CPU)
    plugin = DeepSpeedPlugin(zero_stage=1, gradient_accumulation_steps=2)
    plugin.deepspeed_config.update(train_micro_batch_size_per_gpu=BATCH, zero_allow_untested_optimizer=True)
    prepared(Accelerator(deepspeed_plugin=plugin), act, folder, restored)


def prepared(accelerator: Any, act: str, folder: Path, restored: bool) -> None:
    """The loop of one who gives Accelerate all that he has."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = loader_for(act)
    model, optimizer, given = accelerator.prepare(model, optimizer, loader)
    notes, synced = Notes(folder), []
    if restored:
        accelerator.load_state(str(folder / "accelerate"))

    def step(batch: torch.Tensor) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            synced.append(accelerator.sync_gradients)
        notes.trained(batch)

    own_loop(loader, given, notes, act, step, lambda: accelerator.save_state(str(folder / "accelerate")), restored)
    if act == "peek" and len(given) % 2:
        assert synced[len(given) - 1], "the last batch of an epoch ends the accumulation"


def fabric(act: str, folder: Path, restored: bool) -> None:
    from lightning.fabric import Fabric

    world = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto")
    fabric.launch()
    model = fabric.setup(torch.nn.Linear(8, 1))
    loader = loader_for(act)
    given = fabric.setup_dataloaders(loader)
    notes, place = Notes(folder), str(folder / f"fabric.{fabric.global_rank}.ckpt")
    if restored:
        loader.load_state_dict(torch.load(place))

    def step(batch: torch.Tensor) -> None:
        fabric.backward(model(batch).sum())
        notes.trained(batch)

    own_loop(loader, given, notes, act, step, lambda: torch.save(loader.state_dict(), place), restored)


def lightning(act: str, folder: Path, restored: bool) -> None:
    from lightning.pytorch import LightningModule, Trainer

    notes, saved = Notes(folder), folder / "lightning.ckpt"

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            notes.trained(batch)
            if act == "killed" and number == 1:
                kill_a_worker()
            loss: torch.Tensor = self.layer(batch).sum()
            return loss

        def on_train_batch_start(self, batch: torch.Tensor, number: int) -> int | None:
            return -1 if act == "break" and self.current_epoch == 0 and number == FEW else None

        def on_train_batch_end(self, outputs: Any, batch: torch.Tensor, number: int) -> None:
            if act == "restart" and not restored and notes.steps == FEW:
                self.trainer.save_checkpoint(saved)
                self.trainer.should_stop = True

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_epochs=EPOCHS,
        limit_train_batches=FEW if act == "limit" else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    if world > 1:
        trainer.strategy.setup_environment()
    loader = loader_for(act, rank=trainer.global_rank, ranks=world)
    if act == "peek":
        next(iter(loader))
    trainer.fit(Model(), loader, ckpt_path=str(saved) if restored else None, weights_only=False)


def trainer(act: str, folder: Path, restored: bool) -> None:
    from transformers import TrainerCallback, TrainingArguments

    from hyperpod_kit.data.trainer import ElasticTrainer

    notes = Notes(folder)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> Any:
            if self.training:
                notes.trained(x)
                if act == "killed" and notes.steps == 2:
                    kill_a_worker()
            return {"loss": self.layer(x).sum()}

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
            if act in ("restart", "break") and not restored and state.global_step == FEW:
                control.should_save = control.should_training_stop = True

    arguments = TrainingArguments(
        output_dir=str(folder / "hf"),
        num_train_epochs=EPOCHS,
        max_steps=FEW if act == "limit" else -1,
        per_device_train_batch_size=BATCH,
        learning_rate=0.0,
        seed=SEED,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_num_workers=2 if act == "killed" else 0,
        dataloader_pin_memory=False,
    )
    model = Model()
    made = ElasticTrainer(model, arguments, train_dataset=Rows(), callbacks=[Stop()])
    if act == "peek":
        next(iter(made.get_train_dataloader()))
    made.train(resume_from_checkpoint=True if restored else None)
    if act == "break":
        restored = True
        ElasticTrainer(model, arguments, train_dataset=Rows()).train(resume_from_checkpoint=True)


def deepspeed_on_cpus() -> Any:
    """The package, with this process's ranks."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, which takes a minute
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed("gloo")
    return deepspeed


def engine_of(deepspeed: Any, **options: Any) -> Any:
    """A small model under ZeRO."""
    model = torch.nn.Linear(8, 1)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0, "torch_adam": True}},
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, **options)[0]


def deepspeed(act: str, folder: Path, restored: bool) -> None:
    package = deepspeed_on_cpus()
    beside_an_engine(package, loader := loader_for(act), loader, act, folder, restored)


def deepspeed_repeating(act: str, folder: Path, restored: bool) -> None:
    from deepspeed.utils import RepeatingLoader

    package = deepspeed_on_cpus()
    loader = loader_for(act, epochs=EPOCHS)
    if act == "peek":  # what repeats is one iterator, by which nobody only looks
        next(iter(loader))
        act = ""
    beside_an_engine(package, loader, RepeatingLoader(loader), act, folder, restored)


def beside_an_engine(package: Any, loader: ElasticLoader, given: Any, act: str, folder: Path, restored: bool) -> None:
    """The position is in what the engine's checkpoint keeps for its user."""
    engine, notes, place = engine_of(package), Notes(folder), str(folder / "deepspeed")
    if restored:
        _, saved = engine.load_checkpoint(place)
        loader.load_state_dict(saved["loader"])

    def step(batch: torch.Tensor) -> None:
        engine.backward(engine(batch).sum())
        engine.step()
        notes.trained(batch)

    def save() -> None:
        engine.save_checkpoint(place, client_state={"loader": loader.state_dict()})

    own_loop(loader, given, notes, act, step, save, restored)


def deepspeed_built_anew(act: str, folder: Path, restored: bool) -> None:
    """What DeepSpeed would make of the loader itself, or of its parts; then an epoch of the loader as it is."""
    package, notes, loader = deepspeed_on_cpus(), Notes(folder), loader_for(act)
    with contextlib.suppress(ValueError):  # "Training data must be a torch Dataset"
        engine_of(package, training_data=loader)
        raise AssertionError("DeepSpeed took a loader for a data set")
    engine = engine_of(package)
    for sampler in (loader.sampler, loader.batch_sampler):
        anew = engine.deepspeed_io(loader.dataset, data_sampler=sampler, num_local_io_workers=0, pin_memory=False)
        try:
            next(iter(anew))
        except DataError as err:
            assert "rebuilt" in str(err)
            continue
        raise AssertionError("a loader that was built anew gave a batch")
    for batch in loader:
        notes.trained(batch)


LOOPS = {
    "plain": plain,
    "accelerate": accelerate,
    "fabric": fabric,
    "lightning": lightning,
    "trainer": trainer,
    "deepspeed": deepspeed,
    "deepspeed_repeating": deepspeed_repeating,
    "deepspeed_built_anew": deepspeed_built_anew,
    "accelerate_deepspeed": accelerate_deepspeed,
}


if __name__ == "__main__":
    framework, act, folder = sys.argv[1:4]
    LOOPS[framework](act, Path(folder), len(sys.argv) > 4)
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
