"""One login, and that node asks the others: by OpenSSH's own client, and all servers are real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hyperpod_kit.errors import Unreachable
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.remote.connect.ssh_access import SshAccess
from hyperpod_kit.remote.reports.validate_mounts import validate_mounts
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports.controller import ControllerTransport
from hyperpod_kit.remote.transports.transport import COMMAND

if TYPE_CHECKING:
    from tests.unit.remote.conftest import Network, SshNode

REPOSITORY = Path(__file__).parents[3]
MOUNT = {"name": "data", "kind": "mountpoint-s3", "path": "/mnt/data", "state": "ok"}


def report(index: int) -> str:
    return json.dumps({"node": "n", "instance_id": f"i-{index}", "bundle_id": "b", "checked_at": 0, "mounts": [MOUNT]})


class Controller:
    """A node whose program is this checkout's; its ssh client knows the test's key, host keys and port."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.root = directory / "node"
        bundle = self.root / "opt/hyperpod-kit/current"
        bundle.mkdir(parents=True)
        (bundle / "node_config.json").write_text(NodeConfig("demo", "on_create", {"c": "controller"}).to_json())
        facts = NodeFacts("ip-10-0-0-1", "10.0.0.1", "i-0", "c", "controller", "us-east-1", "aws", "10.0.0.1")
        (self.root / "var/lib/hyperpod-kit").mkdir(parents=True)
        (self.root / "var/lib/hyperpod-kit/facts.json").write_text(json.dumps(facts.to_dict()))
        (bundle / "bin").mkdir()
        self.put(bundle / "bin/hyperpod-kit", f"#!/bin/sh\necho '{report(0)}'\n")
        self.shims = directory / "shims"
        self.shims.mkdir()
        self._network, self._directory = network, directory
        self.node: SshNode = network.node(self.answer)
        self.put(self.shims / "srun", "#!/bin/sh\necho 'srun: error: no Slurm here' >&2\nexit 1\n")
        self.put(self.shims / "squeue", "#!/bin/sh\necho 'squeue: error: no Slurm here' >&2\nexit 1\n")

    def put(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def answer(self, command: str) -> tuple[int, str, str]:
        assert command == f"{COMMAND[0]} node ask"
        given = self._network.settings
        config = self._directory / "ssh_config"
        config.write_text(
            f"Host *\n  User root\n  Port {given.port}\n  IdentityFile {given.key}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {given.known_hosts}\n"
        )
        self.put(self.shims / "ssh", f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
        environment = {
            **os.environ,
            "PATH": f"{self.shims}:{os.environ['PATH']}",
            "HPK_ROOT": str(self.root),
            "PYTHONPATH": str(REPOSITORY),
        }
        done = subprocess.run(
            [sys.executable, "-m", "hyperpod_kit.node", "ask"],
            env=environment,
            text=True,
            capture_output=True,
            timeout=60,
            input=self.node.stdin.decode(),
        )
        return done.returncode, done.stdout, done.stderr


def always(code: int, out: str, err: str = "") -> Any:
    return lambda command: (code, out, err)


def test_the_controller_asks_all_and_each_failure_is_one_nodes(network: Network, tmp_path: Path) -> None:
    controller = Controller(network, tmp_path)
    sound = network.node(always(0, report(1)))
    others = [
        sound,
        network.node(always(1, report(2))),
        network.node(always(0, report(3)), key="other"),
        network.node(always(0, report(4)), accepts="nobody"),
        network.node(always(0, "x" * 400_000)),
        network.node(None),
        network.node(always(0, report(99))),
    ]
    addresses = ["10.0.0.1", *(node.address for node in others), network.address(), ""]
    targets = [NodeTarget(f"i-{index}", "w", "compute", address) for index, address in enumerate(addresses)]
    settings = network.settings
    access = SshAccess(type(settings)(settings.user, settings.known_hosts, settings.key, settings.port, 3.0, 2.0))
    told: list[int] = []
    found = validate_mounts(
        targets, ControllerTransport(access, [controller.node.address]), expected={}, progress=told.append
    )
    assert sum(told) == len(targets)
    assert found[0].healthy, "the controller itself is asked without any login"
    assert found[1].healthy and sound.commands == [" ".join(COMMAND)]
    errors = [report.error for report in found[2:]]
    for error, words in zip(
        errors,
        (
            "exit code 1, but its report lists no unhealthy mount",
            "Host key verification failed",
            "Permission denied",
            "not a report",
            "no answer within 5 s",
            "another node answers at this address: i-99",
            "Connection refused",
            "AWS reports no address",
        ),
    ):
        assert words in error, errors
    assert "over Slurm: squeue: error: no Slurm here" in errors[2]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((2, "", "hyperpod-kit node: error: argument COMMAND: invalid choice: 'ask'"), "exit code 2: .*invalid choice"),
        ((127, "", "bash: no such file"), "exit code 127: bash: no such file"),
    ],
)
def test_a_controller_that_cannot_ask_is_no_verdict(network: Network, answer: Any, words: str) -> None:
    node = network.node(always(*answer))
    with pytest.raises(Unreachable, match=words):
        ControllerTransport(SshAccess(network.settings), [node.address]).query_mount_reports(
            [NodeTarget("i-1", "w", "", "10.0.0.9")], print
        )


def test_what_the_controller_leaves_out_is_a_failure(network: Network) -> None:
    lines = ['{"id": "i-1", "returncode": "0"}', "[" * 100_000, '{"id": 5}', "null", '{"end": 3}']
    node = network.node(always(0, "\n".join(lines)))
    targets = [NodeTarget(f"i-{index}", "w", "", "10.0.0.9") for index in (1, 2)]
    found = ControllerTransport(SshAccess(network.settings), [node.address]).query_mount_reports(
        targets, lambda count: None
    )
    assert [one.error for one in found] == [
        "the controller's response about it cannot be read",
        "the controller returned nothing about it",
    ]


def test_where_one_controller_does_not_answer_the_next_is_asked(network: Network) -> None:
    line = json.dumps({"id": "i-1", "returncode": 0, "stdout": report(1), "stderr": "", "owner": 0})
    down, up = network.node(always(127, "", "bash: no such file")), network.node(always(0, line))
    transport = ControllerTransport(SshAccess(network.settings), [down.address, network.address(), up.address])
    found = transport.query_mount_reports([NodeTarget("i-1", "w", "", "10.0.0.9")], lambda count: None)
    assert [one.returncode for one in found] == [0] and found[0].error == ""
