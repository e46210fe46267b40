"""The Hugging Face Trainer over this engine, one process: what resumes, what goes back, what others can read.

Two ranks under SIGKILL are in tests/unit/job/test_huggingface.py."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState

from hyperpod_kit.checkpoint.adapters.huggingface import (
    CheckpointedTrainer,
    CheckpointedTraining,
    get_last_checkpoint,
)
from hyperpod_kit.checkpoint.convert.export_checkpoint import export
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.saves.preemption_signal import SIGNALS
from hyperpod_kit.errors import CheckpointError
from tests.support.damage import flip
from tests.support.wait import until

LENGTH = 8


class Numbers(torch.utils.data.Dataset[Any]):
    """Sequences of tokens that follow from their number."""

    def __init__(self, count=32):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        tokens = torch.randint(0, 32, (LENGTH,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


def made():
    set_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            attention_dropout=0.1,
            tie_word_embeddings=True,
        )
    )


def trainer(folder, *, kind=CheckpointedTrainer, model=None, callbacks=(), own=None, **options):
    words = {"num_train_epochs": 3, "per_device_train_batch_size": 4, "save_steps": 4, "logging_steps": 1}
    training = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, **words | options
    )
    found: Any = kind(model or made(), training, train_dataset=Numbers(), callbacks=list(callbacks), **own or {})
    if issubclass(kind, CheckpointedTraining):
        found.add_callback(Durable(found))
    return found


class Durable(TrainerCallback):
    """Steps that are shorter than a save: none is skipped, so that a test knows which are there."""

    def __init__(self, training):
        self.training = training

    def on_save(self, args, state, control, **_):
        assert self.training._current_train_call_or_raise.newest.wait("durable", 60)


class Fails(TrainerCallback):
    """A program that ends at a step with an exception."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            raise RuntimeError("the program's own")


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def trace(found):
    keys = ("step", "loss", "grad_norm", "learning_rate")
    return [tuple(row[key] for key in keys) for row in found.state.log_history if "loss" in row]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def steps(root):
    return [entry.name.step for entry in catalog.list_checkpoints(str(root)) if entry.committed]


@pytest.fixture
def folder(shm, tmp_path, monkeypatch):
    monkeypatch.delenv("HPK_CHECKPOINT_ROOT", raising=False)
    return tmp_path / "out"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What the Trainer of transformers makes of it by itself."""
    found = trainer(tmp_path_factory.mktemp("calm"), kind=Trainer, save_strategy="no")
    found.train()
    return found


class Counts(TrainerCallback, ExportableState):
    """As an early stop that waits: what it has counted is in `trainer_state.json`."""

    def __init__(self, limit=9):
        self.limit, self.steps = limit, 0

    def state(self):
        return {"args": {"limit": self.limit}, "attributes": {"steps": self.steps}}

    def on_step_end(self, args, state, control, **_):
        self.steps += 1
        control.should_training_stop = self.steps >= self.limit


@pytest.mark.full
def test_what_callbacks_have_counted_goes_on(folder):
    with pytest.raises(RuntimeError, match="the program's own"):
        trainer(folder, callbacks=[Counts(), Fails(6)]).train()
    last = trainer(folder, callbacks=[Counts()])
    assert last.train().global_step == 9


class DiesOnceDurable(TrainerCallback):
    """A program that ends with an exception when a step is durable."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **_):
        assert state.global_step < self.step, "it trains past its end"

    def on_log(self, args, state, control, logs=None, **_):
        if state.global_step == self.step and "train_runtime" in logs:
            raise RuntimeError("the program's own")


EVALUATED = {
    "eval_strategy": "steps",
    "eval_steps": 4,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": True,  # it falls, so that no evaluation is better than the first
}


def patient(folder, *more, patience=1, **options):
    callbacks = [EarlyStoppingCallback(patience), *more]
    return trainer(folder, callbacks=callbacks, own={"eval_dataset": Numbers(8)}, **EVALUATED, **options)


def test_a_run_that_died_after_its_early_stop_trains_no_step_more(folder):
    with pytest.raises(RuntimeError, match="the program's own"):
        patient(folder, DiesOnceDurable(8)).train()
    assert steps(folder / "checkpoints")[0] == 8
    again = patient(folder, DiesOnceDurable(8), num_train_epochs=3)
    with pytest.raises(RuntimeError, match="the program's own"):
        again.train()
    last = patient(folder)
    assert last.train().global_step == 8 and last.state.num_train_epochs == 3
    assert same(weights(last.model), weights(again.model))
    longer = patient(folder, num_train_epochs=4)
    assert longer.train().global_step == 12


def test_a_run_that_died_after_its_last_step_trains_no_step_more(folder):
    options = {"max_steps": 10, "save_steps": 5}  # in the midst of an epoch
    with pytest.raises(RuntimeError, match="the program's own"):
        trainer(folder, callbacks=[DiesOnceDurable(10)], **options).train()
    last = trainer(folder, **options)
    assert last.train().global_step == 10 and len(trace(last)) == 10


@pytest.mark.full
def test_it_ends_as_an_undisturbed_trainer_of_transformers(folder, calm):
    for step in (6, 13):
        with pytest.raises(RuntimeError, match="the program's own"):
            trainer(folder, callbacks=[Fails(step)]).train()
    last = trainer(folder)
    assert last.train().global_step == 24
    assert same(weights(last.model), weights(calm.model)) and trace(last) == trace(calm)
    assert steps(folder / "checkpoints")[0] == 24 and not list(folder.glob("checkpoint-*"))
    newest = get_last_checkpoint(folder / "checkpoints")
    assert newest is not None and newest.endswith(
        catalog.list_checkpoints(str(folder / "checkpoints"))[0].checkpoint_id
    )


def test_told_by_a_signal_it_saves_the_step_that_it_is_at_and_ends_with_75(folder, calm):
    class Told(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 6:
                os.kill(os.getpid(), signal.SIGUSR1)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        told = trainer(folder, callbacks=[Told()], own={"checkpoint_options": {"save_on_signal": True}})
        with pytest.raises(SystemExit) as ended:
            told.train()
        os.kill(os.getpid(), signal.SIGUSR1)  # who is about to end with 75 is ended by no second one
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 75
    assert steps(folder / "checkpoints") == [7, 4]
    last = trainer(folder)
    assert last.train().global_step == 24
    assert same(weights(last.model), weights(calm.model)) and trace(last) == trace(calm)


@pytest.mark.full
@pytest.mark.parametrize("damaged", ["shard-*", "extra.json"])
def test_a_flipped_byte_goes_back_and_the_trainer_counts_from_there(folder, calm, damaged):
    with pytest.raises(RuntimeError):
        trainer(folder, callbacks=[Fails(14)]).train()
    until(lambda: steps(folder / "checkpoints")[:1] == [12], what="the newest checkpoint")
    (newest,) = (folder / "checkpoints").glob("*step-0000000012*")
    (path,) = newest.glob(damaged)
    flip(path, path.stat().st_size // 2)
    begun = []

    class Notes(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            begun.append(state.global_step)

    last = trainer(folder, callbacks=[Notes()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPK_RESUME_MEMORY", "0")
        last.train(resume_from_checkpoint=True)
    assert begun == list(range(8, 24))
    assert same(weights(last.model), weights(calm.model)) and trace(last) == trace(calm)


def test_transformers_reads_what_is_exported(folder):
    found = trainer(folder, max_steps=4)
    found.train()
    done = export(str(folder / "checkpoints"), "huggingface", folder.parent / "model")
    assert done.step == 4
    again = LlamaForCausalLM.from_pretrained(folder.parent / "model")
    assert same(weights(again), weights(found.model)) and again.config.hidden_size == 16


@pytest.mark.full
def test_the_best_model_is_loaded_and_outlives_the_limit(folder):
    scores = {4: 3.0, 8: 1.0, 12: 2.0, 16: 4.0, 20: 5.0, 24: 6.0}
    seen = {}

    class Scores(CheckpointedTrainer):
        def evaluate(self, *args, **options):
            metrics = {"eval_score": scores[self.state.global_step]}
            seen[self.state.global_step] = weights(self.model)
            self.log(metrics)
            return metrics

    options = {
        "kind": Scores,
        "own": {"eval_dataset": Numbers(4)},
        "eval_strategy": "steps",
        "eval_steps": 4,
        "load_best_model_at_end": True,
        "metric_for_best_model": "score",
        "greater_is_better": False,
        "save_total_limit": 2,
    }
    with pytest.raises(RuntimeError):
        trainer(folder, callbacks=[Fails(14)], **options).train()
    found = trainer(folder, **options)
    found.train()
    assert found.state.best_global_step == 8 and same(weights(found.model), seen[8])
    assert sorted(steps(folder / "checkpoints")) == [8, 20, 24]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # between PEFT and transformers
@pytest.mark.filterwarnings("ignore:Could not find a config file")  # of a base that lies nowhere
def test_an_adapter_is_saved_without_its_base_and_read_by_peft(folder):
    peft = pytest.importorskip("peft")

    def adapted():
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
        return peft.get_peft_model(made(), config)

    calm = trainer(folder.parent / "calm", kind=Trainer, model=adapted(), save_strategy="no")
    calm.train()
    with pytest.raises(RuntimeError):
        trainer(folder, model=adapted(), callbacks=[Fails(10)]).train()
    last = trainer(folder, model=adapted())
    last.train()
    assert same(weights(last.model), weights(calm.model)) and trace(last) == trace(calm)
    done = export(str(folder / "checkpoints"), "huggingface", folder.parent / "adapter")
    assert done.tensors < 40
    read = peft.PeftModel.from_pretrained(made(), folder.parent / "adapter")
    assert same(weights(read), weights(last.model))


@pytest.mark.full
def test_with_an_elastic_loader_the_data_goes_on_too(folder):
    from hyperpod_kit.data.trainer import ElasticTraining

    class Both(CheckpointedTraining, ElasticTraining, Trainer):
        pass

    calm = trainer(folder.parent / "calm", kind=Both)
    calm.train()
    with pytest.raises(RuntimeError):
        trainer(folder, kind=Both, callbacks=[Fails(10)]).train()
    last = trainer(folder, kind=Both)
    last.train()
    assert same(weights(last.model), weights(calm.model)) and trace(last) == trace(calm)


@pytest.mark.full
def test_a_trainers_own_checkpoint_is_gone_on_from(folder, calm):
    with pytest.raises(RuntimeError):
        trainer(folder, kind=Trainer, callbacks=[Fails(10)]).train()
    last = trainer(folder)
    last.train(resume_from_checkpoint=True)
    assert same(weights(last.model), weights(calm.model)) and steps(folder / "checkpoints")[-1] == 12


def test_what_cannot_be_is_refused(folder):
    with pytest.raises(ValueError, match="save_only_model"):
        trainer(folder, save_only_model=True)
    trainer(folder, max_steps=4).train()
    with pytest.raises(CheckpointError, match="resume_from_checkpoint is False"):
        trainer(folder).train(resume_from_checkpoint=False)
    shutil.rmtree(folder / "checkpoints")
    assert trainer(folder, max_steps=4).train(resume_from_checkpoint=False).global_step == 4


def test_what_lies_in_another_folder_is_loaded_by_the_trainer(folder, monkeypatch):
    loaded = []
    names = ["_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state"]
    for name in names:
        monkeypatch.setattr(Trainer, name, lambda _, path, name=name: loaded.append((name, path)))
    training = trainer(folder)
    for name in names:
        getattr(training, name)("other")
    assert loaded == [(name, "other") for name in names]
