"""A job of two ranks under a real Slurm: another user is at the ports of its agents and of `job run` all the time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository import catalog, verify
from hyperpod_kit.job import cli
from hyperpod_kit.job.report import PREFIX
from tests.unit.job.private_slurm import REPOSITORY, PrivateSlurm, missing, wait_until

from .users import ATTACKER, be

pytestmark = [pytest.mark.rehearsal, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

MAIN = Path(cli.__file__).with_name("__main__.py")

CROWD = """
import os, socket, sys, time
greetings = [b"", b"x" * 70000, b"[" * 60000 + b"\\n", b'{"token":"guess","rank":1,"again":true}\\n', b"\\xff\\n" * 99,
             b'{"protocol":"hpk-agents/2","nonce":"' + b"0" * 32 + b'","rank":1,"again":true,"proof":""}\\n']
held, number = [], 0
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
    with open(sys.argv[2], "w") as file:
        file.write(str(number))
    time.sleep(0.002 if ports else 0.05)
"""


def listening(pid: int) -> Set[int]:
    """The TCP ports at which that process listens."""
    inodes = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            found.add(int(words[1].split(":")[1], 16))
    return found


class Crowd:
    """The other user, at whatever port the job's agents and its `job run` have."""

    def __init__(self, slurm: PrivateSlurm, place: Path) -> None:
        self._slurm = slurm
        self._ports, self._count = place / "ports", place / "count"
        self._ports.write_text("")
        self._count.write_text("0")
        os.chown(self._count, ATTACKER, ATTACKER)
        self.seen: Dict[str, Set[int]] = {"agent_main": set(), "run": set()}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._process = subprocess.Popen([*be(ATTACKER), "/usr/bin/python3", "-I", "-c", CROWD, str(self._ports),
                                          str(self._count)])
        self._watch.start()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            now: Set[int] = set()
            for pid in self._slurm.processes():
                kind = next((kind for kind, of in (("agent_main", b"agent_main"), ("run", b"__main__.py\0run\0"))
                             if of in command(pid)), None)
                if kind:
                    ports = listening(pid)
                    self.seen[kind] |= ports
                    now |= ports
            partial = self._ports.with_suffix(".new")
            partial.write_text(" ".join(map(str, now)))
            partial.replace(self._ports)

    @property
    def connections(self) -> int:
        return int(self._count.read_text() or 0)

    def go(self) -> None:
        self._over.set()
        self._watch.join(30)
        self._process.kill()
        self._process.wait(30)


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def slurm() -> Iterator[PrivateSlurm]:
    base = Path(tempfile.mkdtemp(prefix="hpk-slurm-"))
    # The interpreter that has torch may lie where only root reaches it.
    cluster = PrivateSlurm(base, nodes=2, user=0)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


def events(out: Path) -> List[Dict[str, object]]:
    lines = out.read_text().splitlines() if out.exists() else []
    return [json.loads(line[len(PREFIX):]) for line in lines if line.startswith(PREFIX)]


def test_it_saves_is_killed_and_goes_on_as_if_nobody_else_were_there(slurm: PrivateSlurm) -> None:
    place, root = slurm.base, slurm.base / "root"
    (place / "shm").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        master = probe.getsockname()[1]
    script = place / "job.sbatch"
    script.write_text(f"""#!/bin/bash
#SBATCH -N2 --ntasks-per-node=1 --open-mode=append --auto-resume=1 -o {place}/out
export MASTER_ADDR=127.0.0.1 MASTER_PORT={master} GLOO_SOCKET_IFNAME=lo HPK_SHM_DIR={place}/shm PYTHONPATH={REPOSITORY}
exec {sys.executable} -S {MAIN} run --checkpoint-root {root} -- {sys.executable} {REPOSITORY}/examples/gpt/train.py \
    --data {Path(socket.__file__).parent}/asyncio --steps 160 --save-every 8 --on-busy wait --width 48 --layers 1 \
    --context 32 --batch 2 --max-bytes 200000
""")
    crowd = Crowd(slurm, place)
    try:
        job = slurm.sbatch(str(script), cwd=place)
        wait_until("a checkpoint", lambda: list(root.glob("seq-*/MANIFEST.json")), 120)
        [trainer] = [pid for pid in slurm.processes() if b"train.py" in command(pid) and b"\0exec\0" not in command(pid)
                     and b"\0SLURM_PROCID=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
                     and b"agent_main" not in command(pid)]
        os.kill(trainer, signal.SIGKILL)
        wait_until("the job's end", lambda: slurm.state(job) in ("COMPLETED", "FAILED"), 180)
        out = (place / "out").read_text()
        assert slurm.state(job) == "COMPLETED", out
        ended = [event["class"] for event in events(place / "out") if event["event"] == "ended"]
        begun = [event["step"] for event in events(place / "out") if event["event"] == "attempt"]
        assert ended == ["crash", "done"] and begun[0] == 0 and int(str(begun[1])) > 0, out
        newest = next(entry for entry in catalog.attempts(str(root)) if entry.committed)
        assert newest.name.step == 159 and verify.verify_attempt(str(root), newest.attempt).world == 2
        assert crowd.connections > 500 and all(len(ports) >= 2 for ports in crowd.seen.values()), crowd.seen
    finally:
        crowd.go()
