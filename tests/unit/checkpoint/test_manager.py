"""The manager with its real agent, one process."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Fresh, Manager, Restored, State  # noqa: E402
from hyperpod_kit.checkpoint.agent.shm import (  # noqa: E402
    shm_paths,
    shm_slots,
)
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.environment import HPK_PROGRESS  # noqa: E402
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint, RunIsOwned, StateNotSerializable  # noqa: E402
from hyperpod_kit.slurm.phase import Phase  # noqa: E402
from hyperpod_kit.slurm.progress import ProgressWriter, RankProgress  # noqa: E402
from hyperpod_kit.system import process  # noqa: E402
from tests.unit.checkpoint.agent_run import abandon  # noqa: E402


class Job:
    """A model whose buffers, optimizer and random numbers all move in each step."""

    def __init__(self, width: int = 64) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 3)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.extra = {"seen": (0,), "note": torch.zeros(3, dtype=torch.bfloat16)}
        self.state = State(self.model, self.optimizer, extra=self.extra, schedule=self.schedule)
        self.width = width

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, self.width)).square().sum().backward()
        self.optimizer.step()
        self.schedule.step()
        self.extra["seen"] = (*self.extra["seen"], random.random())

    def fingerprint(self) -> list[bytes]:
        tensors = [
            *self.model.state_dict().values(),
            torch.get_rng_state(),
            self.extra["note"].float(),
            *(v for s in self.optimizer.state_dict()["state"].values() for v in s.values()),
        ]
        return [bytes(t.reshape(-1).view(torch.uint8).tolist()) for t in tensors] + [
            repr((self.extra["seen"], self.schedule.state_dict(), random.getstate())).encode()
        ]


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def segments() -> list[str]:
    return sorted(os.listdir(shm_paths.shared_memory_root()))


def disown() -> None:
    """Let the slots belong to a process that is dead."""
    for slot in shm_slots.attach_each_mappable(
        shm_paths.shared_memory_root(), shm_slots.own_slot_names(shm_paths.shared_memory_root())
    ):
        page = slot.page
        assert page is not None
        slot.write_page(page._replace(origin=replace(page.origin, owner=(2**22 + 1, 1))))


def test_save_close_restore_gives_the_same_state_and_leaves_nothing(root: str) -> None:
    job, manager = Job(), Manager(root, run="demo")
    assert isinstance(manager.restore(job.state), Fresh)
    for step in range(3):
        job.step()
        handle = manager.save(step, job.state)
        assert handle.wait("durable", 60), handle
        assert handle.stall_ms > 0 and handle.checkpoint_id
    want = job.fingerprint()
    assert manager.close() and segments() == []

    job, manager = Job(), Manager(root)
    got = manager.restore(job.state)
    assert isinstance(got, Restored) and (got.step, got.next_step, got.tier, got.seq) == (2, 3, "storage", 3)
    assert got.checkpoint_id == handle.checkpoint_id and manager.run == "demo" and manager.epoch == 2
    assert job.fingerprint() == want
    assert manager.close() and segments() == []
    with pytest.raises(RunIsOwned):
        Manager(root, run="other")


def test_the_wrapper_knows_in_which_phase_the_rank_is(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the watch for jobs that hang goes by."""
    memory, seen = RankProgress(), []
    monkeypatch.setenv(HPK_PROGRESS, memory.path)
    monkeypatch.setattr(
        ProgressWriter,
        "report_phase",
        lambda teller, phase, enter=ProgressWriter.report_phase: (seen.append(phase), enter(teller, phase)),
    )
    job, manager = Job(), Manager(root, every=2)
    manager.restore(job.state)
    assert memory.state()[:3] == (None, 0, Phase.STEP)
    for step in range(2):
        job.step()
        manager.step(step, job.state)
    with manager.evaluation():
        assert memory.state()[:3] == (1, 0, Phase.EVALUATION)
    assert memory.state().phase is Phase.STEP
    assert manager.close()
    assert seen == [
        Phase.RESTORE,
        Phase.START,
        Phase.STEP,
        Phase.SAVE,
        Phase.STEP,
        Phase.EVALUATION,
        Phase.STEP,
        Phase.CLOSE,
        Phase.OVER,
    ]
    job, manager = Job(), Manager(root)
    assert isinstance(manager.restore(job.state), Restored)
    assert memory.state().moved >= 1, "bytes were read"
    assert manager.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_died_with_the_agent_is_restored_from_memory_and_then_committed(root: str) -> None:
    job, manager = Job(), Manager(root, every=100)
    manager.restore(job.state)
    assert manager.save(0, job.state).wait("durable", 60)
    job.step()
    os.kill(manager._agent.pid, signal.SIGSTOP)  # captured, neither sealed nor persisted
    handle = manager.save(1, job.state)
    want = job.fingerprint()
    abandon(manager)
    assert not handle.wait("durable", 5) and handle.state == "failed" and "agent has ended" in str(handle.reason)
    # Long before the schedule says so: the next step does not go on unprotected.
    with pytest.raises(CheckpointError, match="no save can reach storage: the checkpoint agent has ended"):
        manager.step(2, job.state)
    disown()

    job, manager = Job(), Manager(root)
    got = manager.restore(job.state)
    assert isinstance(got, Restored) and (got.step, got.tier) == (1, "memory")
    assert job.fingerprint() == want
    assert manager.close() and segments() == []
    newest = catalog.list_checkpoints(root)[0]
    assert newest.committed and newest.name.step == 1 and newest.name.epoch == 1


def test_a_flipped_bit_in_memory_falls_back_to_storage_with_the_reason(root: str) -> None:
    job, manager = Job(), Manager(root)
    manager.restore(job.state)
    assert manager.save(7, job.state).wait("durable", 60)
    want = job.fingerprint()
    abandon(manager)
    disown()
    for path in Path(shm_paths.shared_memory_root()).glob("*.img"):
        data = bytearray(path.read_bytes())
        if b"{" in data:  # the other slots wait for a save
            data[data.index(b"{") + 5] ^= 4  # in the header; the file's end is slack
            path.write_bytes(data)
    job, manager = Job(), Manager(root)
    got = manager.restore(job.state)
    assert isinstance(got, Restored) and (got.step, got.tier) == (7, "storage")
    assert "in memory" in got.rejected[0][1] and "expected xxh3" in got.rejected[0][1]
    assert job.fingerprint() == want
    assert manager.close() and segments() == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_save_without_a_free_slot_is_skipped_and_says_so(root: str) -> None:
    job, manager = Job(), Manager(root)
    manager.restore(job.state)
    os.kill(manager._agent.pid, signal.SIGSTOP)
    handles = [manager.save(step, job.state) for step in range(3)]
    assert [handle.state for handle in handles] == ["captured", "captured", "skipped"]
    assert manager.skipped == 1 and "no slot was free" in str(handles[2].reason)
    assert not handles[2].wait("sealed", 1)
    os.kill(manager._agent.pid, signal.SIGCONT)
    assert handles[0].wait("durable", 60) and handles[1].wait("durable", 60)
    assert manager.save(3, job.state).wait("durable", 60)
    assert manager.close() and segments() == []
    assert [entry.name.step for entry in catalog.list_checkpoints(root)] == [3, 1, 0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_failed_write_is_visible_and_keeps_the_only_copy(root: str) -> None:
    job, manager = Job(), Manager(root)
    manager.restore(job.state)
    away = Path(root).with_name("away")
    Path(root).rename(away)
    Path(root).write_text("no directory")
    handle = manager.save(0, job.state)
    assert not handle.wait("durable", 10) and handle.state == "failed"
    assert "Not a directory" in str(handle.reason) or "File exists" in str(handle.reason)
    Path(root).unlink()
    away.rename(root)
    assert not manager.close()
    assert any(name.endswith(".img") for name in segments())  # for flush, or the next start
    job, manager = Job(), Manager(root)
    disown()
    got = manager.restore(job.state)
    assert isinstance(got, Restored) and got.tier == "memory"
    assert manager.close() and segments() == []
    assert [entry.name.step for entry in catalog.list_checkpoints(root)] == [0]


def test_layout_may_change_between_saves(root: str) -> None:
    job, manager = Job(), Manager(root)
    manager.restore(job.state)
    for step in range(4):  # the optimizer has no state before its first step; the extra tensor grows
        assert manager.save(step, job.state).wait("durable", 60)
        job.step()
        job.extra["note"] = torch.ones(3 + 5000 * step, dtype=torch.bfloat16)
    assert manager.close() and segments() == []
    job = Job()
    manager = Manager(root)
    del job.extra["note"]  # a tensor of another shape could not be filled
    manager.restore(job.state)
    assert job.extra["note"].shape == (10003,)
    assert manager.close()


def test_a_warning_names_the_users_line(root: str) -> None:
    """It is found there: the kit's own lines tell nobody which of several managers lost a save."""
    job, manager = Job(), Manager(root, every=2)
    manager.restore(job.state)
    calls = {
        "a step that is not due": lambda: manager.step(0, job.state),
        "a step that is due": lambda: manager.step(1, job.state),
        "reached": lambda: manager.reached(2),
        "save": lambda: manager.save(3, job.state),
        "close": lambda: manager.close(),
    }
    for name, call in calls.items():
        manager._saves.warn_later(f"the save before {name} was lost")
        with pytest.warns(RuntimeWarning, match=f"the save before {name} was lost") as caught:
            call()
        lines = [(warning.filename, warning.lineno) for warning in caught if "was lost" in str(warning.message)]
        assert lines == [(__file__, call.__code__.co_firstlineno)], name


def test_refusals(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, manager = Job(), Manager(root)
    job.extra["bad"] = [object()]
    with pytest.raises(StateNotSerializable, match=r"rank\.00000\.extra\.bad\.0"):
        manager.save(0, job.state)
    del job.extra["bad"]
    assert manager.save(0, job.state).wait("durable", 60)
    assert manager.close() and manager.close()
    with pytest.raises(CheckpointError, match="is closed"):
        manager.save(1, job.state)

    manager = Manager(root)
    with pytest.raises(CheckpointError, match="holds checkpoints"):
        manager.save(1, job.state)
    monkeypatch.setenv("HPK_RESUME_FROM", "seq-000077.step-0000000000.e1-abcd")
    with pytest.raises(CheckpointError, match="seq-000077"):
        manager.restore(job.state)
    monkeypatch.setenv("HPK_RESUME_FROM", "none")
    with pytest.raises(CheckpointError, match="does not fit"):
        manager.restore(Job(width=32).state)
    for path in Path(root).glob("seq-*/extra.json"):
        path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(NoValidCheckpoint, match=r"extra\.json"):
        manager.restore(job.state)
    manager.close()


def test_the_agent_ends_by_itself_when_its_trainer_is_gone(root: str) -> None:
    job, manager = Job(), Manager(root)
    manager.restore(job.state)
    handle = manager.save(0, job.state)
    manager._agent.detach()  # what the kernel does when the trainer dies
    assert manager._agent.wait_exit(10)
    assert [entry.committed for entry in catalog.list_checkpoints(root)] == [True]
    assert process.identify_unless_gone_or_zombie(manager._agent.pid) is None and handle.seq == 1
    from hyperpod_kit.checkpoint.commands import cli

    disown()
    assert cli.main(["flush", "--all"]) == 0 and segments() == []
    assert time.monotonic() > 0
