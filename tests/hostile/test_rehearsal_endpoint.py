"""A user of the machine who reaches the ports of root's rehearsal, or a user of a node who has the role's keys."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import random
import socket
import struct
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import botocore
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from hyperpod_kit.rehearsal import front_door
from hyperpod_kit.rehearsal.control_plane import RehearsalControlPlane
from hyperpod_kit.rehearsal.efs.service import EfsService
from hyperpod_kit.rehearsal.keys import Keys
from hyperpod_kit.rehearsal.s3.store import StoredBuckets
from hyperpod_kit.rehearsal.sagemaker.server import serve
from hyperpod_kit.rehearsal.standins import sigv4
from hyperpod_kit.rehearsal.standins.sigv4 import AccessKey
from tests.hostile.users import ATTACKER, ROOT, as_user

BUCKET = "sagemaker-hyperpod-kit-demo"
CREATE = {
    "ClusterName": "evil",
    "InstanceGroups": [
        {
            "InstanceGroupName": "g",
            "InstanceType": "ml.c5.large",
            "InstanceCount": 1,
            "ExecutionRole": "arn:aws:iam::111122223333:role/x",
            "LifeCycleConfig": {"SourceS3Uri": f"s3://{BUCKET}/evil/", "OnCreate": "on_create.sh"},
        }
    ],
}


class Operations:
    """Notes what it is told; no machine is booted."""

    def __init__(self) -> None:
        self.lock, self.clusters, self.told = threading.RLock(), {}, []

    def changed(self) -> None:
        return

    def spawn(self, work, cluster, *more) -> None:
        self.told.append(work)

    create = "create: boots machines, runs the script as root"


@pytest.fixture
def world(tmp_path):
    """A running rehearsal's endpoint, without machines: (URL, store, operations, keys)."""
    store, operations, keys = StoredBuckets(tmp_path / "s3"), Operations(), Keys.new()
    store.create_bucket(BUCKET)
    store.put(BUCKET, "bundle/on_create.sh", b"#!/bin/bash\n")
    (tmp_path / "registry.json").write_text('{"file_systems": ["fs-0123456789abcdef0"], "access_points": {}}')
    server = serve(
        [("127.0.0.1", 0)], store, RehearsalControlPlane(operations), EfsService(tmp_path), keys=keys.known()
    )
    yield server.url, store, operations, keys
    server.close()


def ask(url, method, path, body=b"", headers=None):
    """(status, body) of one request over a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def signed(url, method, path, body=b"", *, who, service="s3", now=None, **headers):
    path, _, query = path.partition("?")
    whole = {
        "host": urlsplit(url).netloc,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return sigv4.sign(who, "us-east-1", method, path, query, whole, now, service)


def of(key) -> AccessKey:
    return AccessKey(key.id, key.secret, key.token)


def client(service, url, key, token=None, **config):
    return boto3.client(
        service,
        "us-east-1",
        endpoint_url=url,
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        aws_session_token=key.token if token is None else token,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config),
    )


def code_of(call, **request) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return caught.value.response["Error"]["Code"]


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


def chunked(parts, key, headers, *, forge=-1, drop_trailer=False, trailer=b""):
    """A body of signed chunks, as AWS's SDKs for C and Java send it."""
    stamp, scope = headers["x-amz-date"], headers["authorization"].partition("/")[2].partition(",")[0]
    signing, last = sigv4.signing_key(key.secret, scope), headers["authorization"].rpartition("=")[2]
    out = b""
    for number, part in enumerate([*parts, b""]):
        last = sigv4.signature(
            signing,
            "AWS4-HMAC-SHA256-PAYLOAD",
            stamp,
            scope,
            last,
            sigv4.EMPTY_SHA256,
            hashlib.sha256(part).hexdigest(),
        )
        sent = bytes(len(part)) if number == forge else part
        out += f"{len(part):x};chunk-signature={last}\r\n".encode() + sent + (b"\r\n" if part else b"")
    if trailer:
        last = sigv4.signature(
            signing, "AWS4-HMAC-SHA256-TRAILER", stamp, scope, last, hashlib.sha256(trailer + b"\n").hexdigest()
        )
        out += trailer + b"\r\n" + (b"" if drop_trailer else f"x-amz-trailer-signature:{last}\r\n".encode())
    return out + b"\r\n"


@pytest.mark.parametrize(
    "forge, trailer, drop, status",
    [
        (-1, b"", False, 200),
        (0, b"", False, 403),
        (1, b"", False, 403),
        (-1, b"x-amz-checksum-crc32:AAAAAA==", True, 403),
        (-1, b"x-amz-checksum-crc32:NhCmhg==", False, 200),
    ],
)
def test_a_chunk_that_was_changed_under_way(world, forge, trailer, drop, status):
    url, store, _, keys = world
    parts = [b"hello"] if trailer else [b"a" * 70_000, b"b" * 10]
    words = {
        "content_encoding": "aws-chunked",
        "x_amz_content_sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else ""),
        **({"x_amz_trailer": "x-amz-checksum-crc32"} if trailer else {}),
    }
    headers = signed(url, "PUT", f"/{BUCKET}/k", who=of(keys.admin), **words)
    body = chunked(parts, keys.admin, headers, forge=forge, trailer=trailer, drop_trailer=drop)
    got, said = ask(url, "PUT", f"/{BUCKET}/k", body, headers)
    assert got == status, said
    assert store.exists(BUCKET, "k") is (status == 200)


def test_the_example_of_awss_documentation_for_signed_chunks():
    """The very signatures of "Signature calculations: transferring payload in multiple chunks" (S3 API reference)."""
    key = sigv4.signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524/us-east-1/s3/aws4_request")
    last = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    for size, wanted in (
        (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
        (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
        (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
    ):
        last = sigv4.signature(
            key,
            "AWS4-HMAC-SHA256-PAYLOAD",
            "20130524T000000Z",
            "20130524/us-east-1/s3/aws4_request",
            last,
            sigv4.EMPTY_SHA256,
            hashlib.sha256(b"a" * size).hexdigest(),
        )
        assert last == wanted


def raw(url, *pieces: bytes) -> bytes:
    """What comes back for these bytes until the other side closes."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        said = b""
        with contextlib.suppress(OSError):  # shutdown says ENOTCONN, which is no ConnectionError
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                said += part
    return said


def lines(url, method, path, headers, *more: bytes) -> bytes:
    named = [f"{name}: {value}".encode() for name, value in headers.items()]
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *named, *more]) + b"\r\n\r\n"


SMUGGLED = b"DELETE /" + BUCKET.encode() + b"/bundle/on_create.sh HTTP/1.1\r\nHost: x\r\n\r\n"
FRAMINGS = {
    "a length and chunks": [b"Content-Length: 4", b"Transfer-Encoding: chunked"],
    "two lengths": [b"Content-Length: 0", b"Content-Length: 90"],
    "a length below zero": [b"Content-Length: -5"],
    "a length with a plus": [b"Content-Length: +5"],
    "a length of Arabic digits": ["Content-Length: ٥".encode()],
    "another coding": [b"Transfer-Encoding: gzip, chunked"],
    "a blank before the colon": [b"Content-Length : 90"],
    "a line that goes on": [b"X-A: b", b"Content-Length", b" : 90"],
    "two hosts": [b"Host: elsewhere"],
    "two signatures": [b"Authorization: AWS4-HMAC-SHA256 x"],
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_request_inside_another(world, framing):
    """Of a signed request whose end two readers see in different places nothing is done, nor of what follows it."""
    url, store, _, keys = world
    head = signed(url, "GET", "/", who=of(keys.admin))
    said = raw(url, lines(url, "GET", "/", head, *FRAMINGS[framing]), SMUGGLED)
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1") == 1, said[:300]
    assert store.exists(BUCKET, "bundle/on_create.sh")


@pytest.mark.parametrize("size", [b"-1", b"+5", b"0x5", b"1_0", b"5 5", b"", b"f" * 17, b"5" * 100_000])
def test_the_size_of_a_chunk_that_only_python_reads(world, size):
    url, store, _, keys = world
    words = signed(url, "PUT", f"/{BUCKET}/k", who=of(keys.admin), x_amz_content_sha256="UNSIGNED-PAYLOAD")
    said = raw(
        url,
        lines(url, "PUT", f"/{BUCKET}/k", {**words, "transfer-encoding": "chunked"}),
        size,
        b"\r\nhello\r\n0\r\n\r\n",
    )
    assert b" 400 " in said.splitlines()[0] and not store.exists(BUCKET, "k")


def test_trailers_without_an_end(world):
    url, store, _, keys = world
    words = signed(url, "PUT", f"/{BUCKET}/k", who=of(keys.admin), x_amz_content_sha256="UNSIGNED-PAYLOAD")
    said = raw(
        url, lines(url, "PUT", f"/{BUCKET}/k", {**words, "transfer-encoding": "chunked"}), b"0\r\n", b"a: b\r\n" * 1000
    )
    assert b" 400 " in said.splitlines()[0] and not store.exists(BUCKET, "k")


def test_the_body_of_a_stranger_is_not_read_into_memory(world):
    url, *_ = world
    before = peak()
    body = b"x" * (1 << 20)

    for header in (b"Content-Length: 67108864", b"Transfer-Encoding: chunked"):
        raw(
            url,
            lines(url, "POST", "/", {"host": "x", "x-amz-target": "SageMaker.CreateCluster"}, header),
            *[b"%x\r\n%s\r\n" % (len(body), body) if b"chunked" in header else body] * 64,
        )
    assert peak() - before < 32 << 20


def peak() -> int:
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmRSS"].split()[0]) << 10


@pytest.mark.parametrize(
    "what, status",
    [
        (b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: x\r\n" % number for number in range(500)) + b"\r\n", b"431"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
    ids=["a long header", "many headers", "a long line"],
)
def test_huge_headers(world, what, status):
    url, *_ = world
    assert raw(url, what).startswith(b"HTTP/1.1 " + status)
    assert ask(url, "GET", "/")[0] == 403


def test_strangers_who_say_nothing_keep_nobody_out(world):
    """There are places for so many; the next one takes the place of the oldest, and who has signed keeps his."""
    url, _, _, keys = world
    place = urlsplit(url)
    known = http.client.HTTPConnection(place.netloc, timeout=20)
    for _ in range(2):
        known.request("GET", "/", headers=signed(url, "GET", "/", who=of(keys.admin)))
        assert known.getresponse().read().startswith(b"<?xml")
        strangers = [
            socket.create_connection((place.hostname, place.port), timeout=20)
            for _ in range(front_door.MOST_STRANGERS + 20)
        ]
        strangers[0].settimeout(20)
        assert strangers[0].recv(1) == b"", "the oldest stranger is still there"
        threads = sum("process_request_thread" in thread.name for thread in threading.enumerate())
        assert threads <= front_door.MOST_STRANGERS + 25
        assert client("s3", url, keys.admin).list_buckets()["Buckets"][0]["Name"] == BUCKET
        for stranger in strangers:
            # With a reset: nothing of theirs lingers.
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
    known.close()


def test_a_stranger_who_drips_is_let_go(world, monkeypatch):
    url, *_ = world
    monkeypatch.setattr(front_door.FrontDoor, "timeout", 0.2)
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(100) == b""


@pytest.mark.parametrize(
    "path",
    [
        "/{bucket}/../../../etc/passwd",
        "/{bucket}/%2e%2e/%2e%2e/keys.json",
        "/../keys.json",
        "/%2e%2e/keys.json",
        "/{bucket}/..%2f..%2fkeys.json",
        "//etc/passwd",
        "/{bucket}/%00",
        "/{bucket}/a%00b",
        "/./{bucket}/x",
        "/..",
        "/{bucket}/" + "a/" * 400 + "x",
    ],
)
def test_names_that_climb(world, tmp_path, path):
    """Even with the right key no name leads to a file outside the store."""
    url, _, _, keys = world
    (tmp_path / "keys.json").write_text("secret of the state directory")
    path = path.format(bucket=BUCKET)
    before = outside(tmp_path)
    for method, body in (("GET", b""), ("HEAD", b""), ("PUT", b"overwritten"), ("DELETE", b"")):
        said = ask(url, method, path, body, signed(url, method, path, body, who=of(keys.admin)))
        assert b"secret of" not in said[1] and b"root:x" not in said[1] and said[0] != 500, said
    assert outside(tmp_path) == before


def outside(place: Path) -> set[str]:
    return {
        str(found) + (found.read_text() if found.is_file() else "")
        for found in place.rglob("*")
        if "s3" not in found.relative_to(place).parts
    }


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "a/..", "A", "x", "..a", "_rehearsal", "a" * 64])
def test_buckets_with_names_of_directories(world, tmp_path, name):
    url, store, _, keys = world
    before = store.bucket_names()
    ask(url, "PUT", f"/{name}", b"", signed(url, "PUT", f"/{name}", who=of(keys.admin)))
    assert store.bucket_names() == before and not (tmp_path / "s3" / "..a").exists()


def test_noise(world):
    """A signed request with a few bytes changed is refused, or says what it said before; nothing breaks on it."""
    url, store, operations, keys = world
    dice, served = random.Random(20261122), 0
    good = (
        lines(
            url,
            "PUT",
            f"/{BUCKET}/n",
            signed(url, "PUT", f"/{BUCKET}/n", b"x", who=of(keys.admin)),
            b"Content-Length: 1",
        )[:-2]
        + b"\r\n"
        + b"x"
    )
    for _ in range(150):
        broken = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(broken) - 1)
            kind = dice.randrange(3)
            if kind == 0:
                broken[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                del broken[at : at + dice.randint(1, 9)]
            else:
                broken[at:at] = bytes(dice.choices(b"\r\n: ;,\x00\xff=/0", k=dice.randint(1, 5)))
        if bytes(broken) == good:
            continue
        said = raw(url, bytes(broken))
        assert b" 500 " not in said[:20] and b"Traceback" not in said, said
        served += b" 200 " in said[:20]
    # What the signature leaves free: blanks around a value, the case of a name, a header more.
    assert served < 50 and operations.told == []
    assert (store.bucket_names() == [BUCKET] and not store.exists(BUCKET, "n")) or store.get(BUCKET, "n") == b"x"
    assert store.get(BUCKET, "bundle/on_create.sh") == b"#!/bin/bash\n"
