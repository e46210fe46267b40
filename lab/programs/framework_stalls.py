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
def calls_timed(owner: Any, name: str, into: Times) -> Iterator[None]:
    """Every call of `owner.name` is timed."""
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


def hugging_face(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    flash = dlrover_stalls.trainer_class() if how == "dlrover" else None
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from hyperpod_kit.checkpoint.adapters.huggingface import CheckpointedTrainer

    uses_kit = how == "ours"

    class Durable(TrainerCallback):  # type: ignore[misc]
        def on_save(self, *_: Any, **__: Any) -> None:
            if uses_kit:
                trainer._running.newest.wait()
            elif flash is not None:
                dlrover_stalls.wait_durable(folder, trainer.state.global_step)
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
    kind = flash or (CheckpointedTrainer if uses_kit else Trainer)
    trainer = kind(Net(megabytes), arguments, train_dataset=Rows(saves * STEPS_BETWEEN), callbacks=[Durable()])
    times: Times = []
    with calls_timed(trainer, "_save_checkpoint", times):
        trainer.train()
    return times


def lightning(uses_kit: bool, megabytes: int, saves: int, folder: Path) -> Times:
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
    plain = ModelCheckpoint(folder, every_n_train_steps=STEPS_BETWEEN, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=saves * STEPS_BETWEEN,
        callbacks=[Durable(), fit if uses_kit else plain],
        enable_checkpointing=not uses_kit,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    times: Times = []
    owner, name = (fit, "_save") if uses_kit else (trainer, "save_checkpoint")
    with calls_timed(owner, name, times):
        trainer.fit(Module(), torch.utils.data.DataLoader(Rows(saves * STEPS_BETWEEN + 1)))
    return times


def dcp(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    import torch.distributed as dist
    import torch.distributed.checkpoint as torch_dcp

    from hyperpod_kit.checkpoint.adapters.dcp import Checkpoints

    dist.init_process_group("gloo", init_method=f"file://{folder}.ranks", rank=0, world_size=1)
    times: Times = []
    try:
        model = Net(megabytes)
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoints = Checkpoints(folder) if how == "ours" else None
        state = {"model": model, "optimizer": optimizer}
        if checkpoints is not None:
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
                done = torch_dcp.async_save(_plain(state), checkpoint_id=folder / str(save))
            else:
                done = torch_dcp.save(_plain(state), checkpoint_id=folder / str(save))
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


def zero(how: str, megabytes: int, saves: int, folder: Path) -> Times:
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
        return dlrover_stalls.zero(engine, train, saves, folder)
    checkpoints = ZeroCheckpoints(engine, folder / "ours", keep=None) if how == "ours" else None
    if checkpoints is not None:
        checkpoints.load()
    times: Times = []
    for save in range(saves):
        train(save)
        with calls_timed(engine, "save_checkpoint", times):
            engine.save_checkpoint(str(folder / "theirs"), f"step-{save}")
        if checkpoints is None:
            os.sync()
        else:
            assert checkpoints.newest is not None and checkpoints.newest.wait()
    if checkpoints is not None:
        checkpoints.close()
    return times


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in state.items()}


def memcpy(megabytes: int, saves: int) -> Times:
    source, target = (torch.ones(megabytes * 1024 * 1024 // 4) for _ in range(2))
    times = []
    for _ in range(saves):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    return times


def rows(size: int, saves: int) -> list[tuple[str, str, Callable[[Path], Times]]]:
    """(what it says, the package that it needs, what does it)."""
    return [
        ("memcpy", "torch", lambda _: memcpy(size, saves)),
        ("Trainer of transformers, its own", "transformers", lambda folder: hugging_face("own", size, saves, folder)),
        ("`CheckpointedTrainer`", "transformers", lambda folder: hugging_face("ours", size, saves, folder)),
        ("DLRover's `FlashCkptTrainer`", "dlrover", lambda folder: hugging_face("dlrover", size, saves, folder)),
        ("Lightning, `ModelCheckpoint`", "lightning", lambda folder: lightning(False, size, saves, folder)),
        ("`CheckpointedFit`", "lightning", lambda folder: lightning(True, size, saves, folder)),
        ("`dcp.save`", "torch", lambda folder: dcp("save", size, saves, folder)),
        ("`dcp.async_save`", "torch", lambda folder: dcp("async", size, saves, folder)),
        ("`Checkpoints.async_save`", "torch", lambda folder: dcp("ours", size, saves, folder)),
        (
            "DLRover's `DdpCheckpointer`, a plain loop",
            "dlrover",
            lambda folder: dlrover_stalls.plain(Net(size), saves, STEPS_BETWEEN, folder),
        ),
        ("DeepSpeed's `save_checkpoint`, its own", "deepspeed", lambda folder: zero("own", size, saves, folder)),
        ("the same with `ZeroCheckpoints`", "deepspeed", lambda folder: zero("ours", size, saves, folder)),
        ("DLRover's `DeepSpeedCheckpointer`", "dlrover", lambda folder: zero("dlrover", size, saves, folder)),
        ("Megatron-core's `dist_checkpointing.save`", "megatron", lambda folder: megatron("own", size, saves, folder)),
        (
            "Megatron-core's `async_sharded_save`, its own",
            "megatron",
            lambda folder: megatron("async", size, saves, folder),
        ),
        ("the same with `MegatronCheckpoints`", "megatron", lambda folder: megatron("ours", size, saves, folder)),
        ("DLRover's `save_checkpoint` for Megatron", "dlrover", dlrover_stalls.megatron_with_dlrover),
    ]


def megatron(how: str, megabytes: int, saves: int, folder: Path) -> Times:
    return dlrover_stalls.megatron(how, Net(megabytes), saves, STEPS_BETWEEN, folder)


def run_row(run: Callable[[Path], Times], folder: Path, sender: Any) -> None:
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
    dlrover_stalls.end()
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
    for name, needs, run in rows(args.megabytes, args.saves):
        if args.only not in f"{name} {needs}":
            continue
        if importlib.util.find_spec(needs) is None:
            print(f"| {name} | {needs} is not installed | | |", flush=True)
            continue
        folder = Path(tempfile.mkdtemp(dir=args.folder)).resolve()
        receiver, sender = forked.Pipe(duplex=False)
        process = forked.Process(target=run_row, args=(run, folder, sender))
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
