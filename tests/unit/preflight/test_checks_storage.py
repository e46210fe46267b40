"""EFS, S3 Files and FSx: one change to what a right account said, and exactly the findings that follow."""

from __future__ import annotations

import pytest

from hyperpod_kit.preflight.facts import AccessPointFacts, FileSystem
from hyperpod_kit.preflight.reachability import SecurityRule
from tests.unit.preflight.account import (
    ANYWHERE,
    M0,
    ROLE_AT,
    TO_ALL,
    Case,
    Cases,
    as_home,
    dns_of,
    efs,
    efs_id,
    endpoint,
    everything,
    first_mount,
    fsx,
    fsx_endpoint,
    judge,
    lustre,
    network_of,
    nodes_of,
    points_of,
    policy,
    s3files,
    tcp,
    with_efa_rules,
    zfs,
)
from tests.unit.preflight.world import CLOSED, ROLE

CASES: Cases = {
    "no EFS": (
        lambda c: c.said(file_systems={"efs": dict.fromkeys(c.facts.file_systems["efs"])}),
        [("HPK-V401", "error", f"{M0}.file_system_id")],
    ),
    "no S3 Files": (s3files, [("HPK-V401", "error", "hyperpod_kit.mounts[2].file_system_id")]),
    "EFS without a policy": (
        lambda c: efs(c, policy=None),
        [("HPK-V411", "warning", f"{M0}.file_system_id")],
    ),
    "EFS not ready": (lambda c: efs(c, state="creating"), [("HPK-V402", "error", f"{M0}.file_system_id")]),
    "no mount target in a zone": (
        lambda c: endpoint(c, zone="use1-az9"),
        [("HPK-V403", "error", f"{M0}.file_system_id")],
    ),
    "no mount target at all": (lambda c: efs(c, endpoints=()), [("HPK-V403", "error", f"{M0}.file_system_id")]),
    "a mount target that is being made": (
        lambda c: endpoint(c, ready=False),
        [("HPK-V403", "error", f"{M0}.file_system_id")],
    ),
    "EFS of another VPC": (lambda c: endpoint(c, vpc_id="vpc-2"), [("HPK-V404", "error", f"{M0}.file_system_id")]),
    "EFS in another region is not judged by zones": (
        lambda c: first_mount(c, region="eu-west-1").said(
            file_systems={
                "efs": {("eu-west-1", efs_id(c)): FileSystem("fs", "available", None, (), CLOSED, {})},
            }
        ),
        [],
    ),
    "2049 shut in": (
        lambda c: c.rules(1, ingress=(SecurityRule("tcp", (988, 1023), frozenset(), ANYWHERE),)),
        [("HPK-V405", "error", f"{M0}.file_system_id")],
    ),
    "2049 shut out": (
        lambda c: c.rules(
            0,
            egress=(
                everything(nodes_of(c)),
                SecurityRule("tcp", (443, 443), frozenset(), ANYWHERE),
                SecurityRule("tcp", (988, 1023), frozenset(), ANYWHERE),
            ),
        ),
        [("HPK-V405", "error", f"{M0}.file_system_id")],
    ),
    "2049 by the subnet's addresses in two halves": (
        lambda c: c.rules(1, ingress=(tcp("10.0.1.0/25"), tcp("10.0.1.128/25"))),
        [],
    ),
    "2049 by half of the subnet's addresses": (
        lambda c: c.rules(1, ingress=(tcp("10.0.1.0/25"),)),
        [("HPK-V405", "error", f"{M0}.file_system_id"), ("HPK-V510", "error", "fsx_dns_name")],
    ),
    "no access point": (
        lambda c: efs(c, points=dict.fromkeys(points_of(c))),
        [("HPK-V406", "error", f"{M0}.access_point_id")],
    ),
    "another file system's access point": (
        lambda c: efs(c, points={name: AccessPointFacts(name, "fs-2", True) for name in points_of(c)}),
        [("HPK-V407", "error", f"{M0}.access_point_id")],
    ),
    "an access point that is being made": (
        lambda c: efs(c, points={name: AccessPointFacts(name, efs_id(c), False) for name in points_of(c)}),
        [("HPK-V408", "error", f"{M0}.access_point_id")],
    ),
    "without IAM where IAM is asked for": (
        lambda c: efs(first_mount(c, iam=False), policy=policy({"Principal": {"AWS": ROLE}})),
        [("HPK-V409", "error", f"{M0}.iam")],
    ),
    "without IAM where everyone may": (
        lambda c: efs(first_mount(c, iam=False), policy=policy({"Principal": "*"})),
        [("HPK-V411", "warning", f"{M0}.file_system_id")],
    ),
    "homes that the role may not mount": (
        lambda c: efs(as_home(c), policy=policy({"Principal": {"AWS": "arn:aws:iam::1:role/x"}})),
        [("HPK-V410", "error", ROLE_AT)],
    ),
    "no FSx": (lambda c: c.said(fsx=dict.fromkeys(c.facts.fsx)), [("HPK-V501", "error", "fsx_dns_name")]),
    "FSx failed": (lambda c: fsx(c, state="FAILED"), [("HPK-V502", "error", "fsx_dns_name")]),
    "FSx of another kind": (lambda c: fsx(c, kind="ONTAP"), [("HPK-V503", "error", "fsx_dns_name")]),
    "another DNS name": (
        lambda c: fsx(c, dns_name="fs-1.fsx.eu-west-1.amazonaws.com"),
        [("HPK-V504", "error", "fsx_dns_name")],
    ),
    "DNS names have no case": (lambda c: fsx(c, dns_name=dns_of(c).upper()), []),
    "another mount name": (lambda c: lustre(c, mount_name="xyz"), [("HPK-V505", "error", "fsx_mountname")]),
    "no such volume": (
        lambda c: zfs(c, volumes=("/fsx",)),
        [("HPK-V506", "error", "hyperpod_kit.mounts[2].export")],
    ),
    "a volume that is there": (zfs, []),
    "FSx of another VPC": (lambda c: fsx(c, vpc_id="vpc-2"), [("HPK-V507", "error", "fsx_dns_name")]),
    "FSx in another zone": (lambda c: fsx_endpoint(c, zone="use1-az9"), [("HPK-V508", "warning", "fsx_dns_name")]),
    "EFA in another zone": (
        lambda c: with_efa_rules(fsx_endpoint(fsx(lustre(c, efa=True), efa=True), zone="use1-az9")),
        [("HPK-V512", "error", "fsx_dns_name")],
    ),
    "FSx without EFA": (lambda c: lustre(c, efa=True), [("HPK-V509", "error", "fsx_dns_name")]),
    "EFA, and groups by the protocol's ports alone": (
        lambda c: fsx(lustre(c, efa=True), efa=True),
        [("HPK-V515", "error", "fsx_dns_name")],
    ),
    "EFA, and all traffic by networks": (
        lambda c: fsx(lustre(c, efa=True), efa=True).rules(1, ingress=(TO_ALL,), egress=(TO_ALL,)),
        [("HPK-V515", "error", "fsx_dns_name")],
    ),
    "EFA, and all traffic among the groups": (lambda c: with_efa_rules(fsx(lustre(c, efa=True), efa=True)), []),
    "EFA, and a size that FSx makes with it": (
        lambda c: with_efa_rules(fsx(lustre(c, efa=True), efa=True, capacity_gib=38400, throughput_per_tib=250)),
        [],
    ),
    "EFA, and a size that FSx makes without it only": (
        lambda c: with_efa_rules(fsx(lustre(c, efa=True), efa=True, capacity_gib=4800, throughput_per_tib=250)),
        [("HPK-V514", "error", "fsx_dns_name")],
    ),
    "no interface of FSx to be seen": (lambda c: fsx(c, endpoints=()), [("HPK-V513", "warning", "fsx_dns_name")]),
    "a group of FSx that is not to be seen": (
        lambda c: fsx_endpoint(c, groups=("sg-2",)).network(groups={**network_of(c).groups, "sg-2": None}),
        [("HPK-V513", "warning", "fsx_dns_name")],
    ),
    "988 shut": (
        lambda c: c.rules(1, ingress=(tcp("10.0.0.0/8", 1018, 2049),)),
        [("HPK-V510", "error", "fsx_dns_name")],
    ),
    "Lustre's servers shut out": (
        lambda c: c.rules(0, ingress=(everything(nodes_of(c)),)),
        [("HPK-V511", "warning", "fsx_dns_name")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_change_and_what_follows(right: Case, name: str) -> None:
    judge(right, *CASES[name])
