"""A mount of the toy kind, from the configuration to a node: run with the copied tree first on the path.

`walk.py EXAMPLE DIRECTORY` makes what it needs in DIRECTORY and fails at the first thing that is not so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

from hyperpod_kit.model.mounts.toy import ToyMount

from hyperpod_kit.aws.iam import Caller
from hyperpod_kit.bundle.render import render
from hyperpod_kit.config import schema
from hyperpod_kit.config.decoding import decode
from hyperpod_kit.config.load import check, load
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.units import carrier_unit
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.preflight.checks.required_permissions import required_permissions
from hyperpod_kit.preflight.facts import AccountFacts
from hyperpod_kit.preflight.placement import execution_roles
from hyperpod_kit.preflight.run.check import run_all_preflight_checks
from hyperpod_rehearsal.mount_faults import foreign_mount_command
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.sandbox import sandbox
from tests.unit.node.fakes import FakeNode

TOY = ToyMount("toys", "/toys", "filer.example.com", "vol7")
WRITTEN = {"kind": "toy", "name": "toys", "path": "/toys", "server": "filer.example.com", "volume": "vol7"}


def written(example: Path, directory: Path, name: str, **changes: str) -> Path:
    values = json.loads(example.read_text())
    values["hyperpod_kit"]["mounts"].append({**WRITTEN, **changes})
    path = directory / name
    path.write_text(json.dumps(values))
    return path


def main(example: Path, directory: Path) -> None:
    path = written(example, directory, "provisioning_parameters.json")
    plain, settings = load(example), load(path)
    at = settings.sourced_mounts[-1].at

    # configuration: decoded, judged by its own rule, in the schema, known by its nickname
    assert settings.mounts == (*plain.mounts, TOY)
    wrong = check(written(example, directory, "wrong.json", volume="seven"))
    assert [(one.code, one.path) for one in wrong.findings if one.severity == "error"] == [("HPK-T001", f"{at}.volume")]
    assert "Host name of the filer." in json.dumps(schema.build_schema())
    assert decode.NICKNAMES["filer"] == "toy"

    # node_config.json, there and back
    text = settings.node_config().to_json()
    assert NodeConfig.from_json(text).mounts[-1] == TOY and NodeConfig.from_json(text).to_json() == text

    # the bundle: a unit of its own, the vendored file, nothing of the layers that stay with the admin
    files = {str(name): content for name, content in render(settings).installed_files.items()}
    unit = files[f"units/{carrier_unit(TOY)}"]
    assert b"node mounts ensure toys\n" in unit and b"network-online.target" in unit
    toys = sorted(name for name in files if name.endswith("/toy.py"))
    assert toys == ["lib/hyperpod_kit/model/mounts/toy.py", "lib/hyperpod_kit/node/mounts/kinds/toy.py"]

    # node: its command, what it is told from others by, the name to wait for
    node = FakeNode(directory / "node", [TOY])
    command = ("mount", "-t", "toy", "-o", "nosuid,nodev", "filer.example.com:/vol7", "/toys")
    assert tuple(kind_of(TOY).mount_command(cast(Any, node), TOY)) == command
    assert TOY.host("", "") == "filer.example.com"

    # preflight: nothing is asked, and no permission is needed
    for ours, theirs in zip(execution_roles(settings), execution_roles(plain)):
        assert required_permissions(settings, ours) == required_permissions(plain, theirs)
    facts = AccountFacts(Caller("111122223333", "arn:aws:iam::111122223333:user/admin"))
    assert run_all_preflight_checks(settings, facts) == run_all_preflight_checks(plain, facts)

    # rehearsal: how it breaks, and the lifecycle script on a node of each role
    assert REHEARSED["toy"].clients == ("usr/sbin/mount.toy",)
    assert foreign_mount_command("toy", [], "/toys") == [
        "/usr/bin/mount",
        "-t",
        "toy",
        "filer.example.com:/vol9",
        "/toys",
    ]
    result = sandbox.run_sandbox(str(path))
    for run in result.runs:
        assert run.exit_code == 0, run.output
        assert command in run.commands, run.commands
    print("from the configuration to a node")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
