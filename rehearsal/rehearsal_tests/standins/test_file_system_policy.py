"""Who may mount: the generated policy, evaluated as EFS would, and the stand-in that enforces it on real mounts."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.aws.policies import merge_cluster_into_file_system_policy, without_public_statements
from hyperpod_rehearsal.standins.file_system_policy import ARN, Client, Granted, UnsupportedPolicy, evaluate_policy
from rehearsal_tests.standins.conftest import EFS, OTHER_USER, POINT, USER, mount_line, needs_mounts, refused

ROLE = "arn:aws:iam::111122223333:role/Nodes"
OTHER_POINT = "fsap-0123456789abcdeff"
NOTHING, EVERYTHING, ORDINARY = Granted(False, False, False), Granted(True, True, True), Granted(True, True, False)
OPEN = {
    "Sid": "console",
    "Effect": "Allow",
    "Principal": {"AWS": "*"},
    "Action": "elasticfilesystem:Client*",
    "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}},
}


def generated(existing: Any = None) -> dict[str, Any]:
    return merge_cluster_into_file_system_policy(
        cluster="demo",
        file_system_arn=f"{ARN}:file-system/{EFS}",
        role_arn=ROLE,
        access_point_arns=[f"{ARN}:access-point/{POINT}"],
        existing=existing,
    )


@pytest.mark.parametrize(
    ("client", "granted"),
    [
        (Client(ROLE, True, POINT), ORDINARY),
        (Client(ROLE, True, ""), NOTHING),  # without an access point
        (Client(ROLE, True, OTHER_POINT), NOTHING),  # one that is not in the list
        (Client(ROLE, False, POINT), NOTHING),  # without TLS
        (Client("", True, POINT), NOTHING),  # without IAM
        (Client("", False, ""), NOTHING),
        (Client("arn:aws:iam::111122223333:role/Other", True, POINT), NOTHING),
    ],
)
def test_the_generated_policy_lets_in_the_nodes_alone(client: Client, granted: Granted) -> None:
    assert evaluate_policy(generated(), EFS, client) == granted
    assert evaluate_policy(None, EFS, client) == EVERYTHING, "which is why there must be one"


def test_its_denials_hold_whatever_others_allow() -> None:
    policy = generated({"Statement": [OPEN]})
    assert evaluate_policy(policy, EFS, Client(ROLE, True, "")) == NOTHING
    assert evaluate_policy(policy, EFS, Client("", False, POINT)) == NOTHING
    # What a denial cannot hold: a client without IAM. So statements like this one must go.
    assert evaluate_policy(policy, EFS, Client("", True, OTHER_POINT)) == EVERYTHING
    assert evaluate_policy(without_public_statements(policy), EFS, Client("", True, OTHER_POINT)) == NOTHING


def test_another_file_systems_policy_says_nothing_about_this_one() -> None:
    assert evaluate_policy(generated(), "fs-11111111", Client(ROLE, True, POINT)) == NOTHING


@pytest.mark.parametrize(
    ("operator", "expected", "holds"),
    [
        ("StringEquals", [f"{ARN}:access-point/{POINT}"], True),
        ("StringEquals", [f"{ARN}:access-point/*"], False),
        ("StringLike", f"{ARN}:access-point/*", True),
        ("ArnLike", [f"{ARN}:*"], True),
        ("ArnEquals", "arn:*:x", False),
        ("Null", "false", True),
        ("Null", "true", False),
        ("StringEqualsIfExists", ["x"], False),
    ],
)
def test_operators(operator: str, expected: Any, holds: bool) -> None:
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "*",
        "Condition": {operator: {"elasticfilesystem:AccessPointArn": expected}},
    }
    assert evaluate_policy({"Statement": statement}, EFS, Client("", True, POINT)).mount is holds
    absent = evaluate_policy({"Statement": statement}, EFS, Client("", True)).mount
    assert absent is (operator == "StringEqualsIfExists" or (operator, expected) == ("Null", "true"))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({}, "no Statement"),
        ({"Statement": {**OPEN, "Effect": "allow"}}, "Effect is allow"),
        ({"Statement": {"Effect": "Allow", "Principal": "*", "NotAction": "x"}}, "no Action"),
        (
            {"Statement": {**OPEN, "Condition": {"Null": {"aws:PrincipalArn": "true"}}}},
            "EFS does not evaluate aws:Princ",
        ),
        ({"Statement": {**OPEN, "Condition": {"DateLessThan": {"aws:SourceIp": "x"}}}}, "operator DateLessThan"),
    ],
)
def test_what_efs_would_not_evaluate_is_not_believed_in(policy: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedPolicy, match=reason):
        evaluate_policy(policy, EFS, Client())


class TestMounts:
    """The same through the stand-in."""

    pytestmark = needs_mounts

    @pytest.fixture
    def put(self, node: Any) -> Any:
        """put(policy) makes it the file system's."""

        def put(policy: Any) -> None:
            path = node.directory / "data/efs/registry.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "policies": {EFS: policy}}))

        return put

    @pytest.fixture
    def target(self, node: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
        node._environment["HPK_STANDIN_ROLE"] = ROLE
        made: Path = node.mount_point("mnt")
        return made

    @pytest.mark.parametrize(
        "options",
        ["tls,iam", "tls", f"tls,accesspoint={POINT}", "noatime", "tls,iam,accesspoint=fsap-00000000000000001"],
    )
    def test_nobody_mounts_but_through_the_access_point_with_iam(
        self, node: Any, put: Any, target: Path, options: str
    ) -> None:
        put(generated())
        done = node.run("mount.efs", f"{EFS}:/", target, "-o", options)
        assert done.returncode == 32 and "access denied by server" in done.stderr and not mount_line(target)
        node.mount("mount.efs", f"{EFS}:/", target, "-o", f"tls,iam,accesspoint={POINT}")
        (target / "f").write_text("1")
        assert os.stat(target / "f").st_uid == USER

    def test_a_node_without_a_role_has_no_identity(self, node: Any, target: Path) -> None:
        node._environment["HPK_STANDIN_ROLE"] = ""
        done = node.run("mount.efs", f"{EFS}:/", target, "-o", f"tls,iam,accesspoint={POINT}")
        assert done.returncode == 1 and "AWS Access Key ID and Secret Access Key are not found" in done.stderr

    def test_who_may_not_write_mounts_read_only(self, node: Any, put: Any, target: Path) -> None:
        put({"Statement": {**OPEN, "Action": "elasticfilesystem:ClientMount"}})
        node.mount("mount.efs", f"{EFS}:/", target, "-o", "tls")
        refused(errno.EROFS, (target / "f").write_text, "")

    def test_root_is_nobody_without_root_access(self, node: Any, put: Any, target: Path) -> None:
        server = node.directory / "data/efs" / EFS
        (server / "private").mkdir(mode=0o700)
        os.chown(server / "private", OTHER_USER, OTHER_USER)
        server.chmod(0o777)
        put({"Statement": {**OPEN, "Action": ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]}})
        node.mount("mount.efs", f"{EFS}:/", target, "-o", "tls")
        refused(errno.EACCES, os.listdir, target / "private")
        (target / "f").write_text("1")
        assert os.stat(target / "f").st_uid == 65534

    def test_a_policy_that_cannot_be_evaluated_is_said_so(self, node: Any, put: Any, target: Path) -> None:
        put({"Statement": {**OPEN, "Condition": {"StringEquals": {"aws:PrincipalTag/team": "x"}}}})
        done = node.run("mount.efs", f"{EFS}:/", target, "-o", "tls")
        assert done.returncode == 1 and "cannot evaluate the policy" in done.stderr
