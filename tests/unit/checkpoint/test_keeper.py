"""An agent that dies, stops or stands still: another one takes its place, or it is said."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import share
from tests.support.wait import until

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, Restored, State  # noqa: E402
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import Alive  # noqa: E402
from hyperpod_kit.checkpoint.agent.wire.channel import Channel  # noqa: E402
from hyperpod_kit.checkpoint.agent_client.agent_supervisor import AgentSupervisor  # noqa: E402
from hyperpod_kit.checkpoint.commands import cli  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402
from tests.unit.checkpoint.agent_run import save  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture
def state() -> State:
    return State(torch.nn.Linear(300, 300))


def kill(manager: Manager, number: int = signal.SIGKILL) -> int:
    """End the agent, wait for the one that takes its place; the pid of the dead one."""
    dead = manager._agent.pid
    os.kill(dead, number)
    until(lambda: manager._agent.pid != dead)
    return dead


def committed(root: str) -> list[int]:
    return [entry.name.step for entry in catalog.list_checkpoints(root) if entry.committed]


def test_another_agent_brings_to_storage_what_the_dead_one_held(
    root: str, state: State, shm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = Manager(root)
    manager.restore(state)
    os.kill(manager._agent.pid, signal.SIGSTOP)  # captured, neither sealed nor written
    handles = [manager.save(step, state) for step in (0, 1)]
    dead = kill(manager)
    assert all(handle.wait("durable", 60) for handle in handles), handles
    assert f"killed by SIGKILL); a new agent (pid {manager._agent.pid}) has replaced it" in caplog.text
    assert manager._agent.pid != dead and manager.save(2, state, on_busy="wait").wait("durable", 60)
    assert manager.close() and committed(root) == [2, 1, 0] and os.listdir(shm) == []
    with Manager(root) as manager:
        got = manager.restore(state)
        assert isinstance(got, Restored) and got.step == 2


PLACES = [
    "agent.captured",
    "seal.leaf",
    "seal.after_page",
    "persist.begin",
    "persist.slice",
    "persist.done",
    "agent.written",
    "agent.before_commit",
    "commit.before_index",
    "commit.before_manifest",
    "commit.after_manifest",
    "agent.committed",
    "agent.ordered",
    "agent.before_free",
    "agent.after_free",
]


@pytest.mark.parametrize("place", share(PLACES, 2))
def test_wherever_it_dies_the_save_becomes_durable_once(
    place: str, root: str, state: State, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPK_FAILPOINT", f"{place}@2")
    manager = Manager(root, keep=None)
    monkeypatch.delenv("HPK_FAILPOINT")  # for the next agent
    manager.restore(state)
    first = manager._agent.pid
    for step in range(4):
        assert isinstance(state.model, torch.nn.Linear)
        torch.nn.init.constant_(state.model.weight, float(step))
        assert manager.save(step, state, on_busy="wait").wait("durable", 60), place
    assert manager.close() and manager._agent.pid != first, f"it did not die at {place}"
    assert committed(root) == [3, 2, 1, 0] and os.listdir(shm) == []
    assert cli.main(["verify", root]) == 0
    with Manager(root) as manager:
        manager.restore(state)
        assert isinstance(state.model, torch.nn.Linear) and state.model.weight[0, 0].item() == 3.0


def test_it_dies_while_the_manager_closes(root: str, state: State, shm: Path) -> None:
    manager = Manager(root, rate_limit=200_000)
    manager.restore(state)
    os.kill(manager._agent.pid, signal.SIGSTOP)
    manager.save(0, state)
    real = manager._agent.wait_exit

    def wait_end(timeout: float) -> bool:
        manager._agent.wait_exit = real  # type: ignore[method-assign]
        kill(manager)
        return real(timeout)

    manager._agent.wait_exit = wait_end  # type: ignore[method-assign]
    assert manager.close() and committed(root) == [0] and os.listdir(shm) == []


def test_so_many_agents_and_no_more(root: str, state: State) -> None:
    manager = Manager(root, every=1000)
    manager.restore(state)
    for _ in range(manager._agent.tries):
        kill(manager)
    os.kill(manager._agent.pid, signal.SIGKILL)
    until(lambda: not manager.protects)
    with pytest.raises(CheckpointError, match=r"has ended \(killed by SIGKILL\), and 3 in its place"):
        manager.step(0, state)
    assert not manager.close()


def test_the_next_agent_is_heard_from_its_first_word_on(
    root: str, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may speak before whoever starts it goes on."""
    real = Channel.start_receiving

    def listen(self: Channel, on_message: Any, on_end: Any) -> None:
        on_message(Alive().to_json())
        real(self, on_message, on_end)

    monkeypatch.setattr(Channel, "start_receiving", listen)
    with Manager(root) as manager:
        manager.restore(state)
        kill(manager)
        assert manager.save(0, state, on_busy="wait").wait("durable", 60)


def test_an_agent_that_dies_of_the_same_each_time_is_not_started_for_ever(
    root: str, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them says once more that the part on the local disk is durable, and dies when it frees memory."""
    local = str(tmp_path / "local")
    with Manager(root, local=local) as manager:
        manager.restore(state)
        assert manager.save(0, state).wait("durable", 60)
    monkeypatch.setenv("HPK_FAILPOINT", "agent.before_free@1")
    manager = Manager(root, local=local)
    assert isinstance(manager.restore(state), Restored)
    with pytest.raises(CheckpointError, match="and 3 in its place"):
        for step in range(1, 5):
            manager.save(step, state, on_busy="wait").wait("sealed", 60)
    assert not manager.close() and 0 in committed(root)


def test_a_stopped_agent_is_noticed_and_another_one_does_its_work(
    root: str, state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HPK_AGENT_SILENCE", "8")
    manager = Manager(root)
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 60)
    stopped = manager._agent.pid
    os.kill(stopped, signal.SIGSTOP)
    handle = manager.save(1, state)
    assert handle.wait("durable", 60) and manager._agent.pid != stopped
    assert f"agent (pid {stopped}) has sent no message for 8 s: killing it" in caplog.text
    assert manager.close()


def test_work_that_stands_still_is_an_error_until_it_goes_on(
    root: str, state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a mount that hangs; here the limit on the rate makes the second write wait for seconds."""
    monkeypatch.setenv("HPK_AGENT_STALL", "1")
    manager = Manager(root, every=1000, rate_limit=30_000)
    manager.restore(state)
    manager.save(0, state)
    handle = manager.save(1, state)
    # The warning is logged after the state has changed, by the thread that hears the agent.
    until(lambda: manager._saves.stalled and "has made no progress for" in caplog.text)
    assert "busy with: write" in caplog.text
    with pytest.raises(CheckpointError, match=r"no save reaches storage: the agent .* has made no progress for"):
        manager.step(1, state)
    until(lambda: not manager._saves.stalled and "the checkpoint agent continues" in caplog.text)
    assert handle.wait("durable", 60)


def test_an_agent_without_memory_ends_no_save_in_silence(root: str, state: State) -> None:
    """ENOMEM for whatever it maps: it used to stay alive with a dead thread, saves `captured` for ever."""
    manager = Manager(root, max_lost=None)
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 60)
    pid = manager._agent.pid
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))
    handles: list[Any] = []
    for step in range(1, 8):
        handles.append(manager.save(step, state, on_busy="wait"))
        until(lambda: handles[-1].final, what=f"end of {handles[-1]}")
    if manager._agent.pid == pid:
        kill(manager)
    assert manager.save(99, state, on_busy="wait").wait("durable", 60)
    assert manager.close()


class Kept:
    """Two ranks' agents, each with a keeper, without torch's ranks."""

    def __init__(self, start: Any, capture: Any) -> None:
        self.run = start(world=2, make=AgentSupervisor)
        self.run.settle()
        self._capture = capture

    def save(self, seq: int) -> None:
        save(self.run, self._capture, seq, slot=seq)

    def kill(self, rank: int) -> None:
        keeper = self.run.links[rank]
        dead = keeper.pid
        os.kill(dead, signal.SIGKILL)
        until(lambda: keeper.pid != dead)

    def durable(self, seq: int) -> bool:
        """Whether both trainers hear of it."""
        for rank in range(2):
            while self.run.until("durable", rank=rank, timeout=40.0)[-1]["key"][1] != seq:
                pass
        return True


@pytest.mark.parametrize("who", share(([0], [1], [0, 1], [1, 0, 1]), 2), ids=str)
def test_agents_of_several_ranks_find_each_other_again(who: list[int], start: Any, capture: Any, shm: Path) -> None:
    two = Kept(start, capture)
    two.save(1)
    assert two.durable(1)
    for link in two.run.links:
        os.kill(link.pid, signal.SIGSTOP)  # captured by both, and nobody has done anything with it
    two.save(2)
    for rank in who:
        two.kill(rank)
    for link in two.run.links:
        os.kill(link.pid, signal.SIGCONT)
    assert two.durable(2)
    two.save(3)
    assert two.durable(3) and two.run.close()
    assert committed(two.run.root) == [30, 20, 10] and os.listdir(shm) == []


def test_rank_0s_agent_that_never_comes_back_is_said_to_all(start: Any, capture: Any) -> None:
    two = Kept(start, capture)
    two.save(1)
    assert two.durable(1)
    two.run.links[0].tries = 0
    os.kill(two.run.links[0].pid, signal.SIGKILL)
    assert "killed by SIGKILL" in two.run.until("ended")[-1]["why"]
    said = two.run.until("trouble", rank=1)[-1]
    assert "rank 0's agent is gone; waiting for another agent" in said["why"]
