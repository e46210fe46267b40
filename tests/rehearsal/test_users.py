"""Two users with homes on EFS, on real machines: what each of them cannot do, and what stays when the cluster goes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Iterator, Sequence

import pytest
from driver import CONFIG, Driver

FILE_SYSTEM = "fs-0a1b2c3d4e5f60718"
USERS = [{"name": "alice", "uid": 3001, "gid": 3001}, {"name": "bob", "uid": 3002, "gid": 3002}]
NAME = "homes"
WORKER, HEAD = "worker-group", "controller-machine"


@pytest.fixture(scope="module")
def config(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with nothing but homes, its access points made by `users apply`."""
    values = json.loads(CONFIG.read_text())
    for key in ("fsx_dns_name", "fsx_mountname"):
        values.pop(key)
    kit = values["hyperpod_kit"]
    kit["cluster"]["name"] = NAME
    kit["cluster"]["instance_groups"][1]["count"] = 1
    kit.update(mounts=[], users=USERS, homes={"file_system_id": FILE_SYSTEM})
    path = tmp_path_factory.mktemp("homes") / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    report = endpoint.data("users", "apply", str(path))
    assert report["changed"] and [item["action"] for item in report["access_points"]] == ["create", "create"]
    return path


def create(driver: Driver, config: Path) -> dict[str, str]:
    """Create the cluster and wait for it; instance ids by group."""
    driver.kit("upload", str(config))
    driver.kit("create-cluster", str(config), "--wait", "--interval", "0.5", "--timeout", "150")
    return {node["group"]: node["instance_id"] for node in driver.data("list-cluster-nodes", str(config))["nodes"]}


def delete(driver: Driver, config: Path) -> None:
    driver.kit("delete-cluster", str(config), "--yes", "--wait", "--interval", "0.5", check=False)


@pytest.fixture(scope="module")
def nodes(endpoint: Driver, config: Path) -> Iterator[dict[str, str]]:
    try:
        yield create(endpoint, config)
    finally:
        delete(endpoint, config)


def answers(driver: Driver, node: str, commands: Sequence[str], user: str) -> list[str]:
    """What each command of a user prints, errors too; it ends in `refused` when the command fails."""
    script = "; echo ---; ".join(f"bash -c {shlex.quote(command)} 2>&1 || echo refused" for command in commands)
    return [said.strip() for said in driver.on(node, script, user=user).split("---\n")]


def numbers(driver: Driver, node: str) -> list[list[str]]:
    """uid, gid, comment and home of alice and bob as the node knows them."""
    return [line.split(":")[2:6] for line in driver.on(node, "getent passwd alice bob").splitlines()]


def test_everyone_has_a_home_and_it_is_the_same_on_every_node(endpoint: Driver, nodes: dict[str, str]) -> None:
    for user in ("alice", "bob"):
        endpoint.on(nodes[HEAD], f"cd && pwd && umask 077 && echo of-{user} >note && test -e .bashrc", user=user)
        assert endpoint.on(nodes[WORKER], "cat ~/note", user=user) == f"of-{user}\n"
        owner = endpoint.on(nodes[WORKER], "stat -Lc '%u:%g %a' ~ ; stat -c %u ~/note", user=user).split()
        number = "3001" if user == "alice" else "3002"
        assert owner == [f"{number}:{number}", "700", number]
    assert (
        endpoint.on(
            nodes[HEAD], "timeout 60 srun -w $(scontrol show hostnames $(sinfo -h -o %N)) cat ~/note", user="alice"
        )
        == "of-alice\n"
    )


def test_sshd_lets_a_user_in_with_the_key_in_their_home(endpoint: Driver, nodes: dict[str, str]) -> None:
    endpoint.on(
        nodes[HEAD],
        "mkdir -pm 700 ~/.ssh && ssh-keygen -qt ed25519 -N '' -f ~/.ssh/own && "
        "cp ~/.ssh/own.pub ~/.ssh/authorized_keys",
        user="alice",
    )
    reach = "ssh -i ~/.ssh/own -o BatchMode=yes -o StrictHostKeyChecking=accept-new"
    host = "$(scontrol show hostnames $(sinfo -h -o %N))"
    assert endpoint.on(nodes[HEAD], f"{reach} {host} 'echo $HOME; cat note'", user="alice").split() == [
        "/home/alice",
        "of-alice",
    ]


@pytest.mark.parametrize(("user", "other"), [("alice", "bob"), ("bob", "alice")])
def test_nobody_gets_into_anothers_home(endpoint: Driver, nodes: dict[str, str], user: str, other: str) -> None:
    for node in nodes.values():
        commands = (
            f"ls /home/{other}/",
            f"cat /home/{other}/note",
            f"cd /home/{other}/",
            f"ls -d /home/{other}/.",
            f"touch /home/{other}/x",
            f"cat /home/.homes/{other}/home/note",
            f"ls /home/.homes/{other}",
            "ls /home/.homes",
            f"cd /home/{user}/../../{other}/home",
            f"chmod 755 /home/.homes/{user}",
            f"chgrp 3001 /home/.homes/{user}",
            f"mv /home/.homes/{user} /home/.homes/x",
            f"unshare -Urm cat /home/{other}/note",
        )
        for command, said in zip(commands, answers(endpoint, node, commands, user), strict=True):
            assert said.endswith("refused") and f"of-{other}" not in said, (command, said)
        assert answers(endpoint, node, ["cat ~/note"], user) == [f"of-{user}"]


@pytest.mark.full
def test_root_of_a_node_sees_why_it_is_the_private_parent(endpoint: Driver, nodes: dict[str, str]) -> None:
    node = nodes[WORKER]
    assert endpoint.on(node, "stat -c '%u:%g %a' /home/.homes /home/.homes/alice").split() == [
        "0:0",
        "711",
        "0:3001",
        "710",
    ]
    endpoint.on(node, "chmod 755 /home/.homes/alice")
    try:
        # The access point takes everyone for alice: the mode of her directory keeps nobody of this node out.
        assert answers(endpoint, node, ["cat /home/alice/note"], "bob") == ["of-alice"]
    finally:
        said = endpoint.on(node, "hyperpod-kit node apply", timeout=120)
    assert "alice: private parent" in said
    assert answers(endpoint, node, ["cat /home/alice/note"], "bob")[0].endswith("refused")


@pytest.mark.full
def test_the_file_system_is_not_mounted_without_an_access_point(
    endpoint: Driver, nodes: dict[str, str], config: Path
) -> None:
    points = json.loads((config.parent / "provisioning_parameters.access-points.json").read_text())["access_points"]
    alice = next(point["id"] for point in points if point["user"] == "alice")
    node = nodes[WORKER]
    endpoint.on(node, "mkdir -p /mnt/try")

    def mount(options: str) -> str:
        return f"mount -t efs -o {options} {FILE_SYSTEM}:/ /mnt/try"

    tried = [
        mount(options)
        for options in ("tls,iam", "tls", f"tls,accesspoint={alice}", "tls,iam,accesspoint=fsap-00000000000000001")
    ]
    for command, said in zip(tried, answers(endpoint, node, tried, "root"), strict=True):
        assert "access denied by server" in said and said.endswith("refused"), (command, said)
    assert answers(endpoint, node, [mount(f"tls,iam,accesspoint={alice}")], "bob")[0].endswith("refused")
    assert endpoint.on(node, "findmnt /mnt/try || echo nothing").strip() == "nothing"


@pytest.mark.full  # the rules themselves: tests/hostile/test_packet_rules.py
def test_nobody_but_root_speaks_to_the_proxy_of_a_mount(endpoint: Driver, nodes: dict[str, str]) -> None:
    node = nodes[WORKER]
    # What efs-utils leaves on a port of its range, for every user of the machine; the stand-in has no proxy.
    listen = (
        'import socket\nserver = socket.create_server(("127.0.0.1", 20111))\nwhile True: server.accept()[0].close()'
    )
    endpoint.on(
        node,
        f"systemd-run --quiet --unit proxy python3 -c {shlex.quote(listen)}; "
        "until ss -ltn | grep -q :20111; do sleep 0.1; done",
    )
    connect = ["exec 3<>/dev/tcp/127.0.0.1/20111"]
    try:
        assert answers(endpoint, node, connect, "root") == [""]
        assert "Connection refused" in answers(endpoint, node, connect, "bob")[0]
        # Stopped, or the next tick may set the rules again before he tries.
        endpoint.on(
            node,
            "systemctl stop hyperpod-kit-health.timer hyperpod-kit-health.service && "
            "nft delete table inet hyperpod_kit",
        )
        assert answers(endpoint, node, connect, "bob") == [""], "without the rules he is let in"
        endpoint.on(node, "systemctl start hyperpod-kit-health.service")
        assert "Connection refused" in answers(endpoint, node, connect, "bob")[0], "a check sets them again"
        # As after a boot, where no rule of ours is left: the mount itself brings them back.
        endpoint.on(
            node,
            "nft delete table inet hyperpod_kit && umount /home/.homes/bob/home && "
            "systemctl restart hyperpod-kit-mount-home-bob",
        )
        assert "Connection refused" in answers(endpoint, node, connect, "bob")[0]
    finally:
        endpoint.on(node, "systemctl stop proxy; systemctl start hyperpod-kit-health.timer")


@pytest.mark.full
def test_numbers_and_files_outlive_the_cluster(endpoint: Driver, nodes: dict[str, str], config: Path) -> None:
    before = numbers(endpoint, nodes[WORKER])
    assert before == [["3001", "3001", "", "/home/alice"], ["3002", "3002", "", "/home/bob"]]
    delete(endpoint, config)
    # A user who comes first in the file and in the alphabet moves nobody.
    values = json.loads(config.read_text())
    values["hyperpod_kit"]["users"] = [{"name": "aaron", "uid": 3003, "gid": 3003}, *reversed(USERS)]
    config.write_text(json.dumps(values))
    report = endpoint.data("users", "apply", str(config))
    assert {item["user"]: item["action"] for item in report["access_points"]} == {
        "aaron": "create",
        "bob": "keep",
        "alice": "keep",
    }
    fresh = create(endpoint, config)
    assert not set(fresh.values()) & set(nodes.values())
    nodes.update(fresh)
    for node in fresh.values():
        assert numbers(endpoint, node) == before
        for user in ("alice", "bob"):
            assert endpoint.on(node, "cat ~/note; stat -c %u ~/note; id -u", user=user).split() == [
                f"of-{user}",
                *["3001" if user == "alice" else "3002"] * 2,
            ]
        assert answers(endpoint, node, ["cat /home/alice/note"], "aaron")[0].endswith("refused")
    assert not endpoint.data("users", "apply", str(config), "--dry-run")["changed"]
