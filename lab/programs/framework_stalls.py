"""How long training stands still for a save: each framework's own, and ours under it. One process, the same state.

    python lab/programs/framework_stalls.py [--megabytes 600] [--saves 5] [--folder DIR] [--only WORD]

The state is a model of one layer with AdamW, so three times its parameters (under DeepSpeed, with bf16, they are two
bytes more for each of them). Each row: the same loop of the framework,
first with its own saves, then with ours; a save begins when the one before is durable. What the row says is the time
between the call of a save and its return, of which the first (which makes buffers) is shown by itself. `memcpy` is a
copy of the same bytes into memory that is there already. A framework that is not installed, and a row that ends in an
error, say so in their place; each row is a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dlrover_stalls
import torch

STEPS_BETWEEN = 2
WIDTH = 1024

Times = list[float]


class Net(torch.nn.Module):
    """`megabytes` of parameters and moments; only few of them are used, so that a step costs little."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        rows = megabytes * 1024 * 1024 // (3 * 4 * WIDTH)
        self.table = torch.nn.Embedding(rows, WIDTH)

    def forward(self, x: Any, **_: Any) -> dict[str, Any]:
        return {"loss": self.table(x).square().mean()}


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        return {"x": torch.tensor([number % 8])}


@contextmanager
def time_calls_of(owner: Any, name: str, into: Times) -> Iterator[None]:
    """Time every call of `owner.name` within the block; the seconds are appended to `into`."""
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return real(*args, **options)
        finally:
            into.append(time.perf_counter() - begin)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, real)


def time_hugging_face_saves(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    flash = None
    if how == "dlrover":
        flash = dlrover_stalls.import_flash_trainer_class()
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from hyperpod_kit.checkpoint.adapters.huggingface import CheckpointedTrainer

    uses_kit = how == "ours"

    class Durable(TrainerCallback):  # type: ignore[misc]
        def on_save(self, *_: Any, **__: Any) -> None:
            if uses_kit:
                trainer._current_train_call_or_raise.newest.wait()
            elif flash is not None:
                dlrover_stalls.wait_for_tracked_step(folder, trainer.state.global_step)
            else:
                os.sync()

    arguments = TrainingArguments(
        str(folder),
        max_steps=saves * STEPS_BETWEEN,
        save_steps=STEPS_BETWEEN,
        save_total_limit=2,
        per_device_train_batch_size=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    kind = Trainer
    if flash is not None:
        kind = flash
    elif uses_kit:
        kind = CheckpointedTrainer
    trainer = kind(Net(megabytes), arguments, train_dataset=Rows(saves * STEPS_BETWEEN), callbacks=[Durable()])
    times: Times = []
    with time_calls_of(trainer, "_save_checkpoint", times):
        trainer.train()
    return times


def time_lightning_saves(uses_kit: bool, megabytes: int, saves: int, folder: Path) -> Times:
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from hyperpod_kit.checkpoint.adapters.lightning import CheckpointedFit

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(megabytes)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch["x"])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    class Durable(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None:
            if not uses_kit:
                os.sync()
            elif fit._newest is not None:
                fit._newest.wait()

    fit = CheckpointedFit(folder, every=STEPS_BETWEEN, keep=None)
    callback = ModelCheckpoint(folder, every_n_train_steps=STEPS_BETWEEN, save_top_k=-1)
    if uses_kit:
        callback = fit
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=saves * STEPS_BETWEEN,
        callbacks=[Durable(), callback],
        enable_checkpointing=not uses_kit,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    times: Times = []
    owner, name = trainer, "save_checkpoint"
    if uses_kit:
        owner, name = fit, "_save"
    with time_calls_of(owner, name, times):
        trainer.fit(Module(), torch.utils.data.DataLoader(Rows(saves * STEPS_BETWEEN + 1)))
    return times


def time_dcp_saves(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    import torch.distributed as dist
    import torch.distributed.checkpoint as torch_dcp

    from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints

    dist.init_process_group("gloo", init_method=f"file://{folder}.ranks", rank=0, world_size=1)
    times: Times = []
    try:
        model = Net(megabytes)
        optimizer = torch.optim.AdamW(model.parameters())
        state = {"model": model, "optimizer": optimizer}
        checkpoints = None
        if how == "ours":
            checkpoints = Checkpoints(folder)
            checkpoints.load(state)
        for save in range(saves):
            for _ in range(STEPS_BETWEEN):
                optimizer.zero_grad()
                model(torch.tensor([save]))["loss"].backward()
                optimizer.step()
            begin = time.perf_counter()
            if checkpoints is not None:
                done: Any = checkpoints.async_save(state, step=save)
            elif how == "async":
                done = torch_dcp.async_save(_state_dicts(state), checkpoint_id=folder / str(save))
            else:
                done = torch_dcp.save(_state_dicts(state), checkpoint_id=folder / str(save))
            times.append(time.perf_counter() - begin)
            if how == "save":
                os.sync()
            else:
                done.result()
        if checkpoints is not None:
            checkpoints.close()
    finally:
        dist.destroy_process_group()
    return times


def time_zero_saves(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = "0"
    import deepspeed
    import torch.distributed as dist

    from hyperpod_kit.checkpoint.adapters.deepspeed import ZeroCheckpoints

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
    if not dist.is_initialized():  # once: DeepSpeed keeps the groups that it has made
        dist.init_process_group("gloo", init_method=f"file://{folder}.ranks", rank=0, world_size=1)
        deepspeed.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }
    model = Net(megabytes)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def train(save: int) -> None:
        for _ in range(STEPS_BETWEEN):
            engine.backward(engine(torch.tensor([save]))["loss"])
            engine.step()

    if how == "dlrover":
        return dlrover_stalls.time_deepspeed_checkpointer(engine, train, saves, folder)
    checkpoints = None
    if how == "ours":
        checkpoints = ZeroCheckpoints(engine, folder / "ours", keep=None)
        checkpoints.load()
    times: Times = []
    for save in range(saves):
        train(save)
        with time_calls_of(engine, "save_checkpoint", times):
            engine.save_checkpoint(str(folder / "theirs"), f"step-{save}")
        if checkpoints is None:
            os.sync()
        else:
            assert checkpoints.newest is not None and checkpoints.newest.wait()
    if checkpoints is not None:
        checkpoints.close()
    return times


def _state_dicts(state: dict[str, Any]) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in state.items()}


def time_memcpy(megabytes: int, saves: int) -> Times:
    source, target = (torch.ones(megabytes * 1024 * 1024 // 4) for _ in range(2))
    times = []
    for _ in range(saves):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    return times


def benchmark_rows(size: int, saves: int) -> list[tuple[str, str, Callable[[Path], Times]]]:
    """Return (label, package that it needs, function) of each row."""
    return [
        ("memcpy", "torch", lambda _: time_memcpy(size, saves)),
        (
            "Trainer of transformers, its own",
            "transformers",
            lambda folder: time_hugging_face_saves("own", size, saves, folder),
        ),
        ("`CheckpointedTrainer`", "transformers", lambda folder: time_hugging_face_saves("ours", size, saves, folder)),
        (
            "DLRover's `FlashCkptTrainer`",
            "dlrover",
            lambda folder: time_hugging_face_saves("dlrover", size, saves, folder),
        ),
        ("Lightning, `ModelCheckpoint`", "lightning", lambda folder: time_lightning_saves(False, size, saves, folder)),
        ("`CheckpointedFit`", "lightning", lambda folder: time_lightning_saves(True, size, saves, folder)),
        ("`dcp.save`", "torch", lambda folder: time_dcp_saves("save", size, saves, folder)),
        ("`dcp.async_save`", "torch", lambda folder: time_dcp_saves("async", size, saves, folder)),
        ("`Checkpoints.async_save`", "torch", lambda folder: time_dcp_saves("ours", size, saves, folder)),
        (
            "DLRover's `DdpCheckpointer`, a plain loop",
            "dlrover",
            lambda folder: dlrover_stalls.time_ddp_checkpointer(Net(size), saves, STEPS_BETWEEN, folder),
        ),
        (
            "DeepSpeed's `save_checkpoint`, its own",
            "deepspeed",
            lambda folder: time_zero_saves("own", size, saves, folder),
        ),
        ("the same with `ZeroCheckpoints`", "deepspeed", lambda folder: time_zero_saves("ours", size, saves, folder)),
        (
            "DLRover's `DeepSpeedCheckpointer`",
            "dlrover",
            lambda folder: time_zero_saves("dlrover", size, saves, folder),
        ),
        (
            "Megatron-core's `dist_checkpointing.save`",
            "megatron",
            lambda folder: time_megatron_saves("own", size, saves, folder),
        ),
        (
            "Megatron-core's `async_sharded_save`, its own",
            "megatron",
            lambda folder: time_megatron_saves("async", size, saves, folder),
        ),
        (
            "the same with `MegatronCheckpoints`",
            "megatron",
            lambda folder: time_megatron_saves("ours", size, saves, folder),
        ),
        ("DLRover's `save_checkpoint` for Megatron", "dlrover", dlrover_stalls.try_megatron_with_dlrover),
    ]


def time_megatron_saves(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    return dlrover_stalls.time_megatron(how, Net(megabytes), saves, STEPS_BETWEEN, folder)


def run_row_in_child(run: Callable[[Path], Times], folder: Path, sender: Any) -> None:
    """In a process of its own: what one framework changes in torch, another row must not see."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        first, *later = run(folder)
        sender.send(f"{first:.3f} | {statistics.median(later):.3f} | {max(later):.3f}")
    except Exception as err:
        where = traceback.extract_tb(err.__traceback__)[-1]
        message = str(err).strip().splitlines()[0][:160]
        sender.send(f"{type(err).__name__} in {Path(where.filename).name}:{where.lineno}: {message} | |")
    sender.close()
    dlrover_stalls.kill_dlrover_processes()
    os._exit(0)  # not after a queue or a pool of a framework


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("bench-stalls"), help="on the disk to write to")
    parser.add_argument("--only", default="", help="rows with that in their name or package")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(f"| {args.megabytes} MB of state, {args.saves} saves | first, s | median of the others, s | longest, s |")
    print("| --- | --- | --- | --- |", flush=True)
    forked = multiprocessing.get_context("fork")
    for name, needs, run in benchmark_rows(args.megabytes, args.saves):
        if args.only not in f"{name} {needs}":
            continue
        if importlib.util.find_spec(needs) is None:
            print(f"| {name} | {needs} is not installed | | |", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(dir=args.folder)).resolve()
        receiver, sender = forked.Pipe(duplex=False)
        process = forked.Process(target=run_row_in_child, args=(run, folder, sender))
        process.start()
        sender.close()
        try:
            print(f"| {name} | {receiver.recv()} |", flush=True)
        except EOFError:
            print(f"| {name} | ended with {process.exitcode} | | |", flush=True)
        process.join()
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(args.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
