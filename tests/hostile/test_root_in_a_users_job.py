"""Root asks a busy node in the job of its user: nothing of root's goes there, and the answer is called the user's."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Iterator, List, Set

import pytest

from hyperpod_kit.node.peers.query import PeerQuery, query_peers
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.controller import _node_response
from hyperpod_kit.run import LocalRunner
from tests.hostile.loopback import VICTIM as OWNER
from tests.hostile.loopback import Two, two_users

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

SECRET = "of-the-admin-4711"


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with two_users(nodes=2) as found:
        yield found


class Watcher:
    """What the owner of a job can read: the environment of each process that is his, as long as it lives."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._over = threading.Event()
        self.seen: Set[bytes] = set()
        self.programs: Set[str] = set()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _watch(self) -> None:
        while not self._over.is_set():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if os.stat(f"/proc/{pid}").st_uid == self._uid:
                        self.seen |= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                        self.programs.add(Path(f"/proc/{pid}/comm").read_text().strip())
                except OSError:
                    continue


def test_nothing_of_roots_environment_is_seen_by_the_owner_of_the_job(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = two.train("--exclusive", "-w", "n1")
    shim = tmp_path / "ssh"
    shim.write_text("#!/bin/sh\nexit 255\n")
    shim.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", two.slurm.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", f"{tmp_path}:{two.slurm.environment['PATH']}")
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SUDO_COMMAND"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.chdir(two.places[OWNER])
    command = ("/bin/sh", "-c", "sleep 1; cat /proc/self/environ | tr '\\0' '\\n'; id -u")
    nodes = tuple((f"i-{name}", "10.0.0.1", name) for name in ("n1", "n2"))
    with Watcher(OWNER) as watcher:
        said = {one["id"]: one for one in query_peers(PeerQuery(nodes, command, 5.0, 30.0), LocalRunner(), "i-0")}
    assert "srun" in watcher.programs, "it was looked at while it ran"
    assert not [text for text in watcher.seen if SECRET.encode() in text]
    for one, uid in ((said["i-n1"], OWNER), (said["i-n2"], 0)):
        lines: List[str] = one["stdout"].split()
        assert lines[-1] == str(uid) and SECRET not in one["stdout"] and "AWS" not in one["stdout"]
    assert (said["i-n1"]["owner"], said["i-n2"]["owner"]) == (OWNER, None)
    two.over(job)


def test_an_answer_out_of_a_users_job_is_marked_as_that_users_word() -> None:
    target = NodeTarget("i-1", "g", "compute", "10.0.0.1")
    said = json.loads(json.dumps({"id": "i-1", "way": "slurm", "owner": 4001, "returncode": 0, "stdout": "{}"}))
    assert "a job of uid 4001, who could have changed it" in _node_response(target, said).doubt
    assert (
        _node_response(target, {**said, "owner": None}).doubt == ""
        and _node_response(target, {**said, "owner": 0}).doubt == ""
    )
