"""The rules that keep users from the proxies behind EFS mounts. That they hold: tests/rehearsal/test_users.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts import EfsMount
from hyperpod_kit.model.node_config import User
from hyperpod_kit.node import homes, proxy_guard

HOME = EfsMount("home-alice", "/home/.homes/alice/home", "fs-0123456789abcdef0", "fsap-0123456789abcdef0", iam=True,
                owner="alice")
CONF = "etc/amazon/efs/efs-utils.conf"


@pytest.fixture
def fake(make_node: Any) -> Any:
    return make_node([HOME], (User("alice", 2001, 2001),))


def have(fake: Any, program: str) -> None:
    path = fake.root / program.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_nft_replaces_its_table_in_one_transaction(fake: Any) -> None:
    have(fake, proxy_guard.NFT)
    fake.runner.on("nft --numeric list", code=1)
    assert proxy_guard.guard(fake.node)
    assert fake.runner.calls[-1] == "nft --file -"
    text = proxy_guard.rules(20049, 21049)
    assert text.index("delete table inet hyperpod_kit") < text.index("reject with tcp reset")
    fake.runner.on("nft --numeric list", out=text)
    assert not proxy_guard.guard(fake.node)


def test_a_rule_for_other_ports_is_not_enough(fake: Any) -> None:
    have(fake, proxy_guard.NFT)
    fake.runner.on("nft --numeric list", out=proxy_guard.rules(20049, 20449))
    assert not proxy_guard.is_guarded(fake.node)


def test_iptables_where_there_is_no_nft(fake: Any) -> None:
    have(fake, proxy_guard.IPTABLES)
    fake.runner.on("iptables --wait 20 --check", code=1)
    assert proxy_guard.guard(fake.node)
    added = fake.runner.calls[-1]
    assert "--append OUTPUT --out-interface lo" in added and "--uid-owner 1-4294967294" in added
    assert "!" not in added, "an inverted owner fits the kernel's own sockets, and the mount itself would be refused"
    fake.runner.on("iptables --wait 20 --check")
    assert not proxy_guard.guard(fake.node)


def test_iptables_where_the_kernel_does_not_serve_nft(fake: Any) -> None:
    have(fake, proxy_guard.NFT)
    have(fake, proxy_guard.IPTABLES)
    fake.runner.on("nft", code=1)
    fake.runner.on("iptables --wait 20 --check", code=1)
    assert proxy_guard.guard(fake.node) and "--append OUTPUT" in fake.runner.calls[-1]
    fake.runner.on("iptables --wait 20 --check")
    assert not proxy_guard.guard(fake.node), "and it is not added again and again"
    fake.runner.on("iptables", code=1, out="Permission denied")
    with pytest.raises(NodeError, match="Permission denied: any user could speak"):
        fake.runner.on("iptables --wait 20 --check", code=1)
        proxy_guard.guard(fake.node)


def test_without_a_packet_filter_no_home_is_mounted(fake: Any) -> None:
    with pytest.raises(NodeError, match="neither /usr/sbin/nft nor /usr/sbin/iptables"):
        proxy_guard.guard(fake.node)
    with pytest.raises(NodeError):
        homes.settle(fake.node)
    assert "guard of the proxies" in homes.pending(fake.node)


def test_a_node_without_homes_needs_none(make_node: Any) -> None:
    plain = make_node([EfsMount("data", "/efs", "fs-0123456789abcdef0")])
    homes.make_mount_point(plain.node, plain.node.mount("data"))
    assert homes.settle(plain.node) == [] and homes.pending(plain.node) == "" and plain.runner.calls == []


@pytest.mark.parametrize(("text", "found"), [
    ("", (20049, 21049)), ("[mount]\nport_range_lower_bound = 30000\nport_range_upper_bound = 30100\n", (30000, 30100)),
    ("[mount]\nport_range_upper_bound = 20449\n", (20049, 20449)), ("not an ini file", (20049, 21049)),
    ("[mount]\nport_range_lower_bound = 99999\n", (20049, 21049)),
    ("[mount]\nlogging = %(x)s\nport_range_lower_bound = twenty\n", (20049, 21049))])
def test_the_ports_are_efs_utils_own(fake: Any, text: str, found: Any) -> None:
    conf: Path = fake.root / CONF
    conf.parent.mkdir(parents=True)
    conf.write_text(text)
    assert proxy_guard.ports(fake.node) == found
