"""The endpoint as boto3 sees it."""

import base64
import hashlib
import http.client
import io
import re
import threading
import urllib.error
import urllib.request
import zlib
from datetime import datetime, timezone
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from hyperpod_rehearsal.s3.store import StoredBuckets
from rehearsal_tests.s3.conftest import BUCKET
from rehearsal_tests.s3.raw import signed


def status_of(call, *args, **kwargs):
    with pytest.raises(ClientError) as caught:
        call(*args, **kwargs)
    return caught.value.response["ResponseMetadata"]["HTTPStatusCode"], caught.value.response["Error"]["Code"]


def test_what_is_put_is_got(s3):
    put = s3.put_object(
        Bucket=BUCKET,
        Key="a/b c+é.txt",
        Body=b"hello",
        Metadata={"k": "v"},
        ContentType="text/plain",
        CacheControl="no-store",
    )
    got = s3.get_object(Bucket=BUCKET, Key="a/b c+é.txt")
    assert got["Body"].read() == b"hello"
    assert (got["Metadata"], got["ContentType"], got["CacheControl"]) == ({"k": "v"}, "text/plain", "no-store")
    assert put["ETag"] == got["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    crc32 = base64.b64encode(zlib.crc32(b"hello").to_bytes(4, "big")).decode()
    assert put["ChecksumCRC32"] == got["ChecksumCRC32"] == crc32


def test_empty_object(s3):
    s3.put_object(Bucket=BUCKET, Key="empty", Body=b"")
    assert s3.get_object(Bucket=BUCKET, Key="empty")["Body"].read() == b""
    assert s3.head_object(Bucket=BUCKET, Key="empty")["ContentLength"] == 0


@pytest.mark.parametrize(
    ("requested", "expected", "content_range"),
    [
        ("bytes=0-0", b"0", "bytes 0-0/10"),
        ("bytes=3-5", b"345", "bytes 3-5/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-30", b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
    ],
)
def test_ranges(s3, requested, expected, content_range):
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"0123456789")
    got = s3.get_object(Bucket=BUCKET, Key="k", Range=requested)
    assert (got["Body"].read(), got["ContentRange"], got["ContentLength"]) == (expected, content_range, len(expected))
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206


def test_range_behind_the_end(s3):
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"0123456789")
    assert status_of(s3.get_object, Bucket=BUCKET, Key="k", Range="bytes=10-") == (416, "InvalidRange")


def test_a_range_that_makes_no_sense_gives_the_whole(s3):
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"0123456789")
    assert s3.get_object(Bucket=BUCKET, Key="k", Range="bytes=5-2")["ContentLength"] == 10


def test_absent(s3):
    assert status_of(s3.get_object, Bucket=BUCKET, Key="no") == (404, "NoSuchKey")
    assert status_of(s3.head_object, Bucket=BUCKET, Key="no")[0] == 404
    assert status_of(s3.list_objects_v2, Bucket="no-such-bucket") == (404, "NoSuchBucket")
    s3.delete_object(Bucket=BUCKET, Key="no")


def test_conditional_writes(s3):
    first = s3.put_object(Bucket=BUCKET, Key="k", Body=b"1", IfNoneMatch="*")
    assert status_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"2", IfNoneMatch="*") == (412, "PreconditionFailed")
    assert status_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"2", IfMatch='"beef"') == (412, "PreconditionFailed")
    assert status_of(s3.put_object, Bucket=BUCKET, Key="no", Body=b"2", IfMatch=first["ETag"]) == (404, "NoSuchKey")
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"3", IfMatch=first["ETag"])
    assert s3.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"3"
    assert status_of(s3.delete_object, Bucket=BUCKET, Key="k", IfMatch=first["ETag"])[0] == 412


def test_of_many_writers_one_wins(s3, store):
    won = []

    def write(number):
        try:
            s3.put_object(Bucket=BUCKET, Key="lock", Body=str(number).encode(), IfNoneMatch="*")
            won.append(number)
        except ClientError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get(BUCKET, "lock") == str(won[0]).encode()


def test_conditional_reads(s3):
    etag = s3.put_object(Bucket=BUCKET, Key="k", Body=b"1")["ETag"]
    assert status_of(s3.get_object, Bucket=BUCKET, Key="k", IfMatch='"beef"')[0] == 412
    assert status_of(s3.get_object, Bucket=BUCKET, Key="k", IfNoneMatch=etag)[0] == 304
    assert s3.get_object(Bucket=BUCKET, Key="k", IfMatch=etag)["Body"].read() == b"1"


def test_a_wrong_checksum_is_refused_and_nothing_is_stored(s3, store):
    assert status_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"1", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    assert status_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"1", ContentMD5="A" * 22 + "==") == (400, "BadDigest")
    assert status_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"1", ChecksumSHA256="A" * 43 + "=")[1] == "BadDigest"
    assert not store.exists(BUCKET, "k")
    assert not list((store.root / BUCKET / "blobs").glob("*/*"))


def test_checksums_that_cannot_be_computed_are_kept(s3):
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"1", ChecksumCRC64NVME="AAAAAAAAAAA=")
    assert s3.head_object(Bucket=BUCKET, Key="k", ChecksumMode="ENABLED")["ChecksumCRC64NVME"] == "AAAAAAAAAAA="


def test_a_trailing_checksum_is_verified(endpoint, store):
    for value, status in (("NhCmhg==", 200), ("AAAAAA==", 400)):  # crc32 of `hello`
        body = f"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{value}\r\n\r\n".encode()
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
        connection.request(
            "PUT",
            f"/{BUCKET}/k",
            body,
            signed(
                f"{endpoint.url}/{BUCKET}/k",
                "PUT",
                {
                    "content-encoding": "aws-chunked",
                    "x-amz-trailer": "x-amz-checksum-crc32",
                    "x-amz-decoded-content-length": "5",
                    "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                },
            ),
        )
        assert connection.getresponse().status == status
        connection.close()
    assert store.get(BUCKET, "k") == b"hello"


def test_copy(s3, store):
    s3.put_object(Bucket=BUCKET, Key="from", Body=b"bytes", Metadata={"a": "1"})
    s3.copy_object(Bucket=BUCKET, Key="to", CopySource={"Bucket": BUCKET, "Key": "from"})
    s3.copy_object(
        Bucket=BUCKET,
        Key="changed",
        CopySource={"Bucket": BUCKET, "Key": "from"},
        Metadata={"b": "2"},
        MetadataDirective="REPLACE",
    )
    s3.delete_object(Bucket=BUCKET, Key="from")
    assert store.get(BUCKET, "to") == b"bytes"
    assert s3.head_object(Bucket=BUCKET, Key="to")["Metadata"] == {"a": "1"}
    assert s3.head_object(Bucket=BUCKET, Key="changed")["Metadata"] == {"b": "2"}
    assert status_of(s3.copy_object, Bucket=BUCKET, Key="x", CopySource=f"{BUCKET}/no") == (404, "NoSuchKey")


def test_listing_pages_through_both_versions(s3):
    for number in range(7):
        s3.put_object(Bucket=BUCKET, Key=f"p/k {number}&<", Body=b"x")
    s3.put_object(Bucket=BUCKET, Key="p/sub/z", Body=b"x")
    for operation in ("list_objects", "list_objects_v2"):
        pages = list(
            s3.get_paginator(operation).paginate(
                Bucket=BUCKET, Prefix="p/", Delimiter="/", PaginationConfig={"PageSize": 3}
            )
        )
        assert [item["Key"] for page in pages for item in page.get("Contents", [])] == [
            f"p/k {number}&<" for number in range(7)
        ]
        assert [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])] == ["p/sub/"]
        assert len(pages) == 3
    after = s3.list_objects_v2(Bucket=BUCKET, Prefix="p/", StartAfter="p/k 4&<")
    assert [item["Key"] for item in after["Contents"]] == ["p/k 5&<", "p/k 6&<", "p/sub/z"]


def test_delete_many(s3, store):
    for key in ("a", "b", "c"):
        store.put(BUCKET, key, b"")
    done = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "a"}, {"Key": "b"}, {"Key": "absent"}]})
    assert {item["Key"] for item in done["Deleted"]} == {"a", "b", "absent"}
    assert [info.key for info in store.list(BUCKET)] == ["c"]


def test_a_key_and_keys_below_it(s3, store):
    store.put(BUCKET, "x", b"1")
    store.put(BUCKET, "x/y", b"2")
    store.put(BUCKET, "x/", b"")
    assert s3.get_object(Bucket=BUCKET, Key="x")["Body"].read() == b"1"
    assert s3.get_object(Bucket=BUCKET, Key="x/y")["Body"].read() == b"2"


def test_buckets(s3):
    s3.create_bucket(Bucket="another-one")
    assert [item["Name"] for item in s3.list_buckets()["Buckets"]] == ["another-one", BUCKET]
    assert s3.head_bucket(Bucket="another-one")["ResponseMetadata"]["HTTPHeaders"]["x-amz-bucket-region"] == "us-east-1"
    s3.delete_bucket(Bucket="another-one")
    assert status_of(s3.head_bucket, Bucket="another-one")[0] == 404
    assert status_of(s3.put_bucket_versioning, Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})[0] == 501
    assert status_of(s3.get_bucket_lifecycle_configuration, Bucket=BUCKET) == (404, "NoSuchLifecycleConfiguration")


def test_presigned(s3):
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"signed")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "k"})
    assert urllib.request.urlopen(url, timeout=60).read() == b"signed"


@pytest.mark.parametrize(
    "version, made, expired",
    [("s3v4", r"X-Amz-Date=\d{8}", "X-Amz-Date=20200101"), ("s3", r"Expires=\d+", "Expires=1577836800")],
)
def test_a_presigned_url_ends(s3, endpoint, version, made, expired):
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"signed")
    signer = boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="secret",
        config=Config(signature_version=version),
    )
    url = signer.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "k"})
    assert urllib.request.urlopen(url, timeout=60).read() == b"signed"
    old, count = re.subn(made, expired, url)
    assert count == 1
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(old, timeout=60)
    body = caught.value.read()
    assert caught.value.code == 403 and b"<Code>AccessDenied</Code><Message>Request has expired</Message>" in body


def test_a_presigned_url_that_lasts_longer_than_a_week(s3):
    url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "k"})
    url = re.sub(r"\?.*", "?X-Amz-Date=20260101T000000Z&X-Amz-Expires=604801", url)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, timeout=60)
    assert caught.value.code == 400 and b"AuthorizationQueryParametersError" in caught.value.read()


def test_a_key_has_1024_bytes_at_most(s3):
    longest = "ü" * 512
    s3.put_object(Bucket=BUCKET, Key=longest, Body=b"")
    assert status_of(s3.put_object, Bucket=BUCKET, Key=longest + "x", Body=b"") == (400, "KeyTooLongError")
    assert status_of(s3.create_multipart_upload, Bucket=BUCKET, Key=longest + "x") == (400, "KeyTooLongError")


def test_a_storage_class_is_given_back(s3):
    s3.put_object(Bucket=BUCKET, Key="cold", Body=b"c", StorageClass="STANDARD_IA", Metadata={"a": "b"})
    s3.put_object(Bucket=BUCKET, Key="warm", Body=b"w", StorageClass="STANDARD")
    assert s3.head_object(Bucket=BUCKET, Key="cold")["StorageClass"] == "STANDARD_IA"
    assert s3.get_object(Bucket=BUCKET, Key="cold")["StorageClass"] == "STANDARD_IA"
    assert "StorageClass" not in s3.head_object(Bucket=BUCKET, Key="warm")
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="parts", StorageClass="GLACIER_IR")["UploadId"]
    assert s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"][0]["StorageClass"] == "GLACIER_IR"
    part = s3.upload_part(Bucket=BUCKET, Key="parts", UploadId=upload, PartNumber=1, Body=b"p")
    s3.complete_multipart_upload(
        Bucket=BUCKET,
        Key="parts",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    # A copy has the class that it asks for, and the metadata of what it copies.
    s3.copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/cold")
    copied = s3.head_object(Bucket=BUCKET, Key="copy")
    assert "StorageClass" not in copied and copied["Metadata"] == {"a": "b"}
    s3.copy_object(Bucket=BUCKET, Key="frozen", CopySource=f"{BUCKET}/cold", StorageClass="DEEP_ARCHIVE")
    assert status_of(s3.get_object, Bucket=BUCKET, Key="frozen") == (403, "InvalidObjectState")
    listed = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert {item["Key"]: item["StorageClass"] for item in listed} == {
        "cold": "STANDARD_IA",
        "warm": "STANDARD",
        "parts": "GLACIER_IR",
        "copy": "STANDARD",
        "frozen": "DEEP_ARCHIVE",
    }
    assert status_of(s3.put_object, Bucket=BUCKET, Key="x", Body=b"", StorageClass="LUKEWARM") == (
        400,
        "InvalidStorageClass",
    )


def test_a_bucket_knows_when_it_was_made(s3, store):
    before = datetime.now(timezone.utc).replace(microsecond=0)
    s3.create_bucket(Bucket="another-one")
    made = {item["Name"]: item["CreationDate"] for item in s3.list_buckets()["Buckets"]}
    assert before <= made["another-one"] <= datetime.now(timezone.utc)
    assert StoredBuckets(store.root).bucket("another-one").created == store.bucket("another-one").created


def test_streamed_upload_of_unknown_length(s3, store):
    s3.upload_fileobj(io.BytesIO(b"z" * 100_000), BUCKET, "k")
    assert store.get(BUCKET, "k") == b"z" * 100_000


def test_one_connection_serves_many_requests(endpoint, store):
    store.put(BUCKET, "k", b"hello")
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(endpoint.url).port, timeout=60)
    for method, path, status in (
        ("GET", f"/{BUCKET}/k", 200),
        ("HEAD", f"/{BUCKET}/no", 404),
        ("PATCH", "/", 501),
        ("GET", f"/{BUCKET}/k", 200),
    ):
        connection.request(method, path, headers=signed(endpoint.url + path, method))
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()
