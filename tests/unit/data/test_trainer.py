"""The HF Trainer under SIGKILL: resumed, it receives the batches that it would have received; its losses are equal."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from hyperpod_kit.errors import CheckpointError
from tests.support import warm

pytest.importorskip("transformers")

from transformers import Trainer, TrainerCallback, TrainingArguments

from hyperpod_kit.data.trainer import ElasticTrainer, newest_checkpoint, read_checkpoint_position

pytestmark = pytest.mark.full  # transformers, imported once more in each process

PROGRAM = Path(__file__).parents[3] / "examples" / "data" / "hf_trainer.py"
ENVIRONMENT = {
    "PYTHONPATH": str(PROGRAM.parents[2]),
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def program(place, name, *words, kill_at=None):
    """Run the example until its end, or until it has logged so many steps."""
    process = warm.Program(
        [str(PROGRAM), str(place / "corpus"), "--root", str(place / name), *words],
        env={**os.environ, **ENVIRONMENT},
        imported=warm.TRANSFORMERS,
    )
    logged = 0
    for line in process.stdout:
        logged += "'loss'" in line
        if logged == kill_at:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    return process.wait()


def received(ledger):
    """Position -> samples, the last time that they came."""
    lines = [
        json.loads(line)
        for path in sorted(ledger.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for line in path.read_text().splitlines()
    ]
    return {line["p"]: line["i"] for line in lines if "p" in line}


def losses(folder):
    """Step -> loss, as the newest checkpoint has them."""
    newest = newest_checkpoint(folder)
    assert newest is not None
    state = json.loads(Path(newest, "trainer_state.json").read_bytes())
    return {row["step"]: row["loss"] for row in state["log_history"] if "loss" in row}


def test_resumed_it_receives_the_same_batches(tmp_path):
    (tmp_path / "corpus").mkdir()
    lines = (f"document {n}: what it says\n" for n in range(150))
    (tmp_path / "corpus" / "a.txt").write_text("".join(lines))
    words = ("--epochs", "2", "--save-every", "4", "--batch", "4", "--accumulate", "3")  # 13 steps of 12 an epoch
    assert program(tmp_path, "calm", *words, "--workers", "0") == 0
    assert program(tmp_path, "killed", *words, "--workers", "2", kill_at=10) == -signal.SIGKILL
    # As a kill in the middle of a save leaves it.
    (tmp_path / "killed" / "checkpoints" / "checkpoint-11").mkdir()
    assert program(tmp_path, "killed", *words, "--workers", "1", kill_at=9) == -signal.SIGKILL
    assert program(tmp_path, "killed", *words, "--workers", "0") == 0
    assert received(tmp_path / "killed" / "ledger") == received(tmp_path / "calm" / "ledger")
    found = check_sample_log(tmp_path / "killed" / "ledger")
    assert found.is_exactly_once and found.launches == 3 and found.rolled_back > 0
    assert [(one.once, one.complete) for one in found.epochs] == [(150, True)] * 2
    assert losses(tmp_path / "killed" / "checkpoints") == losses(tmp_path / "calm" / "checkpoints")
    assert len(losses(tmp_path / "calm" / "checkpoints")) == 26


class Line(torch.nn.Module):
    """y = ax."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(1, 1)

    def forward(self, x, labels=None):
        found = self.inner(x)
        return {"loss": ((found - labels) ** 2).mean(), "out": found}


class Points:
    """40 of them."""

    def __len__(self):
        return 40

    def __getitem__(self, number):
        return {"x": np.array([number / 40], np.float32), "labels": np.array([number / 20], np.float32)}


def collate(samples):
    return {name: torch.from_numpy(np.stack([one[name] for one in samples])) for name in samples[0]}


def trainer(folder, kind=ElasticTrainer, callbacks=(), dataset=None, **options):
    arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "save_steps": 2, "logging_steps": 100}
    training = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, **arguments | options
    )
    return kind(Line(), training, train_dataset=dataset or Points(), data_collator=collate, callbacks=list(callbacks))


def test_more_steps_than_the_data_has_raise_before_training(tmp_path):
    with pytest.raises(
        ValueError, match=r"max_steps=11 is more than 10, the steps in 1 epoch of 10 steps each: set num_train_epochs=2"
    ):
        trainer(tmp_path, max_steps=11).train()
    assert not list(tmp_path.glob("checkpoint-*"))
    found = trainer(tmp_path, max_steps=11, num_train_epochs=2, save_strategy="no").train()
    assert found.global_step == 11


class Stream(torch.utils.data.IterableDataset[Any]):
    """Without a length."""

    def __iter__(self):
        points = Points()
        for number in range(len(points)):
            yield points[number]


def test_a_stream_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="is a Stream, expected a map-style data set with a length"):
        trainer(tmp_path, dataset=Stream(), max_steps=5).train()


class Positions(TrainerCallback):
    """Notes the loader's position at each step."""

    def __init__(self):
        self.found = []

    def on_step_end(self, args, state, control, train_dataloader=None, **others):
        self.found.append(train_dataloader.position)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_counts_what_the_trainer_received(tmp_path, workers):
    """And not what workers fetched ahead, nor half of a step."""
    seen = Positions()
    trainer(
        tmp_path, callbacks=[seen], dataloader_num_workers=workers, gradient_accumulation_steps=2, save_strategy="no"
    ).train()
    assert seen.found == [8, 16, 24, 32, 40]


def test_a_position_of_another_step_or_of_none_is_refused(tmp_path):
    trainer(tmp_path, max_steps=4).train()
    assert read_checkpoint_position(tmp_path / "checkpoint-4")["position"] == 16
    with pytest.raises(CheckpointError, match="a step has 8 samples, but had 4 in the checkpoint"):
        trainer(tmp_path, per_device_train_batch_size=8).train(resume_from_checkpoint=True)
    found = trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    assert found.train(resume_from_checkpoint=True).global_step == 10

    other = tmp_path / "other"
    trainer(other, kind=Trainer, max_steps=4).train()
    assert newest_checkpoint(other) is None
    with pytest.raises(CheckpointError, match=r"has no position in trainer_state.json: KeyError: 'DataPosition'"):
        trainer(other).train(resume_from_checkpoint=str(other / "checkpoint-4"))
    with pytest.raises(ValueError, match="has no checkpoint with a position"):
        trainer(other).train(resume_from_checkpoint=True)


def test_callbacks_that_are_restored_keep_the_position(tmp_path):
    options = {"restore_callback_states_from_checkpoint": True}
    trainer(tmp_path, max_steps=4, **options).train()
    assert trainer(tmp_path, **options).train(resume_from_checkpoint=True).global_step == 10
    assert read_checkpoint_position(tmp_path / "checkpoint-10")["position"] == 40
