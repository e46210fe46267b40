"""The names by which running processes and old nodes call the program: each is in a bundle, and each of them works."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Callable, Mapping

import pytest

from hyperpod_kit.bundle.doors import DOORS, Door, DoorKind
from hyperpod_kit.bundle.render import Bundle, render
from hyperpod_kit.config.load import load
from tests.support.installed_bundle import install

CHECKOUT = Path(__file__).parents[3]
NAMED = [door.name for door in DOORS]


@pytest.fixture(scope="module")
def shipped() -> Bundle:
    return render(load(CHECKOUT / "provisioning_parameters.example.json"))


@pytest.fixture(scope="module")
def node(shipped: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed bundle, without anything else of the kit's."""
    place = tmp_path_factory.mktemp("doors") / "bundle"
    install(shipped, place)
    return place


def call(node: Path, argv: list[str], stdin: object = subprocess.DEVNULL, **environment: str) -> int:
    """The exit code of a caller that knows nothing but the bundle; what it printed is shown when a test fails."""
    done = subprocess.run(
        argv,
        cwd=node.parent,
        env={"PATH": os.environ["PATH"], **environment},
        stdin=stdin,  # type: ignore[call-overload]
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    print(done.stdout)
    return int(done.returncode)


def creation(node: Path, script: str) -> int:
    """The entry script on a machine of another orchestrator: it installs, and the program then refuses."""
    root = node.parent / f"root-{script}"
    (root / "opt/ml/config").mkdir(parents=True)
    (root / "opt/ml/config/resource_config.json").write_text('{"ClusterType": "Kubernetes"}')
    shims = node.parent / "shims"
    shims.mkdir(exist_ok=True)
    (shims / "sleep").write_text("#!/bin/sh\n")
    (shims / "sleep").chmod(0o755)
    code = call(node, ["/bin/bash", str(node / script)], HPK_ROOT=str(root), PATH=f"{shims}:{os.environ['PATH']}")
    assert (root / "opt/hyperpod-kit/current/lib/__main__.py").is_file()
    return code - 1


def agent(node: Path, module: str) -> int:
    """The agent of a trainer that has gone already."""
    trainer, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    trainer.close()
    with ours:
        return call(node, [sys.executable, "-S", "-m", module, "0"], ours, PYTHONPATH=str(node / "lib"))


def lint_by_node_config(node: Path) -> list[str]:
    """The arguments of `job lint` that read it, with a script in which nothing is wrong."""
    script = node.parent / "nothing.sbatch"
    script.write_text("#!/bin/bash\ntrue\n")
    return ["job", "lint", "--config", str(node / "node_config.json"), str(script)]


PYTHON = [sys.executable, "-I", "-S"]
TRIALS: Mapping[str, Callable[[Path], int]] = {
    "on_create.sh": lambda node: creation(node, "on_create.sh"),
    "on_init_complete.sh": lambda node: creation(node, "on_init_complete.sh"),
    "lifecycle_script.py": lambda node: call(node, [*PYTHON, str(node / "lifecycle_script.py"), "--help"]),
    "bin/hyperpod-kit": lambda node: call(node, [str(node / "bin/hyperpod-kit"), "node", "--help"]),
    "lib/__main__.py": lambda node: call(node, [*PYTHON, str(node / "lib"), "checkpoint", "--help"]),
    "lib/hyperpod_kit/job/__main__.py": lambda node: call(
        node, [*PYTHON, str(node / "lib/hyperpod_kit/job/__main__.py"), "--help"]
    ),
    "node_config.json": lambda node: call(node, [*PYTHON, str(node / "lib"), *lint_by_node_config(node)]),
    # These two write to /run: that Slurm can start them is seen without running them.
    "slurm/prolog.sh": lambda node: call(node, ["/bin/bash", "-n", str(node / "slurm/prolog.sh")]),
    "slurm/epilog.sh": lambda node: call(node, ["/bin/bash", "-n", str(node / "slurm/epilog.sh")]),
    "slurm/task_prolog.sh": lambda node: call(node, [str(node / "slurm/task_prolog.sh")]),
    "hyperpod_kit.node.__main__": lambda node: call(
        node, [sys.executable, "-S", "-m", "hyperpod_kit.node", "--help"], PYTHONPATH=str(node / "lib")
    ),
    "hyperpod_kit.checkpoint.agent.agent_main": lambda node: agent(node, "hyperpod_kit.checkpoint.agent.agent_main"),
    "hyperpod_kit.checkpoint.repository.agent_main": lambda node: agent(
        node, "hyperpod_kit.checkpoint.repository.agent_main"
    ),
    "hyperpod_kit.checkpoint.repository.cli:main": lambda node: call(
        node,
        [sys.executable, "-S", "-c", "from hyperpod_kit.checkpoint.repository.cli import main; main(['--help'])"],
        PYTHONPATH=str(node / "lib"),
    ),
    "hyperpod_kit.cli.main:main": lambda node: call(
        node, [sys.executable, "-c", "from hyperpod_kit.cli.main import main; main()", "--version"]
    ),
}


@pytest.mark.parametrize("door", DOORS, ids=NAMED)
def test_a_door_is_in_the_bundle_and_opens(door: Door, shipped: Bundle, node: Path) -> None:
    assert (door.installed_file_path in shipped.installed_files) == door.on_nodes
    assert TRIALS[door.name](node) == 0


def test_each_door_is_named_once_and_tried() -> None:
    assert sorted(TRIALS) == sorted(NAMED) and len(set(NAMED)) == len(NAMED)
    assert all(door.callers and door.since for door in DOORS)


def test_the_console_script_is_a_door() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text()
    assert re.findall(r'^hyperpod-kit = "(.+)"$', text, re.MULTILINE) == ["hyperpod_kit.cli.main:main"]


IN_A_BUNDLE = re.compile(r"/opt/hyperpod-kit/current/([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*)")
AS_MODULE = re.compile(r"-m\W{1,4}(hyperpod_kit(?:\.\w+)+)")
TREES = ("templates", "slurm", "lifecycle_scripts", "hyperpod_kit")


def test_nothing_of_ours_calls_a_bundle_by_another_name(shipped: Bundle) -> None:
    """What we write into units, hooks and command lines stays there when the bundle changes."""
    files = {door.name for door in DOORS if door.kind is DoorKind.FILE}
    called = set()
    for tree in TREES:
        for path in (CHECKOUT / tree).rglob("*"):
            if path.is_file() and path.suffix != ".pyc" and "_bundle" not in path.parts:
                called |= {place.rstrip(".") for place in IN_A_BUNDLE.findall(path.read_text())}
    assert "bin/hyperpod-kit" in called
    # `…/lib` is the program as a directory, and `…/slurm` names where the hooks lie.
    assert called - {"lib", "slurm"} <= files
    modules = {door.name.removesuffix(".__main__") for door in DOORS if door.kind is DoorKind.MODULE}
    started = set()
    for place, data in shipped.library.items():
        if place.endswith(".py"):
            started |= set(AS_MODULE.findall(data.decode()))
    assert "hyperpod_kit.node" in started and started <= modules
