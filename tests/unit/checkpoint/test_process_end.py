"""Ends without close(), and forked children: no SIGABRT, nothing saved by a child, nothing kept alive by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from tests.support.rows import full
from tests.support.wait import until

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.errors import CheckpointError

PROGRAM = """
import os, signal, sys, torch
from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.capture import slots
root, how = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(60)])
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(40)).sum().backward()
optimizer.step()
manager = Manager(root, overlap=how == "overlap")
state = State(model, optimizer)
if how == "making slots":
    # The thread that makes the slots is in torch all the time, and goes on for longer than the interpreter lives.
    real = slots.StagingSlot
    def target(*arguments):
        for _ in range(20_000):
            torch.frombuffer(bytearray(8), dtype=torch.uint8).view(torch.float32)
        return real(*arguments)
    slots.StagingSlot = target
manager.restore(state)
if how == "making slots":
    sys.exit(0)
# The save cannot be durable before the end: its agent stands still until the test lets it go on.
os.kill(manager._agent.pid, signal.SIGSTOP)
print(manager._agent.pid, flush=True)
manager.save(0, state, on_busy="wait")
if how == "exception":
    raise RuntimeError("in the loop")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "how, code, times", [("making slots", 0, 1), *full(("exception", 1, 1), ("making slots", 0, 3), ("overlap", 0, 1))]
)
def test_an_end_without_close_is_the_programs_own_end(
    how: str, code: int, times: int, shm: Path, tmp_path: Path
) -> None:
    """It was SIGABRT, "terminate called without an active exception", where a thread was inside torch just then."""
    run = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / str(n)), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for n in range(times)
    ]
    for one in run:
        assert one.stdout is not None and one.stderr is not None
        agent = one.stdout.readline()
        try:
            one.wait(timeout=120)
        finally:
            if agent:
                os.kill(int(agent), signal.SIGCONT)
        said = one.stderr.read().decode()
        assert one.returncode == code, said
        assert ("no close(): <save of step 0: " in said) == (how != "making slots"), said
    if how != "making slots":
        until(
            lambda: all(
                [entry.committed for entry in catalog.list_checkpoints(str(tmp_path / str(n)))] == [True]
                for n in range(times)
            )
        )


def child(what: object) -> int:
    """Call `what` in a forked child; its exit code, 0 when it raised the refusal."""
    pid = os.fork()
    if pid == 0:
        try:
            what()  # type: ignore[operator]
        except CheckpointError as err:
            os._exit(0 if "was forked from process" in str(err) else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads
def test_a_forked_child_is_refused_and_the_parents_saves_are_its_own(shm: Path, tmp_path: Path) -> None:
    state = State(torch.nn.Linear(4, 4))
    manager = Manager(tmp_path / "run", every=1)
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 60)
    for call in (
        lambda: manager.save(50, state),
        lambda: manager.step(50, state),
        lambda: manager.restore(state),
        manager.close,
    ):
        assert child(call) == 0
    assert manager.save(9, state).wait("durable", 60)
    assert manager.close()
    assert [entry.name.step for entry in catalog.list_checkpoints(str(tmp_path / "run"))] == [9, 0]


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def held(pid: int, shm: Path, sockets: List[str]) -> List[str]:
    """What a process holds of ours: descriptors and mappings of slots, the trainer's sockets."""
    found = [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if str(shm) in line]
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if str(shm) in target or target in sockets:
            found.append(target)
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_of_a_data_loader_keep_neither_socket_nor_slots(shm: Path, tmp_path: Path) -> None:
    """A worker that outlived its trainer kept the agent serving and a slot's memory taken."""
    state = State(torch.nn.Linear(4, 4))
    manager = Manager(tmp_path / "run")
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 60)
    ours = os.readlink(f"/proc/self/fd/{manager._agent.fileno()}")
    assert len(held(os.getpid(), shm, [ours])) > 1
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    batches = iter(loader)
    try:
        # The batches come in the workers' order: with the second, both workers have passed the handlers of their fork.
        first, second = next(batches), next(batches)
        for worker in batches._workers:  # type: ignore[attr-defined]
            assert held(worker.pid, shm, [ours]) == []
        assert len([first, second, *batches]) == 32
        assert manager.save(1, state).wait("durable", 60)
        assert manager.close() and os.listdir(shm) == []
    finally:
        # By torch itself: its handler of SIGCHLD raises for a worker that somebody else has killed.
        batches._shutdown_workers()  # type: ignore[attr-defined]
