"""The example's training job as real processes over gloo."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from tests.distributed import rank_process
from tests.support.ports import free_port

TINY = [
    "--width",
    "48",
    "--layers",
    "1",
    "--context",
    "32",
    "--batch",
    "2",
    "--max-bytes",
    "200000",
    "--on-busy",
    "wait",
]


class Job:
    """`world` ranks of examples/gpt/train.py on one root; their output is in files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.root = folder / name
        self.shm = folder / f"shm-{name}"
        self.shm.mkdir(exist_ok=True)
        self.ranks: list[BaseProcess] = []
        self.starts = 0

    def start(self, steps: int, *args: str, world: int = 2, **env: str) -> None:
        """Start all ranks; `env` for all, with a key `rank1_NAME` for rank 1 only."""
        self.starts += 1
        port = free_port()
        self.ranks = []
        for rank in range(world):
            own = {key.split("_", 1)[1]: value for key, value in env.items() if key.startswith(f"rank{rank}_")}
            common = {key: value for key, value in env.items() if not key.startswith("rank")}
            self.ranks.append(
                rank_process.start(
                    self.log(rank),
                    self.folder,
                    [
                        "--data",
                        str(Path(socket.__file__).parent / "asyncio"),
                        "--checkpoint-root",
                        str(self.root),
                        "--steps",
                        str(steps),
                        *TINY,
                        *args,
                    ],
                    {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(world),
                        "MASTER_PORT": str(port),
                        "HPK_AGENT_LINGER": "20",
                        "HPK_SHM_DIR": str(self.shm),
                        "GLOO_SOCKET_IFNAME": "lo",
                        **common,
                        **own,
                    },
                )
            )

    def log(self, rank: int) -> Path:
        return self.folder / f"{self.root.name}.{self.starts}.{rank}.log"

    def events(self) -> list[dict[str, Any]]:
        lines = self.log(0).read_text().splitlines() if self.log(0).exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def find(self, key: str) -> Any:
        return next((event[key] for event in self.events() if key in event), None)

    def until(self, what: str, condition: Callable[[], Any], timeout: float = 120.0) -> Any:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            if all(rank.exitcode is not None for rank in self.ranks):
                found = condition()
                if found:
                    return found
                break
            time.sleep(0.02)
        raise AssertionError(f"no {what}\n" + "\n".join(self.log(r).read_text() for r in range(len(self.ranks))))

    def reached(self, step: int) -> None:
        self.until(f"step {step}", lambda: any(e.get("step", -1) >= step for e in self.events() if "loss" in e))

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.join(10)

    def wait(self, timeout: float = 120.0) -> list[int | None]:
        """Exit codes; None for a rank that has not ended within `timeout` seconds."""
        for rank in self.ranks:
            rank.join(timeout)
        return [rank.exitcode for rank in self.ranks]

    def weights(self) -> str:
        codes = self.wait()
        assert codes == [0] * len(self.ranks), "\n".join(self.log(r).read_text() for r in range(len(self.ranks)))
        return str(self.find("weights_sha256"))

    def agents(self) -> list[int]:
        """Pids of agents that hold a lock in this job's shared memory."""
        from hyperpod_kit.checkpoint.agent.shm import lock
        from hyperpod_kit.system import process

        found = [lock.read_agent_and_trainer(str(path)) for path in self.shm.glob("*.lock")]
        return [held[0].pid for held in found if held is not None and process.is_alive(held[0])]

    def kill_agents(self) -> None:
        for pid in self.agents():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 5
        while self.agents() and time.monotonic() < end:
            time.sleep(0.01)


@pytest.fixture(name="job")
def make_job(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    """job(name) -> Job; whatever still runs at the end of the test is killed."""
    made: list[Job] = []

    def make(name: str) -> Job:
        made.append(Job(tmp_path, name))
        return made[-1]

    yield make
    for one in made:
        one.kill()
        one.kill_agents()


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(root, weights) of a run of 24 steps that nobody disturbed."""
    from hyperpod_kit.checkpoint.repository.read import verify
    from hyperpod_kit.checkpoint.repository.records import catalog

    job = Job(tmp_path_factory.mktemp("calm"), "calm")
    job.start(24, "--save-every", "4")
    weights = job.weights()
    assert os.listdir(job.shm) == [], "a normal end leaves nothing in shared memory"
    assert [entry.name.step for entry in catalog.list_checkpoints(str(job.root))] == [23, 19, 15]
    for entry in catalog.list_checkpoints(str(job.root)):
        assert verify.verify_checkpoint(str(job.root), entry.checkpoint_id).world == 2
    return job.root, weights


@pytest.fixture
def undisturbed(calm: tuple[Path, str]) -> str:
    """The weights that every run of 24 steps must end with."""
    return calm[1]
