"""The rules of the packet filter: which are wanted, and how they are set. That they hold: tests/hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.model.node_config import User
from hyperpod_kit.node.mounts import homes
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.packets.packet_rules import ExpectedRules

HOME = EfsMount(
    "home-alice", "/home/.homes/alice/home", "fs-0123456789abcdef0", "fsap-0123456789abcdef0", iam=True, owner="alice"
)
DATA = EfsMount("data", "/efs", "fs-0123456789abcdef0")
FSX = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
CONF = "etc/amazon/efs/efs-utils.conf"


@pytest.fixture
def fake(make_node: Any) -> Any:
    return make_node([HOME], (User("alice", 2001, 2001),))


def have(fake: Any, program: str) -> None:
    path = fake.root / program.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def listed(asked: ExpectedRules) -> str:
    """As nft lists it: without the lines that replace the table."""
    return "\n".join(packet_rules.nft_table(asked).splitlines()[2:])


@pytest.mark.parametrize(
    ("mount", "nfs", "required"),
    [
        (HOME, True, True),
        (DATA, True, False),
        (S3FilesMount("b", "/b", "fs-1"), True, False),
        (OpenZfsMount("z", "/z", FSX), True, False),
        (LustreMount("l", "/l", FSX, "abcdefgh"), False, False),
        (S3Mount("s", "/s", "bucket"), False, False),
        (NvmeMount("n", "/n"), False, False),
    ],
)
def test_which_mounts_want_rules(make_node: Any, mount: Any, nfs: bool, required: bool) -> None:
    asked = packet_rules.expected_rules(make_node([mount], (User("alice", 2001, 2001),)).node)
    assert (asked.nfs, asked.required, bool(asked)) == (nfs, required, nfs)


def test_nft_replaces_its_table_in_one_transaction(fake: Any) -> None:
    have(fake, packet_rules.NFT)
    fake.runner.on("nft --numeric list", code=1)
    assert packet_rules.ensure_rules_and_reserve_ports(fake.node)
    assert fake.runner.calls[-1] == "nft --file -"
    asked = packet_rules.expected_rules(fake.node)
    text = packet_rules.nft_table(asked)
    assert text.index("delete table inet hyperpod_kit") < text.index("tcp dport 2049 meta skuid != 0 reject")
    fake.runner.on("nft --numeric list", out=listed(asked))
    assert not packet_rules.ensure_rules_and_reserve_ports(fake.node)


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text.replace("tcp dport 2049", "accept\n    tcp dport 2049", 1),
        lambda text: "\n".join(line for line in text.splitlines() if "20049" not in line),
        lambda text: text.replace("type filter hook forward", "type route hook forward"),
        lambda text: text.partition("chain forward")[0],
        lambda text: "",
    ],
)
def test_half_of_the_rules_are_none(fake: Any, broken: Any) -> None:
    have(fake, packet_rules.NFT)
    text = listed(packet_rules.expected_rules(fake.node))
    fake.runner.on("nft --numeric list", out=text)
    assert packet_rules.are_rules_in_force(fake.node)
    fake.runner.on("nft --numeric list", out=broken(text))
    assert not packet_rules.are_rules_in_force(fake.node)


def test_rules_for_other_ports_or_other_users_are_not_enough(fake: Any) -> None:
    have(fake, packet_rules.NFT)
    for other in (ExpectedRules(True, True, None, (20049, 20449)), ExpectedRules(True, True, (0,), packet_rules.PORTS)):
        fake.runner.on("nft --numeric list", out=listed(other))
        assert not packet_rules.are_rules_in_force(fake.node)


def test_iptables_where_there_is_no_nft(fake: Any) -> None:
    have(fake, packet_rules.IPTABLES)
    fake.runner.on("iptables --wait 20 --check", code=1)
    assert packet_rules.ensure_rules_and_reserve_ports(fake.node)
    added = [call for call in fake.runner.calls if "--insert" in call]
    assert (
        "iptables --wait 20 --insert OUTPUT --protocol tcp --dport 2049 --match owner --uid-owner 1-4294967294"
        in added[0]
        and "!" not in "".join(added)
    ), "an inverted owner fits the kernel's own sockets"
    fake.runner.on("iptables --wait 20 --check")
    assert not packet_rules.ensure_rules_and_reserve_ports(fake.node)


def test_iptables_where_the_kernel_does_not_serve_nft(fake: Any) -> None:
    have(fake, packet_rules.NFT)
    have(fake, packet_rules.IPTABLES)
    fake.runner.on("nft", code=1)
    fake.runner.on("iptables --wait 20 --check", code=1)
    assert packet_rules.ensure_rules_and_reserve_ports(fake.node) and "--insert OUTPUT" in fake.runner.calls[-1]
    fake.runner.on("iptables --wait 20 --check")
    assert not packet_rules.ensure_rules_and_reserve_ports(fake.node), "and it is not added again and again"
    fake.runner.on("iptables", code=1, out="Permission denied")
    with pytest.raises(NodeError, match="Permission denied: any user could speak"):
        fake.runner.on("iptables --wait 20 --check", code=1)
        packet_rules.ensure_rules_and_reserve_ports(fake.node)


def test_without_a_packet_filter_no_home_is_mounted(fake: Any) -> None:
    with pytest.raises(NodeError, match="neither /usr/sbin/nft nor /usr/sbin/iptables"):
        homes.set_packet_rules_and_make_mount_point(fake.node, HOME)
    assert not (fake.root / "home").exists()


def test_without_a_packet_filter_the_others_are_mounted_and_it_is_told(make_node: Any) -> None:
    fake = make_node([DATA])
    homes.set_packet_rules_and_make_mount_point(fake.node, DATA)
    assert (fake.root / "efs").is_dir()
    found = packet_rules.restore_rules(fake.node, lambda: "7")
    assert found.in_force is False and not found.required and "could speak NFS" in found.message
    assert packet_rules.restore_rules(fake.node, lambda: "7").message == ""
    assert len(packet_rules.warnings(fake.node)) == 1


def test_a_node_without_any_of_it_runs_nothing(make_node: Any) -> None:
    plain = make_node([LustreMount("fsx", "/fsx", FSX, "abcdefgh")])
    homes.set_packet_rules_and_make_mount_point(plain.node, plain.node.mount("fsx"))
    assert packet_rules.restore_rules(plain.node) == packet_rules.RulesState() and plain.runner.calls == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", (20049, 21049)),
        ("[mount]\nport_range_lower_bound = 30000\nport_range_upper_bound = 30100\n", (30000, 30100)),
        ("[mount]\nport_range_upper_bound = 20449\n", (20049, 20449)),
        ("not an ini file", (20049, 21049)),
        ("[mount]\nport_range_lower_bound: 20100 # more\n", (20100, 21049)),
        ("[client-info]\nport_range_lower_bound = 30000\n", (20049, 21049)),
        ("[mount]\nport_range_lower_bound = 99999\n", (20049, 21049)),
        ("[mount]\nlogging = %(x)s\nport_range_lower_bound = twenty\n", (20049, 21049)),
    ],
)
def test_the_ports_are_efs_utils_own(fake: Any, text: str, found: Any) -> None:
    conf: Path = fake.root / CONF
    conf.parent.mkdir(parents=True)
    conf.write_text(text)
    assert packet_rules.proxy_port_range(fake.node) == found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\n", "20049-21049\n"),
        ("8080,9000-9010\n", "8080,9000-9010,20049-21049\n"),
        ("20000-22000\n", "20000-22000\n"),
        ("20049-20100,20101-21049\n", "20049-20100,20101-21049\n"),
        ("20050-21049\n", "20050-21049,20049-21049\n"),
        ("nonsense\n", "nonsense\n"),
    ],
)
def test_reserved_ports_of_others_stay(fake: Any, before: str, after: str) -> None:
    path = Path(fake.node.paths.under_root(packet_rules.RESERVED))
    path.parent.mkdir(parents=True)
    path.write_text(before)
    assert packet_rules.try_newly_reserve_ports_in_kernel(fake.node, *packet_rules.PORTS) == (before != after)
    assert path.read_text() == after and not packet_rules.try_newly_reserve_ports_in_kernel(
        fake.node, *packet_rules.PORTS
    )
