"""Lightning over this engine, one process: what resumes and where, what goes back, what others can read.

Two ranks under SIGKILL are in tests/unit/job/test_frameworks.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning  # noqa: E402
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper  # noqa: E402
from lightning.pytorch.callbacks import EarlyStopping  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler  # noqa: E402

from hyperpod_kit.checkpoint.adapters.lightning import (  # noqa: E402
    CheckpointedFit,
    ProvedCheckpointIO,
    _unrepeatable_sampler_class_name,
)
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.checkpoint.saves.preemption_signal import SIGNALS  # noqa: E402
from tests.support.damage import flip  # noqa: E402

# Lightning's own: of torch's names that go, of few workers.
pytestmark = pytest.mark.filterwarnings("default")
STEPS, EPOCH = 12, 5


class Net(lightning.LightningModule):
    def __init__(self, rate: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))
        self.losses: dict[int, float] = {}

    def training_step(self, batch: Any, number: int) -> Any:
        loss = (self.net(batch) - batch).square().mean()
        self.losses[self.trainer.global_step + 1] = loss.item()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


class Fails(lightning.Callback):
    """A program that ends at a step with an exception; steps that are shorter than a save wait for it."""

    def __init__(self, step: int = -1) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("the program's own")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        for one in trainer.callbacks:
            if isinstance(one, CheckpointedFit) and one._newest is not None:
                assert one._newest.wait("durable", 60)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    words: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False}
    words.update({"max_steps": STEPS, **options})
    return lightning.Trainer(default_root_dir=folder, callbacks=list(callbacks), **words, **quiet)


def loader(kind: Any = DataLoader) -> Any:
    rows = torch.randn(4 * EPOCH, 4, generator=torch.Generator().manual_seed(1))
    return kind(rows, batch_size=4, sampler=DistributedSampler(rows, 1, 0, seed=3))


def fit(folder: Path, *callbacks: Any, kind: Any = DataLoader, **options: Any) -> Any:
    torch.manual_seed(5)
    model = Net()
    trainer(folder, *callbacks, **options).fit(model, loader(kind))
    return model


@pytest.fixture
def folder(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HPK_CHECKPOINT_ROOT", raising=False)
    return tmp_path / "out"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What Lightning makes of it by itself."""
    return fit(tmp_path_factory.mktemp("calm"))


def same(one: Any, other: Any) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def steps(folder: Path) -> list[int]:
    return [entry.name.step for entry in catalog.list_checkpoints(str(folder / "checkpoints")) if entry.committed]


def stateful() -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        (EPOCH + 3, "plain"),
        *[
            pytest.param(at, kind, marks=pytest.mark.full)
            for at, kind in [(3, "plain"), (EPOCH, "plain"), (3, "stateful"), (EPOCH, "stateful"), (8, "stateful")]
        ],
    ],
)
def test_it_goes_on_bit_for_bit_in_an_epoch_and_between_two(folder: Path, calm: Any, at: int, kind: str) -> None:
    made = DataLoader if kind == "plain" else stateful()
    with pytest.raises(RuntimeError, match="own"):
        fit(folder, CheckpointedFit(every=1, keep=None), Fails(at), kind=made)
    last = fit(folder, CheckpointedFit(every=1, keep=None), Fails(), kind=made)
    assert min(last.losses) == at + 1 and same(last, calm)
    assert all(calm.losses[step] == loss for step, loss in last.losses.items())
    assert sorted(steps(folder)) == list(range(1, STEPS + 1))


class Told(Fails):
    """A program that is told to save and end."""

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.full
def test_told_by_a_signal_it_saves_the_step_that_it_is_at_and_ends_with_75(folder: Path, calm: Any) -> None:
    heard: list[int] = []
    before = {one: signal.signal(one, lambda number, _: heard.append(number)) for one in SIGNALS}
    try:
        with pytest.raises(SystemExit) as ended:
            fit(folder, CheckpointedFit(every=100, save_on_signal=True), Told(EPOCH + 1))
        os.kill(os.getpid(), signal.SIGUSR1)  # Lightning has put back what it found, which was ours
        assert ended.value.code == 75 and not heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert steps(folder) == [EPOCH + 2]
    last = fit(folder, CheckpointedFit(every=100, keep=None), Fails())
    assert min(last.losses) == EPOCH + 3 and same(last, calm)


def test_the_last_step_is_saved_where_no_number_of_steps_says_which_it_is(folder: Path) -> None:
    fit(folder, CheckpointedFit(every=2, keep=None), max_steps=-1, max_epochs=1)
    assert sorted(steps(folder)) == [2, 4, 5]
    fit(folder, CheckpointedFit(every=2, keep=None), max_steps=-1, max_epochs=1)
    assert sorted(steps(folder)) == [2, 4, 5]


def test_a_run_that_stopped_early_trains_no_step_more(folder: Path) -> None:
    def stopped() -> Any:
        return EarlyStopping("loss", mode="max", patience=1, check_on_train_epoch_end=True)  # it falls

    first = fit(folder, CheckpointedFit(every=1), Fails(), stopped())
    assert max(first.losses) == 2 * EPOCH and steps(folder)[0] == 2 * EPOCH
    again = fit(folder, CheckpointedFit(every=1), Fails(), stopped())
    assert not again.losses and same(again, first)
    without = fit(folder, CheckpointedFit(every=1), Fails())
    assert sorted(without.losses) == [STEPS - 1, STEPS]


def test_an_order_that_cannot_be_drawn_again_is_warned_of(folder: Path) -> None:
    rows = torch.randn(4, 4)
    net = Net()
    with pytest.warns(RuntimeWarning, match="in another order: the order of torch.utils.data.sampler.RandomSampler"):
        trainer(folder, CheckpointedFit(every=4)).fit(net, DataLoader(rows, batch_size=4, shuffle=True))
    # Lightning puts a DistributedSampler around a sampler that it does not know, here torchdata's.
    theirs = stateful()(rows, batch_size=4, shuffle=True).sampler
    wrapped = DataLoader(rows, batch_size=4, sampler=DistributedSamplerWrapper(theirs, num_replicas=1, rank=0))
    assert _unrepeatable_sampler_class_name(wrapped) == "torchdata.stateful_dataloader.sampler.RandomSampler"
    wrapped = DataLoader(rows, batch_size=4, sampler=DistributedSamplerWrapper(SequentialSampler(rows), 1, 0))
    assert (
        _unrepeatable_sampler_class_name(wrapped)
        == _unrepeatable_sampler_class_name(loader())
        == _unrepeatable_sampler_class_name(DataLoader(rows))
        == ""
    )


@pytest.mark.full
def test_a_flipped_bit_goes_back_and_others_read_what_is_left(
    folder: Path, calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="own"):
        fit(folder, CheckpointedFit(every=4, metrics=["loss"]), Fails(10))
    newest = max((folder / "checkpoints").glob("seq-*"))
    flip(newest / "shard-00000.safetensors", 2000)
    monkeypatch.setenv("HPK_RESUME_MEMORY", "0")  # in memory it is whole
    again = fit(folder, CheckpointedFit(every=4), Fails(), accumulate_grad_batches=1)
    assert min(again.losses) == 5 and same(again, calm)
    # Without us: a file of Lightning's, for its fit and for its class.
    root, file = str(folder / "checkpoints"), folder / "last.ckpt"
    export(root, "lightning", file)
    plain = Net.load_from_checkpoint(file)
    assert same(plain, again) and plain.hparams.rate == 0.01
    more = Net()
    trainer(folder / "more", max_epochs=-1).fit(more, loader(), ckpt_path=file)
    assert more.losses == {}  # it had come to its end
    # And a root in the place of a file.
    read = Net()
    checkpoint = ProvedCheckpointIO().load_checkpoint(root)
    read.load_state_dict(checkpoint["state_dict"])
    assert same(read, again) and checkpoint["global_step"] == STEPS
    assert ProvedCheckpointIO().load_checkpoint(file)["global_step"] == STEPS
