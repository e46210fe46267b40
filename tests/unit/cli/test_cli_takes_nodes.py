"""Every command that takes nodes away, restarts or sets them up anew looks at their jobs first.

Which commands those are is read from the code: a command from which a call leads to an operation of AWS that changes
nodes. So a new one that forgets its jobs fails here.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence, Set, Tuple

import botocore.session
import click
import pytest

import hyperpod_kit
from hyperpod_kit.cli.table import SECTIONS, cli
from hyperpod_kit.errors import Unreachable
from hyperpod_kit.remote.target import NodeTarget
from tests.support.aws import ARN
from tests.support.rows import share
from tests.unit.cli.conftest import put_bundle, put_cluster
from tests.unit.cli.slurm_queue import QueuedJob, SlurmQueue, reach

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

PACKAGE = Path(hyperpod_kit.__file__).parent
SERVICE = "hyperpod_kit.aws.sagemaker"
KNOWN = frozenset(botocore.session.get_session().get_service_model("sagemaker").operation_names)
HARMLESS = ("Describe", "List", "Create")
"""How operations of AWS begin that end no job."""

LINES: Dict[str, Tuple[str, ...]] = {
    "delete-cluster": (),
    "delete-node": ("worker-group/0",),
    "health-check": ("worker-group/0",),
    "reboot-node": ("worker-group/0",),
    "replace-node": ("worker-group/0",),
    "update-cluster": (),
    "update-software": ("--group", "worker-group"),
}
"""Command -> the rest of a line that is about the first worker."""

Function = Tuple[str, str]
"""Module and name."""


def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE.parent / f"{module.replace('.', '/')}.py").read_text())


def modules() -> List[str]:
    found: List[str] = []
    for folder in ("cli", "cluster", "remote", "aws"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            found.append(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    return found


def operations() -> Set[str]:
    """The methods of our client of SageMaker that ask for something that changes nodes."""
    service = next(node for node in parsed(SERVICE).body if isinstance(node, ast.ClassDef) and node.name == "SageMaker")
    changing: Set[str] = set()
    for method in (node for node in service.body if isinstance(node, ast.FunctionDef)):
        words = {node.value for node in ast.walk(method) if isinstance(node, ast.Constant)}
        asked = {word for word in words if isinstance(word, str) and word in KNOWN}
        if any(not word.startswith(HARMLESS) for word in asked):
            changing.add(method.name)
    return changing


def imported(tree: ast.Module) -> Dict[str, str]:
    """Names of a module, also those that its functions import -> what they stand for, with dots."""
    names: Dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def references(module: str, names: Dict[str, str], function: ast.AST) -> Set[str]:
    """What a function names: with dots, and methods of our client by their names alone. `names`: what is imported."""
    found: Set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            found.add(names.get(node.id, f"{module}.{node.id}"))
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
            if isinstance(node.value, ast.Name):
                found.add(f"{names.get(node.value.id, node.value.id)}.{node.attr}")
    return found


def taking() -> Set[Function]:
    """The functions from which a call leads to one of these operations."""
    uses: Dict[Function, Set[str]] = {}
    for module in modules():
        tree = parsed(module)
        names = imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and module != SERVICE:
                uses[module, node.name] = references(module, names, node)
    wanted = {f".{name}" for name in operations()}
    found: Set[Function] = set()
    while True:
        more = {function for function, named in uses.items() if named & wanted} - found
        if not more:
            return found
        found |= more
        wanted |= {f"{module}.{name}" for module, name in more}


def commands() -> Dict[str, Function]:
    """All of the command line's own."""
    entries = [(name, entry) for section in SECTIONS.values() for name, entry in section.items()]
    parts = {name: entry.import_path.partition(":") for name, entry in entries}
    return {name: (module, function) for name, (module, _, function) in parts.items()}


def test_the_operations_are_read_from_the_client() -> None:
    assert operations() == {
        "delete_cluster",
        "update_cluster",
        "update_software",
        "replace_nodes",
        "reboot_nodes",
        "delete_nodes",
        "start_health_check",
    }


def test_every_command_that_takes_nodes_looks_at_their_jobs() -> None:
    takes = taking()
    found = {name for name, function in commands().items() if function in takes}
    assert found == set(LINES), "a command that changes nodes takes `jobs_first`, and a line here"
    for name in found:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        options = {parameter.name for parameter in command.params}
        assert {"when_idle", "drain", "drain_timeout", "as_json", "dry_run", "yes"} <= options, name


NAMED: Dict[str, Tuple[str, ...]] = {
    "connect": ("--dry-run",),
    "delete-node": ("--dry-run",),
    "diagnose": (),
    "events": (),
    "health-check": ("--dry-run",),
    "reboot-node": ("--dry-run",),
    "replace-node": ("--dry-run",),
}
"""Command to which a node is named -> options with which it changes nothing."""


def takes_a_name(command: click.Command) -> bool:
    named = [parameter for parameter in command.params if parameter.name in ("node", "nodes")]
    return any(parameter.type is click.STRING for parameter in named)


@pytest.mark.parametrize("name", share(sorted(NAMED), 3))
def test_a_node_has_the_same_names_for_every_command(
    name: str, cloud: Cloud, project: Path, hk: Hk, queue: SlurmQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instance id, its address, its host name with and without a domain, and its place."""
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    cloud.control.events = [
        {
            "EventId": f"{number}0000000-0000-4000-8000-000000000000",
            "ClusterArn": ARN,
            "ClusterName": "demo",
            "InstanceGroupName": "worker-group",
            "InstanceId": f"i-{1:08x}{number:09x}",
            "ResourceType": "Instance",
            "EventTime": 1767225600.0,
            "EventLevel": "Info",
        }
        for number in range(2)
    ]

    def no_way_in(live: object, ssh: object, targets: Sequence[NodeTarget], say: object) -> None:
        raise Unreachable(f"asked: {[target.instance_id for target in targets]}")

    monkeypatch.setattr("hyperpod_kit.remote.transports.transport_choice.open_ssh_or_ssm_connector", no_way_in)
    answers: List[Tuple[int, str, str]] = []
    for word in (f"i-{1:08x}{0:09x}", "10.0.1.1", "ip-10-0-1-1", "ip-10-0-1-1.ec2.internal", "worker-group/0"):
        argument = ("--node", word) if name == "events" else (word,)
        done = hk(name, *argument, *NAMED[name], "--json")
        answers.append((done.code, done.out, done.err))
    assert set(answers) == {answers[0]}, answers
    assert f"i-{1:08x}{0:09x}" in str(answers[0]), answers
    unknown = ("--node", "ip-10-0-1-99") if name == "events" else ("ip-10-0-1-99",)
    refused = hk(name, *unknown, *NAMED[name])
    assert refused.code == 3 and "no such node: `ip-10-0-1-99`" in refused.err, refused


def test_no_command_to_which_a_node_is_named_is_missing_here() -> None:
    found = set()
    for name, (module, _) in commands().items():
        command = cli.get_command(click.Context(cli), name)
        if command is not None and not module.startswith("hyperpod_rehearsal.") and takes_a_name(command):
            found.add(name)
    assert found == set(NAMED)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> SlurmQueue:
    found = SlurmQueue({"ip-10-0-1-1": ""}, [QueuedJob("7", ["ip-10-0-1-1"])])
    reach(monkeypatch, found)
    return found


@pytest.mark.parametrize("name", share(sorted(LINES), 3))
def test_each_shows_the_jobs_to_people_and_programs(
    name: str, cloud: Cloud, project: Path, hk: Hk, queue: SlurmQueue
) -> None:
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    if name == "update-cluster":
        path = project / "provisioning_parameters.json"
        values: Any = json.loads(path.read_text())
        for group in values["hyperpod_kit"]["cluster"]["instance_groups"]:
            group["count"] = 2 if group["name"] == "worker-group" else group["count"]
        path.write_text(json.dumps(values))
    shown = hk(name, *LINES[name], "--dry-run", "--json")
    assert shown.code == 0 and "job 7 of alice" in shown.err, shown
    answer = json.loads(shown.out)
    assert [job["id"] for job in answer["jobs"]] == ["7"] and answer["jobs_unknown"] == ""
    queue.silent = "no way leads to Slurm"
    unknown = hk(name, *LINES[name], "--dry-run", "--json")
    assert unknown.code == 0 and json.loads(unknown.out)["jobs"] is None
    for option in ("--when-idle", "--drain"):
        refused = hk(name, *LINES[name], "--yes", option)
        assert refused.code == 3 and "leave out --when-idle and --drain" in refused.err, refused
    assert list(cloud.control.clusters) == ["demo"] and not cloud.control.updates
