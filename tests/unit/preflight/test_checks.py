"""Buckets, role, quotas, secrets, what could not be asked: one change to what a right account said, what follows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod_kit.aws.buckets import BucketHead
from hyperpod_kit.aws.quotas import ALTOGETHER, PER_CLUSTER, Quota, cluster_quota_name
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.model.cluster import Vpc
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.preflight import checks
from hyperpod_kit.preflight.facts import AccountFacts, NotQueried, RoleFacts
from hyperpod_kit.preflight.run import check
from tests.unit.config.rule_cases import CASES as OFFLINE
from tests.unit.preflight.account import (
    DATA,
    DEMO,
    GROUPS,
    M0,
    M1,
    MISSING,
    P4D,
    ROLE_AT,
    SECRET,
    TYPES,
    Case,
    Cases,
    bucket,
    efs,
    first_mount,
    judge,
    nodes_of,
    policy,
    quota,
    refused,
)
from tests.unit.preflight.test_checks_network import CASES as NETWORK
from tests.unit.preflight.test_checks_storage import CASES as STORAGE
from tests.unit.preflight.world import EXAMPLE, REGION, ROLE

CASES: Cases = {
    "no permission": (lambda c: c.said(not_queried=(MISSING,)), [("HPK-V001", "warning", GROUPS)]),
    "no answer": (lambda c: c.said(not_queried=(replace(MISSING, denied=False),)), [("HPK-V002", "warning", GROUPS)]),
    "no bundle bucket": (
        lambda c: bucket(c, DEMO, BucketHead(False, False, None)),
        [("HPK-V101", "error", "hyperpod_kit.bundle.bucket")],
    ),
    "no data bucket": (
        lambda c: bucket(c, DATA, BucketHead(False, False, None)),
        [("HPK-V101", "error", f"{M1}.bucket")],
    ),
    "a bucket that may not be looked at": (
        lambda c: bucket(c, DATA, BucketHead(True, False, REGION)),
        [("HPK-V102", "warning", f"{M1}.bucket")],
    ),
    "bundle elsewhere": (
        lambda c: bucket(c, DEMO, BucketHead(True, True, "eu-west-1")),
        [("HPK-V103", "error", "hyperpod_kit.bundle.bucket")],
    ),
    "data elsewhere": (
        lambda c: bucket(c, DATA, BucketHead(True, True, "eu-west-1")),
        [("HPK-V105", "warning", f"{M1}.bucket")],
    ),
    "a mount told the wrong region": (
        lambda c: bucket(
            c.mount(S3Mount("x", "/x", "other", read_only=False, region="eu-west-1")),
            "other",
            BucketHead(True, True, REGION),
        ),
        [("HPK-V104", "error", "hyperpod_kit.mounts[2].region")],
    ),
    "a directory bucket in another zone": (
        lambda c: c.mount(S3Mount("x", "/x", "fast--use1-az9--x-s3", read_only=False)),
        [("HPK-V106", "warning", "hyperpod_kit.mounts[2].bucket")],
    ),
    "nothing to read": (lambda c: c.said(empty={(DATA, "corpus/"): True}), [("HPK-V107", "warning", f"{M1}.prefix")]),
    "another account's role": (
        lambda c: c.said(caller=c.facts.caller._replace(account="999999999999")),
        [("HPK-V201", "error", ROLE_AT)],
    ),
    "no role": (lambda c: c.said(roles={ROLE: None}), [("HPK-V202", "error", ROLE_AT)]),
    "a role with another path": (
        lambda c: c.said(roles={ROLE: RoleFacts("arn:aws:iam::123456789012:role/x/HyperPodKitDemo", {})}),
        [("HPK-V202", "error", ROLE_AT)],
    ),
    "a role that is EC2's": (
        lambda c: c.said(roles={ROLE: RoleFacts(ROLE, policy({"Principal": {"Service": "ec2.amazonaws.com"}}))}),
        [("HPK-V203", "error", ROLE_AT)],
    ),
    "a role that may not read": (
        lambda c: refused(c, "MountData", "s3:GetObject"),
        [("HPK-V204", "error", M1)],
    ),
    "a role without sessions": (
        lambda c: refused(c, "Sessions", "ssmmessages:OpenDataChannel"),
        [("HPK-V204", "warning", ROLE_AT)],
    ),
    "a role that may only be simulated": (
        lambda c: refused(c.said(roles={ROLE: MISSING}), "MountData", "s3:GetObject"),
        [("HPK-V204", "error", M1)],
    ),
    "EFS by IAM: the file system's default policy is enough": (
        lambda c: refused(c, "MountHome", "elasticfilesystem:ClientMount"),
        [],
    ),
    "EFS by IAM: a policy for others": (
        lambda c: efs(
            refused(c, "MountHome", "elasticfilesystem:ClientMount"), policy=policy({"Principal": {"AWS": "arn:x"}})
        ),
        [("HPK-V204", "error", M0)],
    ),
    "EFS by IAM: a policy for the role": (
        lambda c: efs(
            refused(c, "MountHome", "elasticfilesystem:ClientMount"), policy=policy({"Principal": {"AWS": ROLE}})
        ),
        [],
    ),
    "EFS by IAM: denied": (
        lambda c: refused(c, "MountHome", "elasticfilesystem:ClientMount", "explicitDeny"),
        [("HPK-V204", "error", M0)],
    ),
    "a quota of a type": (
        lambda c: quota(c, cluster_quota_name(P4D), 2),
        [("HPK-V601", "error", f"{TYPES}[1].count")],
    ),
    "a quota that others use": (
        lambda c: c.said(used={"other": {P4D: 1}}),
        [("HPK-V601", "error", f"{TYPES}[1].count")],
    ),
    "a quota that this very cluster uses": (
        lambda c: c.said(used={"demo": {P4D: 3}}),
        [("HPK-V603", "info", "hyperpod_kit.cluster.name")],
    ),
    "a quota of a cluster": (lambda c: quota(c, PER_CLUSTER, 3), [("HPK-V601", "error", TYPES)]),
    "a quota of all clusters": (
        lambda c: c.said(used={"other": {"ml.m5.large": 27}}),
        [("HPK-V601", "error", TYPES)],
    ),
    "no quota": (
        lambda c: c.said(quotas={PER_CLUSTER: Quota(PER_CLUSTER, "L-1", 20), ALTOGETHER: Quota(ALTOGETHER, "L-2", 30)}),
        [
            ("HPK-V602", "warning", f"{TYPES}[0].instance_type"),
            ("HPK-V602", "warning", f"{TYPES}[1].instance_type"),
        ],
    ),
    "no secret": (
        lambda c: c.wrote(secrets=(SECRET,)).said(secrets={SECRET.arn: False}),
        [("HPK-V701", "error", "hyperpod_kit.secrets[0].arn")],
    ),
    "nothing could be asked": (
        lambda c: Case(c.settings, AccountFacts(c.facts.caller, not_queried=(MISSING,))),
        [("HPK-V001", "warning", GROUPS)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_change_and_what_follows(right: Case, name: str) -> None:
    judge(right, *CASES[name])


def test_a_right_account_has_no_findings(right: Case) -> None:
    assert check.run_all_preflight_checks(*right) == [] and right.facts.not_queried == ()


def test_every_check_is_wired_and_every_code_has_a_case() -> None:
    folder = Path(checks.__file__).parent
    sources = [path.read_text() for path in [*folder.glob("*.py"), *folder.parent.glob("mounts/*.py")]]
    written = re.findall(r'"(HPK-V\d{3})"', "".join(sources))
    assert sorted(written) == sorted(set(written)), "a code means one thing, in one place"
    assert set(written) == {
        code for table in (CASES, NETWORK, STORAGE) for _, wanted in table.values() for code, _, _ in wanted
    }
    signature = r"^def ([a-z]\w*)\(settings: Settings, facts: AccountFacts\) -> Iterator\[Finding\]"
    functions = re.findall(signature, "\n".join(sources), re.MULTILINE)
    assert sorted(functions) == sorted(one.__name__ for one in check.CHECKS)


def test_no_wrong_configuration_breaks_a_check(right: Case) -> None:
    """No exception is all that is asked: for each change that breaks a rule, with a right account and without facts."""
    for *_, change in OFFLINE:
        values = json.loads(EXAMPLE.read_text())
        change(values)
        settings, _ = decode_settings(values)
        check.run_all_preflight_checks(settings, right.facts)
        check.run_all_preflight_checks(settings, AccountFacts(right.facts.caller))


def test_a_group_with_a_network_of_its_own_is_judged_by_it(right: Case) -> None:
    """Its mounts need endpoints in its own zone; the cluster's zone has none of its nodes any more."""
    assert right.facts.network is not None and not isinstance(right.facts.network.subnets, NotQueried)
    second = replace(right.facts.network.subnets[0], id="subnet-2", zone="use1-az9", cidr="10.0.2.0/24")
    controller, workers = right.settings.cluster.groups
    moved = replace(workers, vpc=Vpc((nodes_of(right),), ("subnet-2",)))
    case = right.network(subnets=(*right.facts.network.subnets, second)).wrote(
        cluster=replace(right.settings.cluster, groups=(controller, moved))
    )
    found = {(one.code, one.path) for one in check.run_all_preflight_checks(*case)}
    assert ("HPK-V403", f"{M0}.file_system_id") in found and ("HPK-V508", "fsx_dns_name") in found
    only_here = first_mount(case, roles=("controller",))
    assert "HPK-V403" not in {one.code for one in check.run_all_preflight_checks(*only_here)}


def test_the_reason_of_a_refusal_is_named(right: Case) -> None:
    limits = ("a service control policy",)
    (found,) = check.run_all_preflight_checks(*refused(right, "MountData", "s3:GetObject", limits=limits))
    assert found.message.endswith("which is needed for: mount `data` (a service control policy)")
    (found,) = check.run_all_preflight_checks(*refused(right, "MountData", "s3:GetObject", "explicitDeny"))
    assert found.message.endswith("(a statement denies it)")
