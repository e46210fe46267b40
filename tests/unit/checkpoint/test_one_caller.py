"""One Manager of a root in a process, and one thread that calls it; a loop whose loader began too early."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Fresh, Manager, Restored, State
from hyperpod_kit.checkpoint.agent_client import open_managers
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.errors import CheckpointError, RunIsOwned, StateNotSerializable


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


def job() -> tuple[Any, Any, State]:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, State(model, optimizer, rng=False)


# --- threads --------------------------------------------------------------------------------------------------------


class Slow:
    """An object whose state_dict takes until it is told."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        self.go.set()

    def state_dict(self) -> dict[str, Any]:
        self.asked.set()
        self.go.wait(60)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("call", ["save", "step", "restore"])
def test_threads_that_call_at_the_same_time_are_told_so(root: str, call: str) -> None:
    slow = Slow()
    state, manager = State(torch.nn.Linear(2, 2), slow=slow), Manager(root, every=1)
    manager.restore(state)
    slow.asked.clear()
    slow.go.clear()
    handles: list[Any] = []
    first = threading.Thread(target=lambda: handles.append(manager.save(0, state)), name="the-first")
    first.start()
    assert slow.asked.wait(60)
    calls: dict[str, Any] = {
        "save": lambda: manager.save(1, state),
        "step": lambda: manager.step(1, state),
        "restore": lambda: manager.restore(state),
    }
    with pytest.raises(CheckpointError, match=r"while thread the-first is in save of the same Manager") as caught:
        calls[call]()
    assert "one thread" in str(caught.value.hint)
    slow.go.set()
    first.join(60)
    assert handles[0].wait("durable", 60)
    assert manager.save(2, state, on_busy="wait").wait("durable", 60) and manager.close()


# --- forgotten ------------------------------------------------------------------------------------------------------


def lost(root: str) -> list[Any]:
    """The Managers of this root that the program has lost; other tests of the process may have lost others."""
    return [manager for manager in open_managers._forgotten if manager.root == root]


@pytest.mark.parametrize("ring", [False, True])
def test_the_next_manager_closes_one_that_the_program_has_lost(
    root: str, ring: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state = job()[2]
    manager = Manager(root)
    assert isinstance(manager.restore(state), Fresh)
    manager.save(3, state)
    with pytest.raises(RunIsOwned, match="has a Manager of"):
        Manager(root)
    if ring:
        manager.__dict__["itself"] = manager
    del manager
    if ring:
        gc.collect()
    with caplog.at_level(logging.WARNING):
        manager = Manager(root)
    found = manager.restore(state)
    assert isinstance(found, Restored) and found.step == 3
    assert "was garbage-collected before" in caplog.text
    assert manager.close() and open_managers.manager_with_live_agent(root) is None and not lost(root)


def test_one_that_is_lost_while_it_waits_for_a_first_step(root: str) -> None:
    model, optimizer, state = job()
    manager = Manager(root)
    manager.restore(state)
    del manager
    manager = Manager(root)
    manager.restore(state)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    assert manager.save(0, state).wait("durable", 60) and manager.close()


def test_what_is_lost_goes_on_to_storage(root: str) -> None:
    def trained() -> Any:
        manager = Manager(root)
        _, _, state = job()
        manager.restore(state)
        return manager.save(5, state)

    handle = trained()
    gc.collect()
    assert lost(root)
    assert handle.wait("durable", 60)
    manager = Manager(root)
    assert not lost(root)
    manager.restore(job()[2])
    assert manager.close()


# --- loaders --------------------------------------------------------------------------------------------------------


class StatefulLoader:
    """As torchdata.stateful_dataloader.StatefulDataLoader, which is not among the requirements: what it loads is the
    position of the next iterator that it makes, and `state_dict` makes one where there is none."""

    def __init__(self) -> None:
        self._iterator: Any = None
        self._initial_iter_for_state_dict = False
        self._begin = 0

    def __iter__(self) -> Iterator[int]:
        if self._initial_iter_for_state_dict:
            self._initial_iter_for_state_dict = False
        else:
            self._iterator = self._made()
        return iter(self._iterator)

    def _made(self) -> LoaderIterator:
        begin, self._begin = self._begin, 0
        return LoaderIterator(begin)

    def state_dict(self) -> dict[str, Any]:
        if self._iterator is None:
            self._iterator = self._made()
            self._initial_iter_for_state_dict = True
        return {"at": self._iterator.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._iterator = None
        self._initial_iter_for_state_dict = False
        self._begin = state["at"]


class LoaderIterator:
    def __init__(self, at: int) -> None:
        self.at = at
        self._finished = False

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> int:
        if self.at == 4:
            self._finished = True
            raise StopIteration
        self.at += 1
        return self.at


def test_a_loader_that_was_iterated_before_the_restore(root: str) -> None:
    loader = StatefulLoader()
    state = State(torch.nn.Linear(2, 2), loader=loader)
    batches = iter(loader)
    manager = Manager(root)
    with pytest.raises(CheckpointError, match=r"iter\(\) was called on the loader loader") as caught:
        manager.restore(state)
    assert "call restore first" in str(caught.value.hint)
    list(batches)  # of one that is through nobody has an iterator any more
    manager.restore(state)
    batches = iter(loader)
    assert next(batches) == 1
    assert manager.save(0, state).wait("durable", 60)
    assert next(batches) == 2
    manager.restore(state)  # back, within a loop: the next iterator is its own
    assert next(iter(loader)) == 2
    assert manager.close()

    loader = StatefulLoader()
    loader.state_dict()  # which makes an iterator that nobody has yet
    manager = Manager(root)
    manager.restore(State(torch.nn.Linear(2, 2), loader=loader))
    assert next(iter(loader)) == 2 and manager.close()


# --- the machine ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_limit_of_files_is_told_with_path_and_remedy(root: str) -> None:
    program = (
        "import sys, torch, resource, signal\n"
        "from hyperpod_kit.checkpoint import Manager, State\n"
        "manager = Manager(sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "manager.save(0, State(torch.nn.Linear(1024, 1024)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, timeout=120)
    last = [line for line in ended.stderr.splitlines() if line.startswith("OSError: ")]
    assert len(last) == 1 and "[Errno 27] File too large: ulimit -f unlimited: '" in last[0], ended.stderr
    assert last[0].endswith(".img'")


def test_a_number_that_python_does_not_write_is_refused_by_name() -> None:
    assert codec.encode(10**4300 - 1, "here", lambda *_: "") == 10**4300 - 1
    with pytest.raises(StateNotSerializable, match=r"state at here is a int of \d+ bits.*hex\(x\)"):
        codec.encode(-(10**4300), "here", lambda *_: "")
