"""A job of two ranks: another user is at the ports of its agents and of `job run` while it saves, dies and goes on.

The supervisor, the wrappers, the trainers (gloo) and their agents are real; srun is the one of the job tests.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, Dict, List, Optional, Set

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import catalog
from tests.hostile.users import ATTACKER, ROOT, be, place
from tests.support.ports import free_port
from tests.support.wait import scaled, until
from tests.unit.job.conftest import Job, job  # noqa: F401
from tests.unit.job.private_slurm import REPOSITORY

pytestmark = [ROOT, pytest.mark.timeout(600)]

CROWD = """
import os, socket, sys, time
greetings = [b"", b"x" * 70000, b"[" * 60000 + b"\\n", b'{"token":"guess","rank":1,"again":true}\\n', b"\\xff\\n" * 99,
             b'{"protocol":"hpk-agents/2","nonce":"' + b"0" * 32 + b'","rank":1,"again":true,"proof":""}\\n']
held, number = [], 0
count = os.open(sys.argv[2], os.O_WRONLY)
while True:
    with open(sys.argv[1]) as file:
        ports = [int(word) for word in file.read().split()]
    for port in ports:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=1)
            sock.setblocking(False)
            sock.send(greetings[number % len(greetings)])
            held.append(sock)
        except OSError:
            pass
        number += 1
    for sock in held[:-150]:
        sock.close()
    del held[:-150]
    os.pwrite(count, b"%12d" % number, 0)  # never empty: it is read when this was killed
    time.sleep(0.02 if ports else 0.05)
"""


def listening(pids: List[int]) -> Dict[int, Set[int]]:
    """The TCP ports at which each of those processes listens.

    The kernel is asked for listeners alone: /proc/net/tcp also holds the crowd's tens of thousands of old connections,
    and takes longer to read than an attempt lasts.
    """
    told = subprocess.run(["ss", "-Hltne"], capture_output=True, text=True, timeout=60, check=True).stdout
    ports = {}
    for line in told.splitlines():
        inode = re.search(r"\bino:(\d+)", line)
        if inode:
            ports[f"socket:[{inode[1]}]"] = int(line.split()[3].rpartition(":")[2])
    found: Dict[int, Set[int]] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError, KeyError):
                    found.setdefault(pid, set()).add(ports[os.readlink(f"/proc/{pid}/fd/{fd}")])
    return found


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def of_job(mark: bytes) -> List[int]:
    """Processes in whose environment that is."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
    return found


class Crowd:
    """The other user, at whatever port the job's agents and its `job run`, which is this process, have.

    `then()` is called now and then, until it says that it is done.
    """

    def __init__(self, folder: Path, mark: bytes, then: Callable[[List[int]], bool]) -> None:
        self._mark, self._then = mark, then
        self._ports, self._count = folder / "ports", folder / "count"
        self._ports.write_text("")
        self._count.write_text("0")
        os.chown(self._count, ATTACKER, ATTACKER)
        self._before = listening([os.getpid()]).get(os.getpid(), set())
        self.agents: Set[int] = set()
        self.lifelines: Set[int] = set()
        self.connections = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._process: Optional[subprocess.Popen[bytes]] = None

    def __enter__(self) -> Crowd:
        self._process = subprocess.Popen(
            [*be(ATTACKER), "/usr/bin/python3", "-I", "-c", CROWD, str(self._ports), str(self._count)]
        )
        self._watch.start()
        return self

    def _look(self) -> None:
        done = False
        while not self._over.wait(0.25):  # it reads all of /proc
            pids = of_job(self._mark)
            found = listening([os.getpid(), *(pid for pid in pids if b"agent_main" in command(pid))])
            lifelines = found.pop(os.getpid(), set()) - self._before
            agents = set().union(*found.values())
            self.agents |= agents
            self.lifelines |= lifelines
            partial = self._ports.with_suffix(".new")
            partial.write_text(" ".join(map(str, agents | lifelines)))
            partial.replace(self._ports)
            done = done or self._then(pids)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join(30)
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        self.connections = int(self._count.read_text())


def environment(pid: int) -> Dict[str, str]:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        return dict(word.split("=", 1) for word in words if "=" in word)
    return {}


@pytest.mark.full
def test_it_saves_is_killed_and_goes_on_as_if_nobody_else_were_there(job: Job) -> None:  # noqa: F811
    shm = job.base / "shm"
    shm.mkdir(0o700)
    master = free_port()
    slurmd = socket.create_server(("127.0.0.1", 0), backlog=4096)
    job.runner.answers["scontrol -o show node"] = "\n".join(
        f"NodeName={name} NodeAddr=127.0.0.1 Port={slurmd.getsockname()[1]} State=ALLOCATED" for name in ("n1", "n2")
    )
    job.environment.update(
        SLURMD_NODENAME="n1",
        HPK_SHM_DIR=str(shm),
        GLOO_SOCKET_IFNAME="lo",
        PYTHONPATH=str(REPOSITORY),
        OMP_NUM_THREADS="1",
    )
    inner = (
        f"unset SLURM_JOB_NODELIST SLURM_STEP_NODELIST; export MASTER_ADDR=127.0.0.1 MASTER_PORT={master}; "
        f"exec {sys.executable} {REPOSITORY}/examples/gpt/train.py --data {Path(socket.__file__).parent}/asyncio "
        "--steps 45 --save-every 5 --on-busy wait --width 48 --layers 1 --context 32 --batch 2 --max-bytes 200000"
    )

    def killed(pids: List[int]) -> bool:
        """Rank 1's trainer, once something was committed."""
        if not list(job.root.glob("seq-*/MANIFEST.json")):
            return False
        for pid in pids:
            words = command(pid)
            if b"train.py" in words and b"exec\0" not in words and environment(pid).get("SLURM_PROCID") == "1":
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    with place() as folder, Crowd(folder, f"HPK_CHECKPOINT_ROOT={job.root}".encode(), killed) as crowd:
        code = job.run(
            command=["/bin/sh", "-c", inner], probe_interval=1.0, silent_after=scaled(10.0), refused_after=scaled(10.0)
        )
        until(lambda: not of_job(f"HPK_CHECKPOINT_ROOT={job.root}".encode()), what="end of its agents")
    slurmd.close()
    assert code == 0 and [event["class"] for event in job.said("ended")] == ["crash", "done"]
    assert [event["step"] > 0 for event in job.said("attempt")] == [False, True]
    newest = next(entry for entry in catalog.list_checkpoints(str(job.root)) if entry.committed)
    assert newest.name.step == 44 and verify.verify_checkpoint(str(job.root), newest.checkpoint_id).world == 2
    assert crowd.connections > 100 and len(crowd.agents) == len(crowd.lifelines) == 2, vars(crowd)
