"""Uploading: only what is missing, verified, and never a mixture. Over HTTP, against an endpoint that can fail."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import archive
from hyperpod_kit.bundle.render import Bundle, assemble_bundle
from hyperpod_kit.bundle.stored import compare_with_stored
from hyperpod_kit.bundle.upload import list_paths_to_upload, require_uploaded, upload_bundle
from hyperpod_kit.errors import AwsError, BundleError, BundleIntegrityError
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import endpoint
from tests.support.rows import share

NAME = "sagemaker-hyperpod-kit-demo"


def bundle(**more: bytes) -> Bundle:
    files = {f"slurm/{number}.h": b"x" * number for number in range(40)} | more
    files |= {f"lib/{number}.py": b"x" * number for number in range(300)}
    return assemble_bundle(files, "0", NAME, "hyperpod-kit/demo/")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredBuckets]:
    made = StoredBuckets(tmp_path / "s3")
    made.create_bucket(NAME)
    with endpoint(monkeypatch, made):
        yield made


@pytest.fixture
def bucket(store: StoredBuckets) -> Bucket:
    return Bucket(NAME, "us-east-1", connections=16)


def test_everything_is_sent_once(bucket: Bucket) -> None:
    made = bundle()
    steps: dict[str, int] = {}
    done = upload_bundle(made, bucket, lambda what, count: steps.update({what: steps.get(what, 0) + count}))
    assert (done.sent, done.present, done.sent_bytes) == (44, 0, made.size)
    assert steps == {"same": 0, "uploaded": 44, "verified": 44}
    again = upload_bundle(made, bucket)
    assert (again.sent, again.present, again.sent_bytes) == (0, 44, 0)
    require_uploaded(made, bucket)


def test_only_what_is_missing_or_damaged_is_sent(bucket: Bucket) -> None:
    made = bundle()
    upload_bundle(made, bucket)
    bucket.put(made.prefix + "slurm/7.h", b"y" * 7)
    bucket.put(made.prefix + "slurm/8.h", b"short")
    done = upload_bundle(made, bucket)
    assert (done.sent, done.present) == (2, 42)
    assert bucket.sizes_by_relative_key(made.prefix)["slurm/8.h"] == 8


def test_another_bundle_has_another_place(bucket: Bucket) -> None:
    old, new = bundle(), bundle(extra=b"1")
    upload_bundle(old, bucket)
    upload_bundle(new, bucket)
    require_uploaded(old, bucket)
    require_uploaded(new, bucket)


def test_a_bundle_that_is_not_there(bucket: Bucket) -> None:
    made = bundle()
    with pytest.raises(BundleError, match="nothing is uploaded") as caught:
        require_uploaded(made, bucket)
    assert caught.value.hint == "hyperpod-kit upload"
    bucket.put(made.prefix + "slurm/0.h", b"")
    with pytest.raises(BundleError, match="43 of 44 files are missing"):
        require_uploaded(made, bucket)


def test_a_file_of_the_same_size_that_somebody_else_wrote(bucket: Bucket) -> None:
    """Every node that is made afterwards would run it as root."""
    made = bundle()
    upload_bundle(made, bucket)
    bucket.put(made.prefix + "slurm/7.h", b"y" * 7)
    assert bucket.sizes_by_relative_key(made.prefix)["slurm/7.h"] == len(made.files["slurm/7.h"])
    with pytest.raises(BundleError, match=r"differs from .* in 1 of 44 files, first slurm/7.h"):
        require_uploaded(made, bucket)


def test_the_sums_come_last(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    put = bucket.put
    monkeypatch.setattr(bucket, "put", lambda key, data: (order.append(key.rsplit("/", 1)[1]), put(key, data)))
    upload_bundle(bundle(), bucket)
    assert set(order[-2:]) == {"SHA256SUMS", "bundle.json"}


def test_the_file_that_hyperpod_refuses_is_named(bucket: Bucket) -> None:
    made = bundle()
    upload_bundle(made, bucket)
    bucket.put(made.prefix + "provisioning_parameters.json", b"{}")
    for refuse in (require_uploaded, upload_bundle):
        with pytest.raises(BundleError, match="HyperPod refuses a cluster whose prefix holds it") as caught:
            refuse(made, bucket)
        assert caught.value.hint == f"aws s3 rm {made.source_s3_uri}provisioning_parameters.json"


def test_a_stranger_in_the_prefix(bucket: Bucket) -> None:
    made = bundle()
    bucket.put(made.prefix + "a.txt", b"")
    with pytest.raises(BundleError, match=r"holds 1 file\(s\) that are not part of this bundle, first a\.txt"):
        upload_bundle(made, bucket)


def test_bytes_that_change_on_the_way_are_noticed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle()
    put = bucket.put
    monkeypatch.setattr(
        bucket, "put", lambda key, data: put(key, b"z" * len(data) if key.endswith("slurm/9.h") else data)
    )
    with pytest.raises(BundleIntegrityError, match=r"slurm/9\.h is damaged"):
        upload_bundle(made, bucket)


def test_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    with pytest.raises(AwsError, match="NoSuchBucket"):
        upload_bundle(replace(bundle(), bucket="sagemaker-nothing"), Bucket("sagemaker-nothing", "us-east-1"))


@pytest.fixture
def requests(bucket: Bucket) -> Counter[str]:
    """Operation of S3 -> how often it was sent."""
    sent: Counter[str] = Counter()

    def count(event_name: str, **_: Any) -> None:
        sent[event_name.rsplit(".", 1)[1]] += 1

    bucket._client.meta.events.register("before-send.s3", count)
    return sent


def test_nothing_is_read_back(bucket: Bucket, requests: Counter[str]) -> None:
    """340 files are 44 objects, and S3 tells the digest of each without sending it."""
    made = bundle()
    upload_bundle(made, bucket)
    assert requests == {"ListObjectsV2": 1, "PutObject": 44}
    for again in (upload_bundle, require_uploaded, compare_with_stored):
        requests.clear()
        again(made, bucket)
        assert requests == {"ListObjectsV2": 1, "HeadObject": 44}


def test_an_endpoint_that_answers_a_put_without_checksum_is_asked_for_it(
    bucket: Bucket, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundle()
    put = bucket.put

    def put_without_checksum_in_answer(key: str, data: bytes) -> None:
        put(key, data)

    monkeypatch.setattr(bucket, "put", put_without_checksum_in_answer)
    upload_bundle(made, bucket)
    assert requests == {"ListObjectsV2": 1, "PutObject": 44, "HeadObject": 44}


def test_an_object_without_a_digest_is_read(bucket: Bucket, requests: Counter[str]) -> None:
    """As other programs leave it."""
    made = bundle()
    upload_bundle(made, bucket)
    place = "slurm/7.h"
    bucket._client.put_object(Bucket=NAME, Key=made.prefix + place, Body=made.files[place], ChecksumAlgorithm="CRC32")
    requests.clear()
    require_uploaded(made, bucket)
    assert requests["GetObject"] == 1
    bucket._client.put_object(Bucket=NAME, Key=made.prefix + place, Body=b"y" * 7, ChecksumAlgorithm="CRC32")
    with pytest.raises(BundleError, match=r"in 1 of 44 files, first slurm/7\.h"):
        require_uploaded(made, bucket)


OLDER = {"lib/older.py": b"print()\n"}
SPOILT = {
    "a bit": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "truncated": lambda data: data[:-1],
    "empty": lambda data: b"",
    "a tail": lambda data: data + b"x",
    "older": lambda data: bundle(**OLDER).files["lib.tar.gz"],
    "no archive": lambda data: b"<html>not found</html>",
}


@pytest.mark.parametrize("what", share(SPOILT, 3))
def test_another_archive_is_named_and_replaced(what: str, bucket: Bucket) -> None:
    made = bundle()
    upload_bundle(made, bucket)
    bucket.put(made.prefix + "lib.tar.gz", SPOILT[what](made.files["lib.tar.gz"]))
    with pytest.raises(BundleError, match=r"in 1 of 44 files, first lib\.tar\.gz"):
        require_uploaded(made, bucket)
    difference = compare_with_stored(made, bucket)
    assert difference is not None and difference.changed == ("lib.tar.gz",) and len(difference) == 1
    assert list_paths_to_upload(made, bucket) == ["lib.tar.gz"]
    assert upload_bundle(made, bucket).sent == 1
    assert bucket.get(made.prefix + "lib.tar.gz") == made.files["lib.tar.gz"]


def test_objects_that_changed_places_are_both_named(bucket: Bucket) -> None:
    made = bundle(**{"units/one": b"1", "units/two": b"2"})
    upload_bundle(made, bucket)
    bucket.put(made.prefix + "units/one", b"2")
    bucket.put(made.prefix + "units/two", b"1")
    assert list_paths_to_upload(made, bucket) == ["units/one", "units/two"]


def test_the_same_archive_from_another_machine_stays(bucket: Bucket) -> None:
    """Its zlib compresses otherwise; a node that downloads it meanwhile must not see two of them."""
    made = bundle()
    other = gzip.compress(archive.gunzip_tar(made.files["lib.tar.gz"]), 1, mtime=5)
    upload_bundle(replace(made, files={**made.files, "lib.tar.gz": other}), bucket)
    require_uploaded(made, bucket)
    assert (
        upload_bundle(made, bucket).sent == 0
        and compare_with_stored(made, bucket) is not None
        and not compare_with_stored(made, bucket)
    )
    assert bucket.get(made.prefix + "lib.tar.gz") == other
