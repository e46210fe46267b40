"""Saves whose copy overlaps training, and what a steady-state save may not do."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import full

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, State  # noqa: E402
from hyperpod_kit.checkpoint.ranks import collectives as ranks_module  # noqa: E402


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


class Job:
    def __init__(self, width: int = 64) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 3)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.state = State(self.model, self.optimizer, rng=False)
        self.width = width

    def forward(self) -> Any:
        self.optimizer.zero_grad()
        return self.model(torch.randn(8, self.width)).square().sum()

    def step(self) -> None:
        self.forward().backward()
        self.optimizer.step()

    def weights(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def block(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold back the copy threads of overlapped saves until the event is set; the fence's own help too."""
    from hyperpod_kit.checkpoint.capture import staging

    go = threading.Event()
    real = manager._staging._copier.start

    def start(work: Any, then: Any = None, *, background: bool = False) -> Any:
        return real([[(go.wait, (20,))], *work] if background else work, then, background=background)

    monkeypatch.setattr(manager._staging._copier, "start", start)
    assert staging is not None
    return go


def test_the_optimizer_waits_for_the_copy_and_buffers_are_copied_at_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, manager = Job(), Manager(root, overlap=True)
    manager.restore(job.state)
    job.step()
    go = block(manager, monkeypatch)
    want = job.weights()
    handle = manager.save(0, job.state)
    assert handle.state == "copying"
    loss = job.forward()  # moves the running statistics of BatchNorm
    loss.backward()
    assert not torch.equal(job.model[1].running_mean, want["1.running_mean"])
    stepping = threading.Thread(target=job.optimizer.step)
    stepping.start()
    stepping.join(0.2)
    assert stepping.is_alive() and torch.equal(job.model[0].weight, want["0.weight"])
    go.set()
    stepping.join(10)
    assert not stepping.is_alive() and not torch.equal(job.model[0].weight, want["0.weight"])
    assert handle.wait("durable", 60), handle
    assert manager.close()

    other, manager = Job(), Manager(root)
    manager.restore(other.state)
    got = other.weights()
    assert {name for name in want if not torch.equal(want[name], got[name])} == set()
    assert manager.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_copy_that_fails_is_a_failed_save_and_the_slot_is_free_again(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, manager = Job(), Manager(root, overlap=True)
    manager.restore(job.state)
    job.step()
    real = manager._staging._copier.start

    def explode() -> None:
        raise MemoryError("no memory for this test")

    def start(work: Any, then: Any = None, *, background: bool = False) -> Any:
        return real([*work, [(explode, ())]] if background else work, then, background=background)

    with monkeypatch.context() as patch:
        patch.setattr(manager._staging._copier, "start", start)
        handle = manager.save(0, job.state)
        manager.fence()
    assert not handle.wait("durable", 10)
    assert handle.state == "failed" and "no memory for this test" in str(handle.reason)
    handles = [manager.save(step, job.state, on_busy="wait") for step in (1, 2)]
    assert all(handle.wait("durable", 60) for handle in handles)
    manager.close()


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("saves", [250, *full(1000)])
def test_many_saves_leave_no_memory_no_descriptor_and_touch_no_file(
    root: str, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    job, manager = Job(width=512), Manager(root)
    manager.restore(job.state)
    job.step()
    for step in range(20):
        manager.save(step, job.state, on_busy="wait")
    before = len(os.listdir("/proc/self/fd"))

    def refuse(*_: Any) -> None:
        raise AssertionError("a collective in a save")

    monkeypatch.setattr(ranks_module.Ranks, "gather", refuse)
    seen: list[str] = []
    me = threading.get_ident()
    watching = False

    def audit(event: str, detail: Any) -> None:
        if watching and threading.get_ident() == me and event.split(".")[0] in ("open", "os", "mmap", "shutil", "glob"):
            seen.append(f"{event} {detail}")

    sys.addaudithook(audit)  # stays for the life of the process; `watching` ends its work
    gc.collect()
    start = rss()
    watching = True
    for step in range(20, 20 + saves):
        manager.save(step, job.state)  # skipped where no slot is free, which touches no file either
    watching = False
    assert seen == []
    assert rss() - start < 8 * 2**20
    assert len(os.listdir("/proc/self/fd")) <= before
    monkeypatch.undo()
    assert manager.save(20 + saves, job.state, on_busy="wait").wait("durable", 60)
    manager.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_replace_drops_what_waits_and_the_newest_save_is_the_one_that_stays(root: str) -> None:
    job, manager = Job(), Manager(root)
    manager.restore(job.state)
    job.step()
    with pytest.raises(ValueError, match="on_busy"):
        manager.save(0, job.state, on_busy="later")  # type: ignore[arg-type]
    handles = [manager.save(step, job.state, on_busy="replace") for step in range(6)]
    for handle in handles:
        handle.wait("durable", 60)
    assert {handle.state for handle in handles} <= {"durable", "dropped", "skipped"}
    assert handles[0].state == "durable" or handles[-1].state == "durable"
    manager.close()
