"""A user of the machine who reaches the ports of root's rehearsal, or a user of a node who has the role's keys."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import botocore
import pytest

from tests.hostile.endpoint.requests import BUCKET, CREATE, ask, client, code_of, of, signed
from tests.hostile.users import ATTACKER, ROOT, as_user

TARGET = {"X-Amz-Target": "SageMaker.CreateCluster", "Content-Type": "application/x-amz-json-1.1"}
EFS_HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/elasticfilesystem/aws4_request, "
    "SignedHeaders=host, Signature=" + "0" * 64
}
UNSIGNED = {
    "a script into the bucket": ("PUT", f"/{BUCKET}/evil/on_create.sh", b"id > /pwned", {}),
    "a cluster": ("POST", "/", json.dumps(CREATE).encode(), TARGET),
    "the clusters": ("POST", "/", b"{}", {**TARGET, "X-Amz-Target": "SageMaker.ListClusters"}),
    "the bundle": ("GET", f"/{BUCKET}/bundle/on_create.sh", b"", {}),
    "its size": ("HEAD", f"/{BUCKET}/bundle/on_create.sh", b"", {}),
    "the buckets": ("GET", "/", b"", {}),
    "the bucket's end": ("DELETE", f"/{BUCKET}/bundle/on_create.sh", b"", {}),
    "a fault": ("POST", "/_rehearsal/fault", b'{"path": ".", "status": 500}', {}),
    "what others asked": ("GET", "/_rehearsal/requests", b"", {}),
    "an open file system": ("DELETE", "/2015-02-01/file-systems/fs-0123456789abcdef0/policy", b"", EFS_HEADERS),
    "a page's name": ("GET", "/?prefix=x", b"", {"x-forwarded-for": "127.0.0.1"}),
}


@ROOT
@pytest.mark.parametrize("what", UNSIGNED)
def test_another_user_of_the_machine_asks_for(world, what):
    url, store, operations, _ = world
    method, path, body, headers = UNSIGNED[what]

    def attack() -> None:
        status, said = ask(url, method, path, body, headers)
        assert status in (400, 403), status
        assert method == "HEAD" or b"AccessDenied" in said or b"Exception" in said, said

    assert as_user(ATTACKER, attack) == 0
    assert operations.told == [] and store.faults.to_json() == []
    assert [entry.path for entry in store.requests.entries()] == []
    assert store.get(BUCKET, "bundle/on_create.sh") == b"#!/bin/bash\n"
    assert not store.exists(BUCKET, "evil/on_create.sh")


@ROOT
def test_another_user_reads_the_keys(world, tmp_path):
    *_, keys = world
    tmp_path.chmod(0o755)
    keys.save(tmp_path)
    assert as_user(ATTACKER, lambda: (tmp_path / "keys.json").read_text()) == 1


def test_the_words_of_each_service(world):
    """As AWS says them, so that a client's own handling is what is rehearsed."""
    url, _, _, keys = world
    wrong = type(keys.admin)(keys.admin.id, "x" * 40)
    stranger = type(keys.admin)("AKIAIOSFODNN7EXAMPLE", "x" * 40)
    assert code_of(client("s3", url, wrong).list_buckets) == "SignatureDoesNotMatch"
    assert code_of(client("s3", url, stranger).list_buckets) == "InvalidAccessKeyId"
    assert code_of(client("s3", url, keys.admin, token="theirs").list_buckets) == "InvalidToken"
    assert code_of(client("s3", url, keys.node, token="").list_buckets) == "InvalidToken"
    assert code_of(client("s3", url, keys.admin, signature_version=botocore.UNSIGNED).list_buckets) == "AccessDenied"
    assert code_of(client("sagemaker", url, wrong).list_clusters) == "InvalidSignatureException"
    assert code_of(client("sagemaker", url, stranger).list_clusters) == "UnrecognizedClientException"
    assert code_of(client("efs", url, wrong).describe_access_points) == "InvalidSignatureException"
    assert code_of(client("efs", url, stranger).describe_access_points) == "UnrecognizedClientException"
    assert client("sagemaker", url, keys.admin).list_clusters()["ClusterSummaries"] == []
    assert len(client("efs", url, keys.admin).describe_file_systems()["FileSystems"]) == 1


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_presigned_url_is_for_one_thing_only(world, version):
    url, store, _, keys = world
    store.put(BUCKET, "other", b"other")
    signer = client("s3", url, keys.admin, signature_version=version)
    given = signer.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "bundle/on_create.sh"})
    target = given[len(url) :]
    assert ask(url, "GET", target)[0] == 200
    assert ask(url, "GET", target.replace("bundle/on_create.sh", "other"))[0] == 403
    assert ask(url, "PUT", target, b"x")[0] == 403
    assert ask(url, "DELETE", target)[0] == 403
    assert ask(url, "GET", target.replace("Expires=", "Expires=1"))[0] in (400, 403)
    assert ask(url, "GET", target, headers={"x-amz-target": "SageMaker.ListClusters"})[0] in (400, 403)
    stolen = target.replace(f"/{BUCKET}/bundle/on_create.sh", "/_rehearsal/requests")
    assert ask(url, "GET", stolen)[0] == 403


def test_what_was_signed_cannot_be_changed(world):
    url, store, _, keys = world
    path = f"/{BUCKET}/k"
    headers = signed(url, "PUT", path, b"true", who=of(keys.admin))
    assert ask(url, "PUT", path, b"fals", headers)[0] == 400 and not store.exists(BUCKET, "k")
    assert ask(url, "PUT", path + "2", b"true", headers)[0] == 403
    assert ask(url, "PUT", path + "?acl=", b"true", headers)[0] == 403
    assert ask(url, "DELETE", path, b"true", headers)[0] == 403
    assert ask(url, "PUT", path, b"true", {**headers, "x-amz-copy-source": f"/{BUCKET}/bundle/on_create.sh"})[0] == 403
    assert ask(url, "PUT", path, b"true", {**headers, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"})[0] == 403
    assert ask(url, "PUT", path, b"true", {**headers, "host": "elsewhere"})[0] == 403
    assert ask(url, "PUT", path, b"true", headers)[0] == 200


def test_an_old_request_is_not_taken_again(world):
    url, _, _, keys = world
    for minutes, status in ((-16, 403), (-14, 200), (14, 200), (16, 403)):
        at = datetime.now(timezone.utc) + timedelta(minutes=minutes)
        got, said = ask(url, "GET", "/", headers=signed(url, "GET", "/", who=of(keys.admin), now=at))
        assert got == status and (status == 200 or b"RequestTimeTooSkewed" in said)


def test_a_signature_for_one_service_is_none_for_another(world):
    url, _, operations, keys = world
    body = json.dumps(CREATE).encode()
    for service in ("s3", "elasticfilesystem", "sts"):
        headers = signed(
            url, "POST", "/", body, who=of(keys.admin), service=service, x_amz_target=TARGET["X-Amz-Target"]
        )
        assert ask(url, "POST", "/", body, headers)[0] == 400
    headers = signed(url, "GET", f"/{BUCKET}/bundle/on_create.sh", who=of(keys.admin), service="sagemaker")
    assert ask(url, "GET", f"/{BUCKET}/bundle/on_create.sh", headers=headers)[0] == 400
    assert operations.told == []


def test_a_users_job_on_a_node_has_the_roles_keys_and_no_more(world):
    """Every process of a node may have them, of the metadata service. They are S3's, as an instance role's are."""
    url, _, operations, keys = world
    sagemaker, s3 = client("sagemaker", url, keys.node), client("s3", url, keys.node)
    assert code_of(sagemaker.create_cluster, **CREATE) == "AccessDeniedException"
    assert code_of(sagemaker.list_clusters) == "AccessDeniedException"
    assert (
        code_of(client("efs", url, keys.node).delete_file_system_policy, FileSystemId="fs-0123456789abcdef0")
        == "AccessDeniedException"
    )
    assert (
        ask(
            url,
            "DELETE",
            "/_rehearsal/requests",
            headers=signed(url, "DELETE", "/_rehearsal/requests", who=of(keys.node)),
        )[0]
        == 403
    )
    # Nor by a URL in the old form, which carries no service.
    old = client("s3", url, keys.node, signature_version="s3").generate_presigned_url(
        "get_object", Params={"Bucket": "_rehearsal", "Key": "requests"}
    )
    assert ask(url, "GET", old[len(url) :])[0] == 403
    assert s3.get_object(Bucket=BUCKET, Key="bundle/on_create.sh")["Body"].read() == b"#!/bin/bash\n"
    assert operations.told == []


def test_a_users_job_on_a_node_writes_no_script_that_root_runs(world):
    """The role may write to the bucket, and reads the bundle; what a cluster's nodes run it may not write."""
    url, store, _, keys = world
    store.put(BUCKET, "evil/on_create.sh", b"good")
    store.put(BUCKET, "evilish", b"good")
    client("sagemaker", url, keys.admin).create_cluster(**CREATE)
    s3, admin = client("s3", url, keys.node), client("s3", url, keys.admin)
    inside = {"Bucket": BUCKET, "Key": "evil/on_create.sh"}
    assert s3.get_object(**inside)["Body"].read() == b"good"
    s3.put_object(Bucket=BUCKET, Key="mine", Body=b"bad")
    assert code_of(s3.put_object, **inside, Body=b"bad") == "AccessDenied"
    assert code_of(s3.put_object, Bucket=BUCKET, Key="evil/lib/more.py", Body=b"bad") == "AccessDenied"
    assert code_of(s3.copy_object, **inside, CopySource=f"{BUCKET}/mine") == "AccessDenied"
    assert code_of(s3.create_multipart_upload, **inside) == "AccessDenied"
    assert code_of(s3.delete_object, **inside) == "AccessDenied"
    for version in ("s3", "s3v4"):
        signer = client("s3", url, keys.node, signature_version=version)
        given = signer.generate_presigned_url("put_object", Params=inside)
        assert ask(url, "PUT", given[len(url) :], b"bad")[0] == 403
    told = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": inside["Key"]}, {"Key": "mine"}]})
    assert [error["Key"] for error in told["Errors"]] == [inside["Key"]] and told["Deleted"] == [{"Key": "mine"}]
    for path in (f"/{BUCKET}/%65vil/on_create.sh", f"/{BUCKET}//evil/on_create.sh", f"//{BUCKET}/evil/on_create.sh"):
        ask(url, "PUT", path, b"bad", signed(url, "PUT", path, b"bad", who=of(keys.node)))
    s3.put_object(Bucket=BUCKET, Key="evilish", Body=b"elsewhere")
    assert store.get(BUCKET, "evil/on_create.sh") == b"good" and store.get(BUCKET, "evilish") == b"elsewhere"
    admin.put_object(**inside, Body=b"new")
    assert store.get(BUCKET, "evil/on_create.sh") == b"new"
