"""Optional steps: what each leaves on a node, that a second run finds nothing to do, and that nothing stays of it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.node_config import NodeConfig, User
from hyperpod_kit.model.optional_steps import (
    Accounting,
    AccountingQos,
    DeviceChecks,
    Docker,
    Enroot,
    LoginMessage,
    LogRotation,
    NodeExporter,
    OptionalSteps,
    OutsideDatabase,
    PamSlurmAdopt,
    Podman,
    Pyxis,
    SlurmAccount,
    SshBetweenNodes,
    Sssd,
    TrainingEnvironment,
)
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.node.creation.apply import apply
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import ALL, OFF_STEP
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.optional import (
    associations,
    host_keys,
    log_rotation,
    login_message,
    node_exporter,
    slurmdbd,
    ssh_between_nodes,
)
from hyperpod_kit.node.optional.upkeep import PARTS, run_upkeep_parts_and_list_failures
from hyperpod_kit.node.slurm import accounting_lines

FSX = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
SQL = Secret("sql", "arn:aws:secretsmanager:us-east-1:111122223333:secret:sql-a1b2c3", roles=("controller",))
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPhq4TNg6Ls6Etspe+Vd7yKuM1EmNSLjXt8WUtLp6H43"
EACH = OptionalSteps(
    Accounting(
        OutsideDatabase("db", SQL.arn), (SlurmAccount("a", ("ann",), qos=("normal",)),), (AccountingQos("high", 5),)
    ),
    LogRotation(),
    LoginMessage("words"),
    SshBetweenNodes("fsx"),
    NodeExporter(),
    Docker(),
    Podman(),
    Enroot(),
    Pyxis(),
    PamSlurmAdopt(),
    Sssd("ldaps://ldap", "dc=b"),
    DeviceChecks(),
    TrainingEnvironment("/fsx/environments", {"x86_64": "requirements.lock"}),
)
SIMPLE = {
    "log_rotation": (log_rotation.STEP, LogRotation(), {"/etc/hyperpod-kit/logrotate.conf"}),
    "login_message": (login_message.STEP, LoginMessage(), {login_message.PROGRAM}),
    "ssh_between_nodes": (
        ssh_between_nodes.STEP,
        SshBetweenNodes("fsx"),
        {ssh_between_nodes.CLIENT, ssh_between_nodes.SERVER, host_keys.KNOWN_HOSTS, host_keys.EQUIVALENT},
    ),
    "node_exporter": (
        node_exporter.STEP,
        NodeExporter(),
        {"/etc/systemd/system/prometheus-node-exporter.service.d/hyperpod-kit.conf"},
    ),
}


@pytest.fixture
def fake(make_node: Any) -> Any:
    """A node with /fsx, sshd, a host key and every program that a step stands on."""
    found = make_node([FSX])
    found.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    os.chmod(found.root / "fsx", 0o755)
    for path in ("usr/sbin/logrotate", "usr/bin/prometheus-node-exporter"):
        (found.root / path).parent.mkdir(parents=True, exist_ok=True)
        (found.root / path).touch(0o755)
    (found.root / "etc/ssh").mkdir(parents=True)
    (found.root / "etc/ssh/ssh_host_ed25519_key").touch(0o600)
    found.runner.on("ssh-keygen -y", out=f"{KEY} root@image\n")
    return found


def with_steps(node: Node, **steps: Any) -> Node:
    return replace(node, config=replace(node.config, steps=OptionalSteps(**steps)))


def files(root: Path) -> Dict[str, str]:
    """What a node's own directories hold, without our notes."""
    found = [path for top in ("etc", "fsx") for path in (root / top).rglob("*") if path.is_file()]
    return {"/" + str(path.relative_to(root)): path.read_text() for path in found}


def run(node: Node) -> Dict[str, Any]:
    planned = plan((*ALL, OFF_STEP), node.config, node.facts.role, "g", "on_create")
    return apply(node, planned, "on_create", lambda line: None)


def test_what_is_on_goes_to_the_node_and_comes_back() -> None:
    config = NodeConfig("demo", "on_create", {}, steps=EACH)
    assert NodeConfig.from_json(config.to_json()) == config
    assert set(EACH.enabled_step_names) >= set(PARTS) and set(EACH.upkeep_steps_on("controller")) == set(PARTS)
    assert {step.key for step in ALL} == set(EACH.enabled_step_names), "every optional step has its place"


@pytest.mark.parametrize("key", SIMPLE)
@pytest.mark.needs("root")
def test_on_twice_and_off(fake: Any, key: str) -> None:
    step, asked, left = SIMPLE[key]
    before = files(fake.root)
    node = with_steps(fake.node, **{key: asked})
    first = run(node)
    assert [(one["step"], one["status"], one["error"]) for one in first["steps"][:1]] == [(step.name, "changed", "")]
    there = files(fake.root)
    assert left <= set(there) - set(before) and step.pending(node) == ""
    assert run(node)["changed"] == 0 and files(fake.root) == there
    off = run(with_steps(fake.node))
    assert [(one["step"], one["status"]) for one in off["steps"]] == [("switched-off", "changed")]
    kept = {path: text for path, text in files(fake.root).items() if text and not path.startswith("/fsx")}
    assert {path for path in kept if not path.endswith(".pub")} == {path for path, text in before.items() if text}
    assert run(with_steps(fake.node))["changed"] == 0


def test_one_that_was_killed_in_the_middle_is_taken_back_too(fake: Any) -> None:
    fake.runner.on("systemctl restart prometheus-node-exporter", 1)
    node = with_steps(fake.node, node_exporter=NodeExporter())
    assert run(node)["steps"][0]["status"] == "failed"
    assert run(with_steps(fake.node))["steps"][0]["detail"].startswith("node-exporter off")
    assert not (fake.root / "etc/systemd/system/prometheus-node-exporter.service.d/hyperpod-kit.conf").exists()


@pytest.mark.parametrize(
    "line",
    [
        "node ssh-ed25519 short",
        f"@cert-authority * {KEY}",
        f"* {KEY}",
        f"node,!other {KEY}",
        f"node {KEY} comment",
        f"node\t{KEY}",
        f"no\x1bde {KEY}",
        f"{'n' * 601} {KEY}",
        "",
    ],
)
def test_a_line_that_is_no_name_with_a_key_is_left_out(line: str) -> None:
    assert host_keys.valid_known_hosts_lines(f"{line}\nnode,10.1.0.1 {KEY}\nnode,10.1.0.1 {KEY}\n") == [
        f"node,10.1.0.1 {KEY}"
    ]


@pytest.mark.needs("root")
def test_a_new_node_is_known_to_the_others(fake: Any) -> None:
    node = with_steps(fake.node, ssh_between_nodes=SshBetweenNodes("fsx"))
    controller = replace(node, facts=replace(node.facts, role="controller"))
    assert run(node)["ok"] and host_keys.count_trusted_host_names(node) == 2, "itself"
    assert run_upkeep_parts_and_list_failures(controller) == [] and not host_keys.join_published_keys_into_one_file(
        node, FSX
    ), "nothing has come since"
    base = fake.root / "fsx/.hyperpod-kit/demo/ssh"
    (base / "hosts/ip-10-1-0-99").write_text(f"ip-10-1-0-99,10.1.0.99 {KEY}\nrubbish\n")
    assert run_upkeep_parts_and_list_failures(controller) == [] and run_upkeep_parts_and_list_failures(node) == []
    assert {"ip-10-1-0-99", "10.1.0.99"} <= set((fake.root / "etc/ssh/shosts.equiv").read_text().split())
    assert "rubbish" not in (fake.root / "etc/ssh/ssh_known_hosts2").read_text()


@pytest.mark.full
@pytest.mark.needs("root")
def test_a_key_that_has_come_is_gathered_whatever_the_times_of_files_say(fake: Any) -> None:
    """A file has the time of the machine that wrote it, or of the storage; the controller's clock may be hours off."""
    node = with_steps(fake.node, ssh_between_nodes=SshBetweenNodes("fsx"))
    controller = replace(node, facts=replace(node.facts, role="controller"))
    assert run(node)["ok"]
    base = fake.root / "fsx/.hyperpod-kit/demo/ssh"
    for number, ahead in enumerate((-7200, 0, 7200), 50):
        assert (
            run_upkeep_parts_and_list_failures(controller) == []
            and run_upkeep_parts_and_list_failures(controller) == []
        )
        (base / f"hosts/ip-10-1-0-{number}").write_text(f"ip-10-1-0-{number} {KEY}\n")
        os.utime(base / "hosts", (time.time() + ahead, time.time() + ahead))
        assert (
            run_upkeep_parts_and_list_failures(controller) == []
            and f"ip-10-1-0-{number} " in (base / "all").read_text()
        )
    # And what comes in the moment in which the others are read.
    seen = os.stat(base / "hosts")
    (base / "hosts/ip-10-1-0-99").write_text(f"ip-10-1-0-99 {KEY}\n")
    os.utime(base / "hosts", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert host_keys.join_published_keys_into_one_file(node, FSX) and "ip-10-1-0-99 " in (base / "all").read_text()
    assert not host_keys.join_published_keys_into_one_file(node, FSX), "nothing has come since"


def accounting_node(fake: Any, asked: Accounting, conf: str = "ClusterName=demo\n") -> Node:
    node = with_steps(fake.node, accounting=asked)
    users = (User("ann", 2001, 2001), User("bob", 2002, 2002))
    path = fake.root / "opt/slurm/etc/slurm.conf"
    path.parent.mkdir(parents=True)
    path.write_text(conf)
    return replace(
        node, config=replace(node.config, users=users, secrets=(SQL,)), facts=replace(node.facts, role="controller")
    )


def test_accounting_of_somebody_else_is_left_alone(fake: Any) -> None:
    conf = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=head\n"
    node = accounting_node(fake, Accounting(), conf)
    with pytest.raises(NodeError, match=r"already set up.*AccountingStorageHost=head"):
        accounting_lines.accounting_settings(node, conf)
    assert accounting_lines.accounting_settings(with_steps(fake.node), conf) == {}


def test_slurmctld_starts_anew_only_for_what_it_takes_at_its_start(fake: Any) -> None:
    high = AccountingQos("high", priority=5, preempts=("normal",))
    node = accounting_node(fake, Accounting(qos=(high,), enforce=("qos",)))
    lines = accounting_lines.accounting_settings(node, "GresTypes=gpu\n")
    assert lines["PreemptType"] == "preempt/qos" and lines["PreemptMode"] == "REQUEUE"
    assert lines["AccountingStorageTRES"] == "gres/gpu" and lines["AccountingStorageEnforce"] == "qos"
    conf = "".join(f"{key}={value}\n" for key, value in lines.items())
    assert accounting_lines.needs_slurmctld_restart("", conf) and not accounting_lines.needs_slurmctld_restart(
        conf, conf + "KillWait=9\n"
    )
    theirs = accounting_lines.accounting_settings(node, "PriorityType=priority/basic\nPriorityWeightQOS=7\n")
    assert not {"PriorityType", "PriorityWeightQOS"} & set(theirs)


def test_slurmdbd_hears_of_parents_first_and_of_what_it_does_not_know(fake: Any) -> None:
    asked = Accounting(
        accounts=(SlurmAccount("vision", ("ann", "bob"), parent="research"), SlurmAccount("research", qos=("high",))),
        qos=(AccountingQos("high", 5, ("normal",), {"max_wall": "60"}),),
    )
    node = accounting_node(fake, asked)
    fake.runner.on("sacctmgr --noheader --parsable2 show cluster", out="demo\n")
    fake.runner.on("sacctmgr --noheader --parsable2 show qos", out="normal\n")
    fake.runner.on("sacctmgr --noheader --parsable2 show associations", out="root|\nroot|root\nvision|ann\n")
    fake.runner.calls.clear()
    assert associations.ensure_associations(node, asked) == "accounts research, vision; QOS high; 2 users"
    changes = [line.split(" --quiet ")[1] for line in fake.runner.calls if "--quiet" in line]
    assert changes == [
        "add qos high",
        "modify qos where name=high set Priority=5 Preempt=normal MaxWall=60",
        "add account research Cluster=demo Parent=root Description=research Organization=hyperpod-kit",
        "modify account where name=research cluster=demo set Fairshare=1 QOS=high DefaultQOS=high",
        "add account vision Cluster=demo Parent=research Description=vision Organization=hyperpod-kit",
        "modify account where name=vision cluster=demo set Fairshare=1 QOS=normal,high DefaultQOS=normal",
        "add user bob Cluster=demo Account=vision",
    ]
    fake.runner.calls.clear()
    assert associations.ensure_associations(node, asked) == "" and fake.runner.calls == []
    assert associations.describe_pending_changes(node, replace(asked, enforce=("qos",))) != ""


def test_what_sacctmgr_refuses_is_said(fake: Any) -> None:
    node = accounting_node(fake, Accounting())
    fake.runner.on("sacctmgr --immediate", 1, "sacctmgr: error: slurmdbd is not there")
    with pytest.raises(NodeError, match=r"sacctmgr .*add cluster demo: .*slurmdbd is not there"):
        associations.ensure_associations(node, Accounting())
    assert not os.path.exists(node.paths.optional_step_done_stamp("accounting"))


@pytest.mark.parametrize(
    ("kept", "said"),
    [("hunter2\n", "hunter2"), ('{"username": "x", "password": "p w"}', "p w"), ("[1]", "[1]")],
)
def test_the_password_is_text_or_rds_own_words(fake: Any, kept: str, said: str) -> None:
    node = accounting_node(fake, Accounting(OutsideDatabase("db.example.com", SQL.arn)))
    with pytest.raises(NodeError, match="the secret sql is not on this node"):
        slurmdbd.expected_conf(node, Accounting(OutsideDatabase("db.example.com", SQL.arn)))
    secret = Path(node.paths.secret("sql"))
    secret.parent.mkdir(parents=True)
    secret.write_text(kept)
    text = slurmdbd.expected_conf(node, Accounting(OutsideDatabase("db.example.com", SQL.arn)))
    assert f'\nStoragePass="{said}"\n' in text and "StorageHost=db.example.com\n" in text


@pytest.mark.parametrize("kept", ["", "a\nStorageHost=evil", '{"password": 7}', '{"user": "x"}', "a#b", 'a"b', "a\\b"])
def test_a_secret_that_is_no_password_writes_no_line(fake: Any, kept: str) -> None:
    node = accounting_node(fake, Accounting(OutsideDatabase("db", SQL.arn)))
    secret = Path(node.paths.secret("sql"))
    secret.parent.mkdir(parents=True)
    secret.write_text(kept)
    with pytest.raises(NodeError, match="has no password") as caught:
        slurmdbd.expected_conf(node, Accounting(OutsideDatabase("db", SQL.arn)))
    assert "evil" not in str(caught.value)
