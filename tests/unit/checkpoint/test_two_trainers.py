"""A root has one trainer: the one whose start is the newest."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.repository import commit
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.records import identity, starts
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.errors import RunIsOwned
from tests.support.wait import until
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN

TRAINER = """
import json, os, sys, time, torch
from hyperpod_kit.checkpoint import Manager, State
root, log, stop = sys.argv[1:4]
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    torch.distributed.init_process_group("gloo", init_method="file://" + log + ".store", rank=rank, world_size=world)
def tell(**words):
    with open(f"{log}.{rank}", "a") as file:
        file.write(json.dumps(words) + "\\n")
torch.manual_seed(1)
model = torch.nn.Linear(64, 64)
manager = Manager(root, max_lost=None)
state = State(model)
step = manager.restore(state).next_step
tell(begins=step, epoch=manager.epoch)
try:
    while not os.path.exists(stop):
        handle = manager.save(step, state, on_busy="wait")
        handle.wait("durable", 30)
        tell(step=step, state=handle.state, attempt=handle.checkpoint_id, reason=handle.reason)
        step += 1
        time.sleep(0.02)
except Exception as err:
    tell(error=type(err).__name__, text=str(err), hint=err.hint, step=step)
tell(closed=manager.close())
os._exit(0)  # the other ranks end by themselves
"""


class Host:
    """A machine as far as a program sees it: a name of its own and shared memory of its own, in namespaces."""

    def __init__(self, name: str) -> None:
        self.name = name
        script = 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && echo made && exec sleep infinity'
        self._first = subprocess.Popen(
            ["unshare", "--uts", "--mount", "sh", "-c", script, name], stdout=subprocess.PIPE, text=True
        )
        assert self._first.stdout is not None and self._first.stdout.readline() == "made\n"
        self.enter = ["nsenter", f"--target={self._first.pid}", "--uts", "--mount", f"--wdns={os.getcwd()}"]

    def close(self) -> None:
        self._first.kill()
        self._first.wait(30)
        if self._first.stdout is not None:
            self._first.stdout.close()


class Job:
    """A trainer of `world` ranks on a node of its own: it sees nobody else's memory. `host`: in its namespaces."""

    def __init__(
        self, folder: Path, name: str, root: Path, *, world: int = 1, node: str = "", host: Optional[Host] = None
    ) -> None:
        self.world, self._log, self._stop = world, folder / name, folder / f"{name}.stop"
        shm = folder / f"{node or name}.shm"
        if host is None:
            shm.mkdir(exist_ok=True)
        self.ranks = [
            subprocess.Popen(
                [
                    *(host.enter if host is not None else ()),
                    *(sys.executable, "-c", TRAINER, str(root), str(self._log), str(self._stop)),
                ],
                env={
                    **os.environ,
                    **({"HPK_SHM_DIR": str(shm)} if host is None else {}),
                    "PYTHONPATH": os.getcwd(),
                    "PYTHONWARNINGS": "ignore",
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                },
            )
            for rank in range(world)
        ]

    def told(self, rank: int = 0) -> List[Dict[str, Any]]:
        path = Path(f"{self._log}.{rank}")
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def durable(self) -> List[Dict[str, Any]]:
        return [words for words in self.told() if words.get("state") == "durable"]

    def stop(self) -> None:
        self._stop.touch()

    def wait(self) -> None:
        for process in self.ranks:
            process.wait(120)

    def kill(self) -> None:
        for process in self.ranks:
            process.kill()
            process.wait(30)


@pytest.mark.full
@pytest.mark.parametrize("world", [1, 2])
def test_the_older_trainer_hears_that_a_newer_start_has_its_root(tmp_path: Path, world: int) -> None:
    root = tmp_path / "root"
    first = Job(tmp_path, "first", root, world=world)
    second = None
    try:
        until(lambda: len(first.durable()) > 3, 120)
        second = Job(tmp_path, "second", root)
        until(lambda: all(any("error" in words for words in first.told(rank)) for rank in range(world)), 120)
        first.wait()
        # It takes the root before it writes its first line: the older one may have ended by then.
        until(lambda: second is not None and len(second.durable()) > 3, 120)
        begun = second.told()[0]
        second.stop()
        second.wait()
    finally:
        first.kill()
        if second is not None:
            second.kill()
    for rank in range(world):
        error = next(words for words in first.told(rank) if "error" in words)
        assert error["error"] == "RunIsOwned" and f"pid {second.ranks[0].pid}" in error["text"]
        assert os.uname().nodename in error["text"] and f"epoch {begun['epoch']}" in error["text"]
        assert first.told(rank)[-1] == {"closed": False}
    # Whatever it was told is durable, the newer one has seen.
    assert first.durable()[-1]["step"] < begun["begins"]
    assert second.told()[-1] == {"closed": True} and not any("error" in words for words in second.told())


@pytest.mark.full
@pytest.mark.needs("root")
@pytest.mark.parametrize("world", [1, 2])
def test_the_newer_start_is_on_another_machine_and_named_with_it(
    tmp_path: Path, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is common to the two but storage: no name of a host, no shared memory, no lock."""
    monkeypatch.delenv("HPK_SHM_DIR", raising=False)
    root = tmp_path / "root"
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(contextlib.closing(Host(name))) for name in ("node-of-first", "node-of-second")]
        first = Job(tmp_path, "first", root, world=world, host=hosts[0])
        stack.callback(first.kill)
        until(lambda: len(first.durable()) > 3, 120)
        second = Job(tmp_path, "second", root, world=world, host=hosts[1])
        stack.callback(second.kill)
        until(lambda: all(any("error" in words for words in first.told(rank)) for rank in range(world)), 120)
        first.wait()
        until(lambda: len(second.durable()) > 3, 120)
        second.stop()
        second.wait()
        newer = second.told()
        for rank in range(world):
            told = first.told(rank)
            error = next(words for words in told if "error" in words)
            assert error["error"] == "RunIsOwned", error
            assert f"epoch {newer[0]['epoch']} on node-of-second, pid {second.ranks[0].pid}" in error["text"], error
            assert told[-1] == {"closed": False}
            # What it was told is durable lies before what the newer one began from.
            durable = [words["step"] for words in told if words.get("state") == "durable"]
            assert max(durable) < newer[0]["begins"]
        assert not any("error" in words for rank in range(world) for words in second.told(rank))
        assert newer[-1] == {"closed": True}
    kept = {path.parent.name for path in root.glob("seq-*/MANIFEST.json")}
    assert {words["attempt"] for words in second.durable()[-1:]} <= kept


def has_committed(job: Job) -> bool:
    return len(job.durable()) > 2


@pytest.mark.full
@pytest.mark.parametrize("same_node", [True, False])
def test_a_restart_of_a_dead_trainer_is_no_second_one(tmp_path: Path, same_node: bool) -> None:
    """As a retry of the step: its ranks are dead, and its agents may still be at work."""
    root = tmp_path / "root"
    starts_before: List[Job] = []
    try:
        for number in range(3):
            node = "node" if same_node else f"node{number}"
            job = Job(tmp_path, f"start{number}", root, node=node)
            starts_before.append(job)
            until(partial(has_committed, job), 120)
            if number < 2:
                job.kill()
        job.stop()
        job.wait()
    finally:
        for job in starts_before:
            job.kill()
    begins = [job.told()[0]["begins"] for job in starts_before]
    assert begins == sorted(begins) and job.told()[-1] == {"closed": True}
    for before, after in zip(starts_before, starts_before[1:]):
        assert after.told()[0]["begins"] > before.durable()[-1]["step"]
        assert not any("error" in words for words in before.told() + after.told())


def test_a_start_that_is_newer_is_named_from_its_file() -> None:
    store = MemoryStore("memory://starts")
    identity.write_run_file_unless_valid(store, SMALL_RUN)
    mine = commit.claim_epoch(store, SMALL_RUN, above=0, job={})
    assert starts.describe_newer_start(store, mine) is None
    commit.claim_epoch(store, SMALL_RUN, above=mine, job={"slurm_job_id": "4711"})
    words = starts.describe_newer_start(store, mine)
    assert words is not None and f"pid {os.getpid()}, job 4711" in words and os.uname().nodename in words
    assert starts.describe_newer_start(store, mine + 1) is None
    store.create(layout.epoch_file(mine + 2), b"torn")
    assert "does not say whose" in (starts.describe_newer_start(store, mine) or "")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_trainer_is_stopped_at_its_next_save_on_every_path(tmp_path: Path, shm: Path) -> None:
    root = str(tmp_path / "root")
    manager, state = Manager(root, every=1), State(torch.nn.Linear(8, 8))
    manager.restore(state)
    first = manager.step(0, state)
    assert first is not None and first.wait("durable", 60)
    commit.claim_epoch(root, manager._start.run, above=0, job={})
    try:
        second = manager.save(1, state, on_busy="wait")
    except RunIsOwned:
        pass  # its own save was refused before the call came back
    else:
        assert not second.wait("durable", 60) and "taken by a newer start" in (second.reason or "")
    until(lambda: manager._saves.taken_by)
    assert manager.reached(1) is False
    for save in (lambda: manager.save(2, state), lambda: manager.step(2, state)):
        with pytest.raises(RunIsOwned, match="taken by a newer start"):
            save()
    assert manager.close() is False
