"""The generated policies: as they are written, as IAM decides on them, and as the command prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.aws.iam import ALLOWED, Iam
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.preflight.checks.required_permissions import required_permissions
from hyperpod_kit.preflight.placement import execution_roles
from hyperpod_kit.preflight.role_policy import permissions_policy, trust_policy, trusts_sagemaker
from tests.unit.preflight.world import EXAMPLE, REGION, ROLE, World

GOLDEN = Path(__file__).parent / "golden_policy.json"
ACCOUNT = "111122223333"


def everything() -> dict[str, Any]:
    """The example with one of every mount that asks IAM, a secret, and workers with a role of their own."""
    values: dict[str, Any] = json.loads(EXAMPLE.read_text())
    kit = values["hyperpod_kit"]
    kit["mounts"][0]["iam"] = True
    kit["mounts"] += [
        {
            "kind": "s3files",
            "name": "files",
            "path": "/files",
            "file_system_id": "fs-0aaaabbbbccccdddd",
            "access_point_id": "fsap-0aaaabbbbccccdddd",
        },
        {
            "kind": "mountpoint-s3",
            "name": "out",
            "path": "/out",
            "bucket": "results",
            "prefix": "runs/",
            "read_only": False,
            "allow_delete": True,
            "sse": "aws:kms",
            "sse_kms_key_id": "alias/results",
            "roles": ["compute"],
        },
        {"kind": "mountpoint-s3", "name": "fast", "path": "/fast", "bucket": "fast--use1-az4--x-s3"},
        {
            "kind": "mountpoint-s3",
            "name": "elsewhere",
            "path": "/x",
            "bucket": "minio",
            "endpoint_url": "https://minio:9000",
        },
    ]
    kit["secrets"] = [
        {"name": "db", "arn": f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/team/db", "roles": ["controller"]}
    ]
    return values


def test_the_policy_of_everything() -> None:
    settings, found = decode_settings(everything())
    assert found == []
    (role,) = execution_roles(settings)
    made = permissions_policy(required_permissions(settings, role))
    assert made == json.loads(GOLDEN.read_text()), json.dumps(made, indent=2)
    sids = [statement["Sid"] for statement in made["Statement"]]
    assert len(sids) == len(set(sids)) and all(sid.isalnum() for sid in sids)


def test_a_role_of_a_group_gets_what_this_group_carries() -> None:
    values = everything()
    values["hyperpod_kit"]["cluster"]["instance_groups"][1]["execution_role"] = f"arn:aws:iam::{ACCOUNT}:role/Workers"
    settings, _ = decode_settings(values)
    own, workers = execution_roles(settings)
    mine, theirs = ({need.sid for need in required_permissions(settings, role)} for role in (own, workers))
    assert (own.path, workers.path) == (
        "hyperpod_kit.cluster.execution_role",
        "hyperpod_kit.cluster.instance_groups[1].execution_role",
    )
    assert mine - theirs == {"SecretDb"} and theirs - mine == {"ListOut", "MountOut", "KeyOut"}


def test_names_that_differ_in_hyphens_only_are_two_statements() -> None:
    values = json.loads(EXAMPLE.read_text())
    mount = values["hyperpod_kit"]["mounts"][1]
    values["hyperpod_kit"]["mounts"] = [
        {**mount, "name": name, "path": f"/{name}"} for name in ("a-1", "a1", "bundle", "a--1")
    ]
    settings, _ = decode_settings(values)
    sids = [need.sid for need in required_permissions(settings, execution_roles(settings)[0])]
    assert len(sids) == len(set(sids)) and all(sid.isalnum() for sid in sids)


def test_iam_lets_through_what_is_needed_and_nothing_beside(world: World) -> None:
    """The role of the account has the generated policy; the whole list is simulated by `validate --aws`."""
    iam = Iam(REGION)
    account = ROLE.split(":")[4]

    def decide(action: str, resource: str, **context: str) -> str:
        (decision,) = iam.simulate_role_decisions(
            ROLE, [action], [resource], {key.replace("_", ":"): value for key, value in context.items()}
        )
        return decision.decision

    data = "arn:aws:s3:::sagemaker-hyperpod-kit-data"
    assert decide("s3:GetObject", f"{data}/corpus/0") == ALLOWED
    assert decide("s3:GetObject", f"{data}/other/0") != ALLOWED
    assert decide("s3:PutObject", f"{data}/corpus/0") != ALLOWED
    efs = f"arn:aws:elasticfilesystem:{REGION}:{account}:file-system/{world.efs}"
    points = f"arn:aws:elasticfilesystem:{REGION}:{account}:access-point/"
    mount = "elasticfilesystem:ClientMount"
    assert decide(mount, efs, elasticfilesystem_AccessPointArn=points + world.point) == ALLOWED
    assert decide(mount, efs, elasticfilesystem_AccessPointArn=f"{points}fsap-1") != ALLOWED
    assert decide(mount, efs) != ALLOWED
    assert (
        decide("elasticfilesystem:ClientRootAccess", efs, elasticfilesystem_AccessPointArn=points + world.point)
        != ALLOWED
    )


SAGEMAKER = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}


@pytest.mark.parametrize(
    ("statements", "trusted"),
    [
        (trust_policy()["Statement"], True),
        ({**SAGEMAKER, "Principal": {"Service": ["ec2.amazonaws.com", "sagemaker.amazonaws.com"]}}, True),
        ([{**SAGEMAKER, "Action": ["sts:AssumeRole", "sts:TagSession"]}], True),
        ([{**SAGEMAKER, "Condition": {"StringEquals": {"aws:SourceAccount": ACCOUNT}}}], True),
        ([{**SAGEMAKER, "Condition": {"StringEquals": {"aws:SourceAccount": "999999999999"}}}], False),
        ([{**SAGEMAKER, "Principal": {"Service": "ec2.amazonaws.com"}}], False),
        ([{**SAGEMAKER, "Principal": {"AWS": "*"}}], False),
        ([{**SAGEMAKER, "Action": "sts:TagSession"}], False),
        ([SAGEMAKER, {**SAGEMAKER, "Effect": "Deny"}], False),
        ([], False),
    ],
)
def test_who_may_be_the_role(statements: Any, trusted: bool) -> None:
    assert trusts_sagemaker({"Statement": statements}, ACCOUNT) is trusted


def test_the_command_prints_json_and_says_what_to_do_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = everything()
    values["hyperpod_kit"]["cluster"]["instance_groups"][1]["execution_role"] = (
        f"arn:aws:iam::{ACCOUNT}:role/path/Workers"
    )
    file = tmp_path / "c.json"
    file.write_text(json.dumps(values))
    for words, sid, hint in (
        ((), "SecretDb", "--role-name HyperPodKitDemo --policy-name"),
        (("--group", "worker-group"), "MountOut", "--role-name Workers --policy-name"),
        (("--trust",), "HyperPod", "create-role --role-name HyperPodKitDemo"),
    ):
        assert run_command_line(["policy", str(file), *words]) == 0
        printed = capsys.readouterr()
        assert sid in [statement["Sid"] for statement in json.loads(printed.out)["Statement"]]
        assert hint in printed.err
        file_of = "trust.json" if words == ("--trust",) else "policy.json"
        assert f"next: write this to a file (> {file_of}), then aws iam" in printed.err, "nobody else wrote that file"
        assert printed.err.count(f"file://{file_of}") == 1
    assert run_command_line(["policy", str(file), "--group", "nobody"]) == 3


def test_no_role_writes_where_the_bundle_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even one that a mount of the whole bucket lets write: whoever replaces the bundle is root of new nodes."""
    values = everything()
    config = tmp_path / "parameters.json"
    config.write_text(json.dumps(values))
    assert run_command_line(["policy", str(config)]) == 0
    said = capsys.readouterr()
    [denied] = [one for one in json.loads(said.out)["Statement"] if one["Effect"] == "Deny"]
    bundle = values["hyperpod_kit"]["bundle"]
    assert denied["Resource"] == f"arn:aws:s3:::{bundle['bucket']}/{bundle['prefix']}*"
    assert {"s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"} <= set(denied["Action"])
    assert "every process of every user on these nodes has these permissions" in said.err
    values["hyperpod_kit"]["metadata_service"] = {"users": ["alice"]}
    config.write_text(json.dumps(values))
    assert run_command_line(["policy", str(config)]) == 0
    assert "only root, alice can use these permissions" in capsys.readouterr().err
