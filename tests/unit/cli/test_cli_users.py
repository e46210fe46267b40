"""users apply and users policy as an admin types them, against moto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator

import boto3
import pytest
from moto import mock_aws
from moto.moto_api._internal import mock_random

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

IDS = "provisioning_parameters.access-points.json"


@pytest.fixture
def efs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    # moto's ids have eight digits, which efs-utils would refuse to mount; EFS's have seventeen.
    digits = mock_random.get_random_hex
    monkeypatch.setattr(mock_random, "get_random_hex", lambda length=17: digits(max(length, 17)))
    with mock_aws():
        yield boto3.client("efs", "us-east-1")


@pytest.fixture
def homes(efs: Any, project: Path) -> str:
    """The example with homes for two users; the file system's id."""
    made = str(efs.create_file_system(CreationToken="homes")["FileSystemId"])
    change(
        project,
        homes={"file_system_id": made},
        users=[{"name": "alice", "uid": 2001, "gid": 2001}, {"name": "bob", "uid": 2002, "gid": 2002}],
    )
    return made


def change(project: Path, **fields: Any) -> None:
    config = project / "provisioning_parameters.json"
    values = json.loads(config.read_text())
    values["hyperpod_kit"].update(fields)
    config.write_text(json.dumps(values))


def test_from_a_configuration_to_a_bundle(efs: Any, homes: str, project: Path, hk: Hk) -> None:
    refused = hk("render")
    assert refused.code == 1 and "no access point yet for the home of alice, bob" in refused.err
    assert "hyperpod-kit users apply" in refused.err
    planned = hk("users", "apply", "--dry-run")
    assert planned.code == 0 and planned.out.count("new") == 2 and "the policy would be set" in planned.err
    assert efs.describe_access_points()["AccessPoints"] == [] and not (project / IDS).exists()
    done = hk("users", "apply")
    assert done.code == 0 and "next: hyperpod-kit upload" in done.err
    ids = {point["user"]: point["id"] for point in json.loads((project / IDS).read_text())["access_points"]}
    assert hk("render").code == 0
    node = json.loads((project / "build/bundle/node_config.json").read_text())
    assert {mount["owner"]: mount["access_point_id"] for mount in node["mounts"] if mount.get("owner")} == ids


def test_again_there_is_nothing_to_do(efs: Any, homes: str, hk: Hk) -> None:
    first = json.loads(hk("users", "apply", "--json").out)
    assert first["changed"] and [item["action"] for item in first["access_points"]] == ["create", "create"]
    again = hk("users", "apply")
    assert again.code == 0 and "nothing to do" in again.err
    report = json.loads(hk("users", "apply", "--json", "--dry-run").out)
    assert not report["changed"] and {item["action"] for item in report["access_points"]} == {"keep"}


def test_a_changed_uid_is_refused_offline_and_by_the_file_system(efs: Any, homes: str, project: Path, hk: Hk) -> None:
    hk("users", "apply")
    change(project, users=[{"name": "alice", "uid": 2005, "gid": 2005}])
    offline = hk("validate")
    assert offline.code == 1 and "HPK-U022" in offline.out
    (project / IDS).unlink()
    online = hk("users", "apply")
    assert online.code == 1 and "acts as 2001:2001 in /home/alice" in online.err
    assert len(efs.describe_access_points()["AccessPoints"]) == 2
    report = hk("users", "apply", "--dry-run", "--json")
    assert report.code == 1 and json.loads(report.out)["access_points"][0]["action"] == "conflict"
    assert [found["user"] for found in json.loads(report.out)["without_user"]] == ["bob"]


def test_an_open_policy_is_refused_until_the_admin_says_so(efs: Any, homes: str, hk: Hk) -> None:
    everyone = {"Sid": "all", "Effect": "Allow", "Principal": "*", "Action": "elasticfilesystem:ClientMount"}
    efs.put_file_system_policy(FileSystemId=homes, Policy=json.dumps({"Statement": [everyone]}))
    refused = hk("users", "apply")
    assert refused.code == 1 and "statement all" in refused.err and "--remove-open-statements" in refused.err
    assert hk("users", "apply", "--remove-open-statements").code == 0
    assert '"all"' not in efs.describe_file_system_policy(FileSystemId=homes)["Policy"]


def test_the_policies_can_be_read_before_they_are_put(efs: Any, homes: str, hk: Hk) -> None:
    before = hk("users", "policy")
    assert "not in the policy yet: alice, bob" in before.err
    hk("users", "apply")
    shown = json.loads(hk("users", "policy").out)
    assert shown == json.loads(efs.describe_file_system_policy(FileSystemId=homes)["Policy"])
    role = json.loads(hk("users", "policy", "--execution-role").out)
    assert "elasticfilesystem:DescribeMountTargets" in str(role)


def test_without_homes_it_says_what_to_add(efs: Any, project: Path, hk: Hk) -> None:
    asked = hk("users", "apply")
    assert asked.code == 2 and '"homes": {"file_system_id"' in asked.err
