"""Ctrl-C where SIGINT is ignored by inheritance: of what a shell starts with `&`, a supervisor, a runner of CI."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import pytest

from hyperpod_kit import ending
from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import load
from tests.support.installed_bundle import install
from tests.support.wait import until

CHECKOUT = Path(__file__).parents[2]
INTERRUPT_HANDLER = """
import signal, sys
sys.path.insert(0, "examples/demo")
import demo
demo.Interrupt()
try:
    signal.raise_signal(signal.SIGHUP)
    print("waiting", file=sys.stderr, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("stopped", file=sys.stderr)
    sys.exit(130)
"""
"""The handlers of `make demo`, which ends its machines when it is interrupted. SIGHUP stays ignored, as nohup asks."""


class WaitingProgram(NamedTuple):
    """A program that does not end by itself. `waits`: whether it does so yet, by what it wrote to standard error."""

    argv: List[str]
    waits: Callable[[str], bool]
    environment: Dict[str, str]
    stdin: int = subprocess.DEVNULL


def ignore_signals() -> None:
    """Between fork and exec: a shell without job control does the first for `program &`, and nohup the second."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def after_ctrl_c(program: WaitingProgram, log: Path) -> Tuple[int, str]:
    """The exit code and the last line on standard error, after SIGINT to the whole group while the program waits."""
    with open(log, "w") as stderr:
        process = subprocess.Popen(
            program.argv,
            stdin=program.stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd=CHECKOUT,
            env={**os.environ, **program.environment},
            start_new_session=True,
            preexec_fn=ignore_signals,
        )
    try:
        until(lambda: program.waits(log.read_text()) or process.poll() is not None, what="a program that waits")
        assert process.poll() is None, log.read_text()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(120)
    finally:
        process.kill()
        process.wait()
    return code, log.read_text().splitlines()[-1]


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[List[str]]:
    """Words of `data stage` into a directory that another one fills."""
    source, target = tmp_path / "source", tmp_path / "target"
    (target / ".hpk-stage").mkdir(parents=True)
    source.mkdir()
    (source / "file").write_text("text")
    with open(target / ".hpk-stage/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield ["stage", str(source), str(target)]


def another_fills(log: str) -> bool:
    return "waiting for it" in log


@pytest.mark.parametrize(
    "program",
    [
        ["-c", "from hyperpod_kit.cli.main import main; main()", "data"],
        ["-m", "hyperpod_kit.cli.main", "data"],
        ["-m", "hyperpod_kit.data.cli"],
    ],
    ids=["console-script", "cli", "data"],
)
def test_a_command_of_an_admin_ends(program: List[str], filled: List[str], tmp_path: Path) -> None:
    waiting = WaitingProgram([sys.executable, *program, *filled], another_fills, {})
    assert after_ctrl_c(waiting, tmp_path / "log") == (130, "stopped")


CLUSTER_OF_THIS_MACHINE = {
    "ClusterType": "Slurm",
    "ClusterConfig": {
        "ClusterArn": "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcde1234567",
        "ClusterName": "demo",
    },
    "InstanceGroups": [
        {"Name": "worker-group", "Instances": [{"InstanceId": "i-0w", "CustomerIpAddress": "127.0.0.1"}]}
    ],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lib/ of a bundle that is installed below a root, as of a node with the address 127.0.0.1."""
    place = tmp_path_factory.mktemp("interrupts") / "opt/hyperpod-kit/current"
    place.parent.mkdir(parents=True)
    install(render(load(CHECKOUT / "provisioning_parameters.example.json")), place)
    resource_config = place.parents[1] / "ml/config/resource_config.json"
    resource_config.parent.mkdir(parents=True)
    resource_config.write_text(json.dumps(CLUSTER_OF_THIS_MACHINE))
    return place / "lib"


@pytest.mark.parametrize("way", ["lib", "module"])
def test_a_command_of_a_node_ends(library: Path, tmp_path: Path, way: str) -> None:
    """`node ask` reads its question; it has begun to once the pipe is empty."""
    reader, writer = os.pipe()
    os.write(writer, b"{")
    unread = array.array("i", [1])

    def reads(_: str) -> bool:
        fcntl.ioctl(writer, termios.FIONREAD, unread)
        return unread[0] == 0

    argv = {"lib": ["-I", "-S", str(library)], "module": ["-S", "-m", "hyperpod_kit.node"]}[way]
    words = ["node", "ask"] if way == "lib" else ["ask"]
    environment = {"PYTHONPATH": str(library), "HPK_ROOT": str(library.parents[3]), "HPK_NODE_ADDRESS": "127.0.0.1"}
    program = WaitingProgram([sys.executable, *argv, *words], reads, environment, reader)
    try:
        assert after_ctrl_c(program, tmp_path / "log") == (130, "stopped")
    finally:
        os.close(reader)
        os.close(writer)


def test_a_command_of_a_job_ends(library: Path, tmp_path: Path) -> None:
    """`job submit` waits for sbatch."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexec sleep 600\n")
    sbatch.chmod(0o755)
    argv = [sys.executable, "-I", "-S", str(library / "hyperpod_kit/job/__main__.py"), "submit", "/dev/null"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = WaitingProgram(argv, lambda _: (tmp_path / "called").exists(), environment)
    assert after_ctrl_c(program, tmp_path / "log") == (130, "stopped")


def test_the_demo_is_interrupted_but_not_hung_up(tmp_path: Path) -> None:
    program = WaitingProgram([sys.executable, "-c", INTERRUPT_HANDLER], lambda log: "waiting" in log, {})
    assert after_ctrl_c(program, tmp_path / "log") == (130, "stopped")


def test_a_handler_of_its_own_stays() -> None:
    """A program that has one, or the library in a user's program, is not changed."""
    before = signal.getsignal(signal.SIGINT)
    ending.restore_sigint_if_ignored()
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN
