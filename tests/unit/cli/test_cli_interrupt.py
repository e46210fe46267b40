"""Ctrl-C in every command that takes its time: gone at once, one word, nothing half done, and it can be begun again."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Mapping

import pytest

from hyperpod_rehearsal.s3.faults import S3Fault
from tests.support.rows import full
from tests.support.wait import until
from tests.unit.cli.conftest import put_bundle, put_cluster

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

BUCKET = "sagemaker-hyperpod-kit-demo"
COMING: list[tuple[str, Mapping[str, int], str]] = [("Creating", {"controller-machine": 1}, "")]


def interrupt(*words: str, when: Callable[[], bool]) -> tuple[int, str]:
    """Run a command and send SIGINT when `when` is true; exit code and stderr. It must end within 5 seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hyperpod_kit.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        until(lambda: when() or process.poll() is not None, 30, what="what the signal waits for")
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)
        return process.returncode, err
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def polled(cloud: Cloud, times: int = 2) -> Callable[[], bool]:
    """True when the cluster has been looked at so often from now on."""
    begin = cloud.control.looks
    return lambda: cloud.control.looks >= begin + times


@pytest.mark.parametrize(
    "words, left",
    [
        *full((["wait"], "hyperpod-kit wait --cluster demo --region us-east-1")),
        (["create-cluster", "--wait"], "hyperpod-kit wait --cluster demo --region us-east-1"),
        *full((["update-cluster", "--wait"], "hyperpod-kit wait --cluster demo --region us-east-1")),
        (["delete-cluster", "--yes", "--wait"], "hyperpod-kit delete-cluster --cluster demo --region us-east-1 --wait"),
    ],
    ids=["wait", "create", "update", "delete"],
)
def test_waiting_ends_and_what_was_asked_for_goes_on(
    cloud: Cloud, project: Path, hk: Hk, words: list[str], left: str
) -> None:
    put_cluster(cloud.control, hk)
    if words[0] == "create-cluster":  # the others do not look at the bundle
        put_bundle(cloud.store)
    deleting: list[tuple[str, Mapping[str, int], str]] = [("Deleting", {}, "")]
    cloud.control.script = deleting if "delete-cluster" in words else COMING
    code, err = interrupt(*words, "--interval", "0.2", when=polled(cloud, 4))
    assert code == 130 and err.splitlines()[-1] == "stopped" and "Traceback" not in err, err
    assert left in err
    assert list(cloud.control.clusters) == ["demo"]


def test_following_events_ends(cloud: Cloud, project: Path, hk: Hk) -> None:
    put_cluster(cloud.control, hk)
    cloud.control.events = []
    code, err = interrupt("events", "--follow", "--interval", "0.2", when=lambda: cloud.control.event_looks > 2)
    assert (code, err.split()) == (130, ["stopped"])


def test_an_upload_ends_while_s3_is_silent_and_the_next_sends_the_rest(cloud: Cloud, project: Path, hk: Hk) -> None:
    cloud.store.create_bucket(BUCKET)
    cloud.store.faults.add(S3Fault(path="/units/", method="PUT", delay=60.0))
    code, err = interrupt("upload", when=lambda: len(cloud.store.list(BUCKET)) >= 3)
    assert (code, err.split()) == (130, ["stopped"]), err
    cloud.store.faults.clear()
    rest = json.loads(hk("upload", "--json").out)
    assert rest["present"] >= 3 and rest["sent"] > 0
    assert hk("create-cluster").code == 0


def at_a_terminal(*words: str, answer: bytes) -> tuple[int, str]:
    """Run a command at a pseudo terminal and type `answer` once it asks."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "hyperpod_kit.cli.main", *words])
    shown = b""
    typed = False
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        for _ in range(60):
            if not select.select([terminal], [], [], 1.0)[0]:
                # A Ctrl-C between question and answer is heard by neither of them: a person tries again.
                if b"[y/N]" in shown:
                    os.write(terminal, answer)
                continue
            part = os.read(terminal, 4096)
            if not part:
                break
            shown += part
            if b"[y/N]" in shown and not typed:
                typed = True
                os.write(terminal, answer)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.mark.parametrize(("answer", "code"), [*full((b"\x03", 130), (b"n\n", 130)), (b"y\n", 0)])
def test_a_deletion_asks_a_person(cloud: Cloud, project: Path, hk: Hk, answer: bytes, code: int) -> None:
    put_cluster(cloud.control, hk)
    done, shown = at_a_terminal("delete-cluster", answer=answer)
    assert done == code, shown
    assert "Delete cluster demo in us-east-1 with its 4 nodes" in shown and "Traceback" not in shown
    assert list(cloud.control.clusters) == ([] if code == 0 else ["demo"])
