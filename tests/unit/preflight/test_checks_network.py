"""Subnets, routes, security groups: one change to what a right account said, and exactly what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hyperpod_kit.preflight.facts import Endpoint, Route
from hyperpod_kit.preflight.reachability import SecurityRule
from tests.unit.preflight.account import (
    ANYWHERE,
    GROUPS,
    LOCAL,
    P4D,
    PACKAGE,
    SECRET,
    SUBNET,
    TO_ALL,
    TYPES,
    Case,
    Cases,
    V,
    endpoint,
    everything,
    fsx,
    judge,
    nodes_of,
    routes,
    storage_of,
    subnet,
    vpc_of,
    without_efa,
    zone_of,
)

CASES: Cases = {
    "no subnet": (lambda c: c.network(subnets=(), tables=()), [("HPK-V301", "error", SUBNET)]),
    "no security group": (
        lambda c: c.network(groups={nodes_of(c): None}),
        [("HPK-V302", "error", f"{GROUPS}[0]")],
    ),
    "a subnet of another VPC": (
        lambda c: fsx(endpoint(subnet(c, vpc_id="vpc-2"), vpc_id="vpc-2"), vpc_id="vpc-2"),
        [("HPK-V303", "error", V)],
    ),
    "public": (
        lambda c: routes(c, LOCAL, Route("0.0.0.0/0", "igw-1", True)),
        [("HPK-V304", "error", SUBNET)],
    ),
    "public by IPv6": (
        lambda c: routes(c, LOCAL, Route("0.0.0.0/0", "nat-1", True), Route("::/0", "igw-1", True)),
        [("HPK-V304", "error", SUBNET)],
    ),
    "an egress-only gateway is private": (
        lambda c: routes(c, LOCAL, Route("0.0.0.0/0", "nat-1", True), Route("::/0", "eigw-1", True)),
        [],
    ),
    "a transit gateway leads out": (lambda c: routes(c, LOCAL, Route("0.0.0.0/0", "tgw-1", True)), []),
    "an address or two of an internet gateway is no default route": (
        lambda c: routes(c, Route("0.0.0.0/0", "nat-1", True), Route("8.8.8.0/24", "igw-1", True)),
        [],
    ),
    "no route table to be seen": (lambda c: c.network(tables=()), [("HPK-V314", "warning", SUBNET)]),
    "nothing of S3 is needed": (
        lambda c: routes(c, LOCAL).wrote(
            cluster=replace(c.settings.cluster, lifecycle_mode="ami_only"),
            sourced_mounts=tuple(one for one in c.settings.sourced_mounts if one.mount.kind != "mountpoint-s3"),
        ),
        [],
    ),
    "a black hole": (
        lambda c: routes(c, LOCAL, Route("0.0.0.0/0", "nat-1", False)),
        [("HPK-V305", "error", SUBNET)],
    ),
    "an endpoint of S3 by a route": (lambda c: routes(c, LOCAL, Route("pl-1", "vpce-1", True)), []),
    "an endpoint of S3 by an interface": (
        lambda c: routes(c, LOCAL).network(endpoints=(Endpoint(vpc_of(c), "s3", "Interface"),)),
        [],
    ),
    "a gateway endpoint that the table does not lead to": (
        lambda c: routes(c, LOCAL).network(endpoints=(Endpoint(vpc_of(c), "s3", "Gateway"),)),
        [("HPK-V305", "error", SUBNET)],
    ),
    "closed, with a secret and a package": (
        lambda c: routes(c, LOCAL, Route("pl-1", "vpce-1", True)).wrote(secrets=(SECRET,), packages=(PACKAGE,)),
        [
            ("HPK-V306", "warning", "hyperpod_kit.secrets[0]"),
            ("HPK-V307", "warning", "hyperpod_kit.clients[0].url"),
        ],
    ),
    "no names": (
        lambda c: c.network(dns={vpc_of(c): (True, False)}),
        [("HPK-V308", "error", f"{V}.subnet_ids")],
    ),
    "no room": (lambda c: subnet(c, free=3), [("HPK-V309", "error", f"{V}.subnet_ids")]),
    "no room, but the nodes are there": (
        lambda c: subnet(c, free=0).said(used={"demo": {P4D: 3, "ml.c5.xlarge": 1}}),
        [("HPK-V603", "info", "hyperpod_kit.cluster.name")],
    ),
    "not offered": (
        lambda c: c.said(offered=frozenset({("p4d.24xlarge", "use1-az9"), ("c5.xlarge", zone_of(c))})),
        [("HPK-V310", "warning", f"{TYPES}[1].instance_type")],
    ),
    "EFA only in": (
        lambda c: c.rules(0, egress=(TO_ALL,)),
        [("HPK-V311", "error", GROUPS)],
    ),
    "EFA by addresses only": (
        lambda c: c.rules(0, ingress=(TO_ALL,), egress=(TO_ALL,)),
        [("HPK-V311", "error", GROUPS)],
    ),
    "no EFA, by addresses": (
        lambda c: without_efa(c).rules(0, ingress=(TO_ALL,), egress=(TO_ALL,)),
        [],
    ),
    "no EFA, and shut": (
        lambda c: without_efa(c).rules(0, ingress=(SecurityRule("tcp", (988, 1023), frozenset(), ANYWHERE),)),
        [("HPK-V312", "error", GROUPS)],
    ),
    "nothing leads out by the groups": (
        lambda c: c.rules(0, egress=(everything(nodes_of(c)), everything(storage_of(c)))),
        [("HPK-V313", "error", GROUPS)],
    ),
    "out to a prefix list that nobody could read": (
        lambda c: c.rules(
            0,
            egress=(
                everything(nodes_of(c)),
                everything(storage_of(c)),
                SecurityRule("tcp", (443, 443), frozenset(), (), True),
            ),
        ),
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_change_and_what_follows(right: Case, name: str) -> None:
    judge(right, *CASES[name])
