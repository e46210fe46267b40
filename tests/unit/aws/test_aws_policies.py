"""The policies themselves: what they say, what of others they keep, what they find open. Who gets in is judged by the
rehearsal's evaluation in rehearsal/rehearsal_tests/standins/test_file_system_policy.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperpod_kit.aws import policies
from hyperpod_kit.errors import ConfigError

FILE_SYSTEM = "arn:aws:elasticfilesystem:us-east-1:111122223333:file-system/fs-0fffffffffffffff0"
ROLE = "arn:aws:iam::111122223333:role/Nodes"
POINTS = [f"arn:aws:elasticfilesystem:us-east-1:111122223333:access-point/fsap-{number:017x}" for number in range(3)]
FOREIGN = {
    "Sid": "Backup",
    "Effect": "Allow",
    "Principal": {"AWS": "arn:aws:iam::111122223333:role/Backup"},
    "Action": "elasticfilesystem:ClientMount",
    "Resource": FILE_SYSTEM,
}
CONSOLE = {
    "Sid": "efs-statement-1",
    "Effect": "Allow",
    "Principal": {"AWS": "*"},
    "Action": ["elasticfilesystem:ClientRootAccess", "elasticfilesystem:ClientWrite", "elasticfilesystem:ClientMount"],
    "Resource": FILE_SYSTEM,
    "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}},
}
"""What AWS's console writes for a file system that is open to its network."""


def made(existing: Any = None, cluster: str = "demo", points: Any = POINTS) -> dict[str, Any]:
    return policies.merge_cluster_into_file_system_policy(
        cluster=cluster, file_system_arn=FILE_SYSTEM, role_arn=ROLE, access_point_arns=points, existing=existing
    )


def test_the_nodes_may_mount_these_access_points_and_never_as_root() -> None:
    allow, *denials = made()["Statement"]
    assert allow["Principal"] == {"AWS": ROLE} and allow["Resource"] == FILE_SYSTEM
    assert allow["Action"] == ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    assert allow["Condition"] == {
        "StringEquals": {"elasticfilesystem:AccessPointArn": sorted(POINTS)},
        "Bool": {"aws:SecureTransport": "true"},
    }
    assert [denial["Condition"] for denial in denials] == [
        {"Null": {"elasticfilesystem:AccessPointArn": "true"}},
        {"Bool": {"aws:SecureTransport": "false"}},
    ]
    for denial in denials:
        assert denial["Effect"] == "Deny" and denial["Principal"] == {"AWS": "*"}
        assert "elasticfilesystem:ClientRootAccess" in denial["Action"]


def test_statements_of_others_stay_and_ours_are_replaced() -> None:
    first = made({"Version": "2008-10-17", "Statement": FOREIGN}, points=POINTS[:1])
    second = made(first)
    assert second["Statement"][0] == FOREIGN and len(second["Statement"]) == 4
    assert policies.are_policies_equivalent(second, made(second)) and not policies.are_policies_equivalent(
        first, second
    )


def test_two_clusters_share_a_file_system() -> None:
    both = made(made(cluster="team-a"), cluster="teama")
    sids = [statement["Sid"] for statement in both["Statement"]]
    assert len(sids) == len(set(sids)) == 4 and all(sid.isalnum() for sid in sids)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, ["efs-statement-1"]),
        ({"Principal": "*"}, ["efs-statement-1"]),
        ({"Principal": {"AWS": [ROLE, "*"]}, "Action": "elasticfilesystem:*"}, ["efs-statement-1"]),
        ({"Action": "*", "Sid": None}, ["number 2"]),
        ({"Action": "elasticfilesystem:Client*"}, ["efs-statement-1"]),
        ({"Effect": "Deny"}, []),
        ({"Principal": {"AWS": ROLE}}, []),
        ({"Action": "elasticfilesystem:DescribeMountTargets"}, []),
        ({"Action": "elasticfilesystem:ClientWrite"}, []),
    ],
)
def test_a_statement_that_lets_everyone_in_is_found(change: dict[str, Any], found: list[str]) -> None:
    policy = {"Statement": [FOREIGN, {**CONSOLE, **change}]}
    assert policies.public_statement_names(policy) == found
    assert len(policies.without_public_statements(policy)["Statement"]) == 2 - len(found)


def test_not_principal_and_not_action_are_open_too() -> None:
    unlike = {key: value for key, value in CONSOLE.items() if key not in ("Principal", "Action")}
    assert policies.is_public_statement(
        {**unlike, "NotPrincipal": {"AWS": ROLE}, "NotAction": "elasticfilesystem:Tag*"}
    )


def test_the_same_policy_written_otherwise() -> None:
    policy = made()
    turned = {**policy, "Id": "x", "Statement": policy["Statement"][::-1]}
    turned["Statement"][-1] = {**turned["Statement"][-1], "Principal": {"AWS": [ROLE]}}
    assert policies.are_policies_equivalent(policy, turned) and not policies.are_policies_equivalent(policy, None)
    assert policies.are_policies_equivalent(
        made(points=POINTS[:1]), json.loads(policies.to_compact_json(made(points=POINTS[:1])))
    )


def test_as_many_users_as_fit_and_not_one_more() -> None:
    def points(count: int) -> list[str]:
        return [POINTS[0][:-17] + f"{number:017x}" for number in range(count)]

    assert len(policies.to_compact_json(made(points=points(200)))) <= policies.POLICY_LIMIT
    with pytest.raises(
        ConfigError, match=r"for 260 access points of demo and 0 other statements, more than EFS's maximum of 20000"
    ):
        made(points=points(260))


def test_the_role_needs_little() -> None:
    mount, find = policies.execution_role_policy(FILE_SYSTEM, POINTS)["Statement"]
    assert mount["Condition"]["StringEquals"]["elasticfilesystem:AccessPointArn"] == POINTS
    assert find["Action"] == ["elasticfilesystem:DescribeMountTargets"]
