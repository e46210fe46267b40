from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperpod_kit.errors import RehearsalError, RunError
from hyperpod_rehearsal.machines import network
from hyperpod_rehearsal.machines.network import CANDIDATES, Network, choose_free_second_octet
from hyperpod_rehearsal.records.layout import Layout
from tests.support.runner import RecordingRunner

LAYOUT = Layout(Path("/var/tmp/x/demo"))


@pytest.mark.parametrize(
    "taken, expected",
    [
        ([], 1),
        (["192.168.0.0/24", "172.17.0.0/16", "fd00::/8", "nonsense"], 1),
        (["10.1.200.0/24"], 101),
        (["10.1.0.1/16", "10.101.0.0/16"], 102),
        (["10.64.0.0/10"], 1),
    ],
)
def test_the_first_free_subnet_is_chosen(taken, expected):
    assert choose_free_second_octet(taken) == expected


def test_a_company_that_uses_all_of_10_is_told():
    with pytest.raises(RehearsalError, match="no free network"):
        choose_free_second_octet(["10.0.0.0/8"])
    with pytest.raises(RehearsalError):
        choose_free_second_octet([f"10.{x}.0.0/16" for x in CANDIDATES])


def test_routes_and_addresses_count_as_used():
    runner = RecordingRunner(
        {
            "ip -j -4 route": json.dumps([{"dst": "default", "gateway": "192.0.2.1"}, {"dst": "10.9.0.0/16"}]),
            "ip -j -4 addr": json.dumps([{"addr_info": [{"local": "10.1.0.1", "prefixlen": 16}]}, {}]),
        },
        otherwise="",
    )
    assert network.networks_in_use(runner) == ["10.9.0.0/16", "10.1.0.1/16"]


def test_addresses_are_unique_and_named_as_in_ec2():
    net = Network(LAYOUT, 7, RecordingRunner(otherwise=""))
    assert (
        net.gateway == "10.7.0.1"
        and net.instance_address(0, 0) == "10.7.41.18"
        and net.instance_address(1, 2) == "10.7.42.20"
    )
    assert network.host_name_from_ip(net.instance_address(1, 2)) == "ip-10-7-42-20"
    addresses = {net.instance_address(group, index) for group in range(5) for index in range(500)}
    assert len(addresses) == 2500 and all(int(address.split(".")[3]) < 250 for address in addresses)


def test_a_firewall_between_nodes_and_endpoint_is_named():
    class Refused(RecordingRunner):
        def run(self, argv, **more):
            if "exec" in argv:
                raise RunError(argv, 124)
            return super().run(argv, **more)

    runner = Refused(otherwise="")
    with pytest.raises(RehearsalError, match="firewall") as caught:
        Network(LAYOUT, 1, runner).require_nodes_reach_gateway_port(8080)
    assert LAYOUT.bridge in (caught.value.hint or "")
    assert any("netns del" in command for command in runner.calls)


def test_removal_touches_only_links_of_this_rehearsal():
    veth = LAYOUT.veth("i-0123456789abcdef0")
    runner = RecordingRunner(
        {
            "ip -j link": json.dumps(
                [{"ifname": name} for name in ("lo", "eth0", LAYOUT.bridge, veth, "hvffff9abcdef0", "hpk-ffff")]
            )
        },
        otherwise="",
    )
    network.remove_rehearsal_network(LAYOUT, runner)
    deleted = [command for command in runner.calls if "link del" in command]
    assert deleted == [f"ip link del {LAYOUT.bridge}", f"ip link del {veth}"]
