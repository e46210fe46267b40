"""Accelerate over this engine, one process. Two ranks under SIGKILL: tests/unit/job/test_frameworks.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402

from hyperpod_kit.checkpoint.adapters.accelerate import CheckpointedAccelerator  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402
from tests.support.damage import flip  # noqa: E402

BATCHES = 5


class Count:
    """What a script registers."""

    def __init__(self) -> None:
        self.samples = 0

    def state_dict(self) -> dict[str, int]:
        return {"samples": self.samples}

    def load_state_dict(self, saved: dict[str, int]) -> None:
        self.samples = saved["samples"]


@pytest.fixture(autouse=True)
def alone(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HPK_CHECKPOINT_ROOT", raising=False)
    yield
    _forget()


def _forget() -> None:
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def train(folder: Path, until: int, *, seedable: bool = True) -> tuple[dict[int, float], Any]:
    """The loss of each batch that was trained, and the accelerator. A generator and a critic, each with its own
    optimizer; a save after each second batch."""
    _forget()
    torch.manual_seed(3)
    rows = torch.randn(4 * BATCHES, 4)
    config = accelerate.DataLoaderConfiguration(use_seedable_sampler=seedable)
    its = CheckpointedAccelerator(
        cpu=True, project_dir=str(folder), gradient_accumulation_steps=2, dataloader_config=config
    )
    maker = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))
    critic = torch.nn.Linear(4, 1)
    adam, sgd = torch.optim.AdamW(maker.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), 0.01, momentum=0.9)
    slower = torch.optim.lr_scheduler.StepLR(adam, 3)
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    model, critic, first, second, slower, loader = its.prepare(maker, critic, adam, sgd, slower, loader)
    its.register_for_checkpointing(count := Count())
    step = its.load_state()
    losses: dict[int, Any] = {}
    for epoch in range(step // BATCHES, 99):
        loader.set_epoch(epoch)
        for batch in its.skip_first_batches(loader, step % BATCHES):
            if step == until:
                its.end_training()
                assert count.samples == 4 * until
                return losses, maker
            with its.accumulate(model, critic):
                loss = (model(batch) - batch).square().mean() + critic(batch).mean().abs()
                its.backward(loss)
                for one in (first, second):
                    one.step()
                    one.zero_grad()
                slower.step()
            step += 1
            count.samples += len(batch)
            losses[step] = loss.item()
            if step % 2 == 0:
                assert its.save_state(f"{folder}/step_{step}").wait("durable", 60)
    raise AssertionError("the data ended")


@pytest.mark.full
def test_it_goes_on_bit_for_bit_with_two_models_after_a_flipped_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, weights = train(tmp_path / "calm", 16)
    for until in (4, 10):  # in the middle of an epoch, and at the end of one
        train(tmp_path / "two", until)
    last, same = train(tmp_path / "two", 14)
    assert min(last) == 11 and all(calm[step] == loss for step, loss in last.items())
    root = tmp_path / "two" / "checkpoints"
    newest = catalog.list_checkpoints(root)[0].checkpoint_id
    flip(root / newest / "shard-00000.safetensors", 4096 + 8)
    monkeypatch.setenv("HPK_RESUME_MEMORY", "0")
    last, same = train(tmp_path / "two", 16)
    assert min(last) == 13 and all(calm[step] == loss for step, loss in last.items())
    assert all(torch.equal(one, other) for one, other in zip(weights.state_dict().values(), same.state_dict().values()))
    # Without us: accelerate's own function, from one file.
    export(str(root), "safetensors", tmp_path / "model.safetensors")
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))
    accelerate.load_checkpoint_in_model(plain, str(tmp_path / "model.safetensors"))
    assert torch.equal(plain[0].weight, same[0].weight)


def test_a_plain_accelerator_goes_on_from_what_is_exported(tmp_path: Path) -> None:
    def made(kind: type, **options: Any) -> tuple[Any, Any, Any, Any, Count]:
        _forget()
        torch.manual_seed(5)
        its, net = kind(cpu=True, **options), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        adam = torch.optim.AdamW(net.parameters(), lr=0.1)
        model, adam, slower = its.prepare(net, adam, torch.optim.lr_scheduler.StepLR(adam, 2))
        its.register_for_checkpointing(count := Count())
        return its, model, adam, slower, count

    def steps(its: Any, model: Any, adam: Any, slower: Any, count: Count) -> list[float]:
        found = []
        for _ in range(3):
            its.backward(loss := model(torch.ones(2, 4)).square().sum())
            adam.step()
            adam.zero_grad()
            slower.step()
            count.samples += 2
            found.append(loss.item())
        return found

    root = {"checkpoint_root": tmp_path / "root"}
    first = made(CheckpointedAccelerator, **root)
    assert first[0].load_state() == 0
    steps(*first)
    assert first[0].save_state("step_3").wait("durable", 60)
    calm = steps(*first)
    first[0].end_training()
    again = made(CheckpointedAccelerator, **root)
    assert again[0].load_state() == 3
    where = again[0].export_state(tmp_path / "plain")
    again[0].end_training()
    plain = made(accelerate.Accelerator)
    plain[0].load_state(where)
    assert plain[4].samples == 6 and plain[3].get_last_lr() == again[3].get_last_lr() != [0.1]
    assert steps(*plain) == calm


def test_what_cannot_be_is_refused_or_warned_of(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint root given"):
        CheckpointedAccelerator(cpu=True)
    _forget()
    its = CheckpointedAccelerator(cpu=True, checkpoint_root=tmp_path / "root")
    its.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="save_state before load_state"):
        its.save_state("step_1")
    assert its.load_state() == 0 and type(its.found).__name__ == "Fresh"
    with pytest.raises(ValueError, match="the step is unknown: give"):
        its.save_state()
    its.end_training()
    with pytest.warns(RuntimeWarning, match="use_seedable_sampler=True"):
        train(tmp_path / "other", 2, seedable=False)
