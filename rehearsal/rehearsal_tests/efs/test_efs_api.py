"""EFS's API of a rehearsal, by boto3: what `users apply` and mount.efs rely on, and what moto does not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

import boto3
import pytest
from botocore.exceptions import ClientError

from hyperpod_rehearsal.efs.service import EfsService
from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import as_client, serving

FS = "fs-0123456789abcdef0"
ALICE = {
    "FileSystemId": FS,
    "ClientToken": "a",
    "PosixUser": {"Uid": 2001, "Gid": 2001},
    "RootDirectory": {
        "Path": "/home/alice",
        "CreationInfo": {"OwnerUid": 2001, "OwnerGid": 2001, "Permissions": "0700"},
    },
}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    state.write_json(tmp_path / "registry.json", {"file_systems": [FS, "fs-0fedcba9876543210"], "access_points": {}})
    as_client(monkeypatch)
    with serving(StoredBuckets(tmp_path / "s3"), efs=EfsService(tmp_path)) as server:
        yield server.url


@pytest.fixture
def efs(url: str) -> Any:
    return boto3.client("efs", "us-east-1", endpoint_url=url)


def refused(code: str, call: Any, **request: Any) -> Any:
    with pytest.raises(ClientError) as caught:
        call(**request)
    assert caught.value.response["Error"]["Code"] == code, caught.value
    return caught.value.response


def test_an_access_point_from_its_creation_to_its_end(efs: Any, tmp_path: Path) -> None:
    made = efs.create_access_point(**ALICE, Tags=[{"Key": "Name", "Value": "alice"}])
    assert made["LifeCycleState"] == "available" and made["Name"] == "alice"
    assert made["AccessPointArn"].endswith(f":access-point/{made['AccessPointId']}")
    listed = efs.describe_access_points(FileSystemId=FS)["AccessPoints"]
    assert [point["RootDirectory"] for point in listed] == [ALICE["RootDirectory"]]
    assert efs.describe_access_points(FileSystemId="fs-0fedcba9876543210")["AccessPoints"] == []
    # In the very form that mount.efs reads.
    registry = json.loads((tmp_path / "registry.json").read_text())
    assert registry["access_points"][made["AccessPointId"]]["PosixUser"] == ALICE["PosixUser"]
    efs.delete_access_point(AccessPointId=made["AccessPointId"])
    refused("AccessPointNotFound", efs.describe_access_points, AccessPointId=made["AccessPointId"])
    refused("AccessPointNotFound", efs.delete_access_point, AccessPointId=made["AccessPointId"])


def test_a_token_makes_one_access_point(efs: Any) -> None:
    made = efs.create_access_point(**ALICE)
    again = refused("AccessPointAlreadyExists", efs.create_access_point, **ALICE)
    assert again["AccessPointId"] == made["AccessPointId"]


def test_all_pages(efs: Any) -> None:
    for number in range(5):
        efs.create_access_point(**{**ALICE, "ClientToken": str(number)})
    pages = list(efs.get_paginator("describe_access_points").paginate(FileSystemId=FS, MaxResults=2))
    assert [len(page["AccessPoints"]) for page in pages] == [2, 2, 1]
    assert len({point["AccessPointId"] for page in pages for point in page["AccessPoints"]}) == 5


def test_file_systems(efs: Any) -> None:
    (file_system,) = efs.describe_file_systems(FileSystemId=FS)["FileSystems"]
    assert file_system["FileSystemArn"].endswith(f":file-system/{FS}") and file_system["LifeCycleState"] == "available"
    assert len(efs.describe_file_systems()["FileSystems"]) == 2
    refused("FileSystemNotFound", efs.describe_file_systems, FileSystemId="fs-99999999")
    refused("FileSystemNotFound", efs.create_access_point, **{**ALICE, "FileSystemId": "fs-99999999"})


def test_a_policy_is_put_read_and_deleted(efs: Any) -> None:
    refused("PolicyNotFound", efs.describe_file_system_policy, FileSystemId=FS)
    policy = {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "elasticfilesystem:ClientMount"}]}
    efs.put_file_system_policy(FileSystemId=FS, Policy=json.dumps(policy))
    assert json.loads(efs.describe_file_system_policy(FileSystemId=FS)["Policy"]) == policy
    efs.delete_file_system_policy(FileSystemId=FS)
    refused("PolicyNotFound", efs.describe_file_system_policy, FileSystemId=FS)


@pytest.mark.parametrize("policy", ["{", "[]", "{}", '{"Statement": [{"Effect": "Allow"}]}'])
def test_what_is_no_policy_is_refused(efs: Any, policy: str) -> None:
    refused("InvalidPolicyException", efs.put_file_system_policy, FileSystemId=FS, Policy=policy)


def test_requests_are_checked_against_the_service_model(efs: Any) -> None:
    root = {**ALICE["RootDirectory"], "Path": "/a/b/c/d/e"}  # type: ignore[dict-item]
    message = refused("BadRequest", efs.create_access_point, **{**ALICE, "RootDirectory": root})
    assert "RootDirectory.Path" in message["Error"]["Message"]


def test_a_bucket_of_that_name_is_still_s3s(url: str) -> None:
    s3 = boto3.client("s3", "us-east-1", endpoint_url=url)
    s3.create_bucket(Bucket="2015-02-01")
    s3.put_object(Bucket="2015-02-01", Key="access-points", Body=b"x")
    assert s3.get_object(Bucket="2015-02-01", Key="access-points")["Body"].read() == b"x"
