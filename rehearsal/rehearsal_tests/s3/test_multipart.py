import os

import pytest
from boto3.s3.transfer import TransferConfig

from rehearsal_tests.s3.conftest import BUCKET
from rehearsal_tests.s3.test_objects import status_of

MIB = 1 << 20


@pytest.fixture
def upload_id(s3):
    return s3.create_multipart_upload(Bucket=BUCKET, Key="big")["UploadId"]


def put_parts(s3, upload, bodies):
    return [
        {
            "PartNumber": number,
            "ETag": s3.upload_part(Bucket=BUCKET, Key="big", UploadId=upload, PartNumber=number, Body=body)["ETag"],
        }
        for number, body in enumerate(bodies, 1)
    ]


def complete(s3, upload, parts, **more):
    return s3.complete_multipart_upload(
        Bucket=BUCKET, Key="big", UploadId=upload, MultipartUpload={"Parts": parts}, **more
    )


def test_parts_become_an_object_at_completion_and_not_before(s3, store, upload_id):
    bodies = [os.urandom(5 * MIB), os.urandom(5 * MIB), b"tail"]
    parts = put_parts(s3, upload_id, bodies)
    assert not store.exists(BUCKET, "big")
    listed = s3.list_parts(Bucket=BUCKET, Key="big", UploadId=upload_id, MaxParts=2)
    assert [part["PartNumber"] for part in listed["Parts"]] == [1, 2] and listed["IsTruncated"]
    done = complete(s3, upload_id, parts)
    assert done["ETag"].endswith('-3"')
    assert store.get(BUCKET, "big") == b"".join(bodies)
    across = s3.get_object(Bucket=BUCKET, Key="big", Range=f"bytes={5 * MIB - 2}-{10 * MIB + 1}")
    assert across["Body"].read() == b"".join(bodies)[5 * MIB - 2 : 10 * MIB + 2]
    second = s3.get_object(Bucket=BUCKET, Key="big", PartNumber=2)
    assert second["PartsCount"] == 3 and second["Body"].read() == bodies[1]
    assert s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads") is None


def test_abort(s3, store, upload_id):
    put_parts(s3, upload_id, [b"x"])
    assert [item["UploadId"] for item in s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]] == [upload_id]
    s3.abort_multipart_upload(Bucket=BUCKET, Key="big", UploadId=upload_id)
    assert status_of(s3.upload_part, Bucket=BUCKET, Key="big", UploadId=upload_id, PartNumber=1, Body=b"") == (
        404,
        "NoSuchUpload",
    )
    assert not list((store.root / BUCKET / "blobs").glob("*/*"))


def test_what_a_completion_may_not_say(s3, upload_id):
    parts = put_parts(s3, upload_id, [b"small", b"tail"])
    assert status_of(complete, s3, upload_id, parts)[1] == "EntityTooSmall"
    assert status_of(complete, s3, upload_id, parts[::-1])[1] == "InvalidPartOrder"
    assert status_of(complete, s3, upload_id, [{**parts[0], "ETag": '"beef"'}])[1] == "InvalidPart"
    assert status_of(complete, s3, upload_id, [{**parts[0], "PartNumber": 7}])[1] == "InvalidPart"
    complete(s3, upload_id, parts[1:])


def test_a_part_is_replaced(s3, store, upload_id):
    put_parts(s3, upload_id, [b"first try"])
    complete(s3, upload_id, put_parts(s3, upload_id, [b"second"]))
    assert store.get(BUCKET, "big") == b"second"
    assert len(list((store.root / BUCKET / "blobs").glob("*/*"))) == 1


def test_conditional_completion(s3, store, upload_id):
    store.put(BUCKET, "big", b"there")
    parts = put_parts(s3, upload_id, [b"mine"])
    assert status_of(complete, s3, upload_id, parts, IfNoneMatch="*") == (412, "PreconditionFailed")
    assert store.get(BUCKET, "big") == b"there"
    complete(s3, upload_id, parts)  # the upload is still open after a refusal
    assert store.get(BUCKET, "big") == b"mine"


def test_managed_transfer_with_default_checksums(s3, store, tmp_path):
    data = os.urandom(11 * MIB)
    (tmp_path / "up").write_bytes(data)
    settings = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    s3.upload_file(str(tmp_path / "up"), BUCKET, "big", Config=settings)
    head = s3.head_object(Bucket=BUCKET, Key="big", ChecksumMode="ENABLED")
    assert head["ChecksumType"] == "COMPOSITE" and head["ChecksumCRC32"].endswith("-3")
    s3.download_file(BUCKET, "big", str(tmp_path / "down"), Config=settings)
    assert (tmp_path / "down").read_bytes() == data
    s3.copy({"Bucket": BUCKET, "Key": "big"}, BUCKET, "copied", Config=settings)
    assert store.get(BUCKET, "copied") == data


def test_whole_object_checksum(s3):
    upload = s3.create_multipart_upload(
        Bucket=BUCKET, Key="big", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT"
    )["UploadId"]
    parts = put_parts(s3, upload, [b"hello"])
    assert status_of(complete, s3, upload, parts, ChecksumCRC32="AAAAAA==")[1] == "BadDigest"
    assert complete(s3, upload, parts)["ChecksumCRC32"] == "NhCmhg=="
    assert s3.get_object(Bucket=BUCKET, Key="big")["Body"].read() == b"hello"


@pytest.mark.parametrize("number", [0, 10001])
def test_a_part_number_is_looked_at_before_the_upload(s3, number):
    assert status_of(
        s3.upload_part, Bucket=BUCKET, Key="k", UploadId="no-such-upload", PartNumber=number, Body=b"x"
    ) == (400, "InvalidArgument")
