"""Uploading: only what is missing, verified, and never a mixture. Over HTTP, against an endpoint that can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import manifest
from hyperpod_kit.bundle.render import Bundle
from hyperpod_kit.bundle.upload import require_uploaded, upload
from hyperpod_kit.errors import AwsError, BundleError, BundleIntegrityError
from hyperpod_kit.rehearsal.s3.store import StoredBuckets
from tests.support.aws import endpoint

NAME = "sagemaker-hyperpod-kit-demo"


def bundle(**more: bytes) -> Bundle:
    files = {f"lib/{number}.py": b"x" * number for number in range(40)} | more
    listing = manifest.sums(files)
    identity = manifest.bundle_id(listing)
    files |= {manifest.SUMS: listing, manifest.DESCRIPTION: manifest.description("0", identity)}
    return Bundle(identity, NAME, f"hyperpod-kit/demo/{identity}/", files)


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
    done = upload(made, bucket, lambda what, count: steps.update({what: steps.get(what, 0) + count}))
    assert (done.sent, done.present, done.sent_bytes) == (42, 0, made.size)
    assert steps == {"same": 0, "uploaded": 42, "verified": 42}
    again = upload(made, bucket)
    assert (again.sent, again.present, again.sent_bytes) == (0, 42, 0)
    require_uploaded(made, bucket)


def test_only_what_is_missing_or_damaged_is_sent(bucket: Bucket) -> None:
    made = bundle()
    upload(made, bucket)
    bucket.put(made.prefix + "lib/7.py", b"y" * 7)
    bucket.put(made.prefix + "lib/8.py", b"short")
    done = upload(made, bucket)
    assert (done.sent, done.present) == (2, 40)
    assert bucket.sizes(made.prefix)["lib/8.py"] == 8


def test_another_bundle_has_another_place(bucket: Bucket) -> None:
    old, new = bundle(), bundle(extra=b"1")
    upload(old, bucket)
    upload(new, bucket)
    require_uploaded(old, bucket)
    require_uploaded(new, bucket)


def test_a_bundle_that_is_not_there(bucket: Bucket) -> None:
    made = bundle()
    with pytest.raises(BundleError, match="nothing is uploaded") as caught:
        require_uploaded(made, bucket)
    assert caught.value.hint == "hyperpod-kit upload"
    bucket.put(made.prefix + "lib/0.py", b"")
    with pytest.raises(BundleError, match="41 of 42 files are missing"):
        require_uploaded(made, bucket)


def test_a_file_of_the_same_size_that_somebody_else_wrote(bucket: Bucket) -> None:
    """Every node that is made afterwards would run it as root."""
    made = bundle()
    upload(made, bucket)
    bucket.put(made.prefix + "lib/7.py", b"y" * 7)
    assert bucket.sizes(made.prefix)["lib/7.py"] == len(made.files["lib/7.py"])
    with pytest.raises(BundleError, match=r"holds other bytes .* in 1 of 42 files, first lib/7.py"):
        require_uploaded(made, bucket)


def test_the_sums_come_last(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    put = bucket.put
    monkeypatch.setattr(bucket, "put", lambda key, data: (order.append(key.rsplit("/", 1)[1]), put(key, data)))
    upload(bundle(), bucket)
    assert set(order[-2:]) == {"SHA256SUMS", "bundle.json"}


def test_the_file_that_hyperpod_refuses_is_named(bucket: Bucket) -> None:
    made = bundle()
    upload(made, bucket)
    bucket.put(made.prefix + "provisioning_parameters.json", b"{}")
    for refuse in (require_uploaded, upload):
        with pytest.raises(BundleError, match="HyperPod refuses a cluster whose prefix holds it") as caught:
            refuse(made, bucket)
        assert caught.value.hint == f"aws s3 rm {made.source_s3_uri}provisioning_parameters.json"


def test_a_stranger_in_the_prefix(bucket: Bucket) -> None:
    made = bundle()
    bucket.put(made.prefix + "a.txt", b"")
    with pytest.raises(BundleError, match=r"holds 1 file\(s\) that are not of this bundle, first a\.txt"):
        upload(made, bucket)


def test_bytes_that_change_on_the_way_are_noticed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle()
    put = bucket.put
    monkeypatch.setattr(
        bucket, "put", lambda key, data: put(key, b"z" * len(data) if key.endswith("lib/9.py") else data)
    )
    with pytest.raises(BundleIntegrityError, match=r"lib/9\.py is damaged"):
        upload(made, bucket)


def test_a_bucket_that_is_not_there(bucket: Bucket) -> None:
    with pytest.raises(AwsError, match="NoSuchBucket"):
        upload(replace(bundle(), bucket="sagemaker-nothing"), Bucket("sagemaker-nothing", "us-east-1"))
