"""s3:// directly: listed, indexed, read by chunks that are kept in memory and on disk; changed objects are refused."""

from __future__ import annotations

import json
import os
from typing import Any

import boto3
import pytest

from hyperpod_kit.data import DiskCache, ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.reading import chunks, objects
from hyperpod_kit.data.reading.retrying_reader import RetryingFiles
from hyperpod_kit.errors import ChangedFile, DataError, DataUnavailable
from hyperpod_kit.s3.client import S3HttpClient
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support import aws
from tests.unit.checkpoint.test_store_s3 import BOTO3_ALONE


@pytest.fixture
def service(tmp_path):
    return StoredBuckets(tmp_path / "s3")


@pytest.fixture(params=["the kit's client", "boto3"])
def bucket(service, monkeypatch, request):
    """A client of boto3 for what the test puts there."""
    with aws.endpoint(monkeypatch, service):
        if request.param == "boto3":
            monkeypatch.setenv(BOTO3_ALONE, "1")
        objects._client_for_process.cache_clear()
        assert isinstance(objects._cached_client("corpus"), S3HttpClient) is (request.param != "boto3")
        client = boto3.session.Session().client("s3")
        client.create_bucket(Bucket="corpus")
        for part in range(3):
            body = "".join(json.dumps({"n": part * 100 + n, "x": "y" * 50}) + "\n" for n in range(100))
            client.put_object(Bucket="corpus", Key=f"run/a{part}.jsonl", Body=body.encode())
        yield client
        objects._client_for_process.cache_clear()


def test_every_sample_from_a_bucket(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)
    index = build_index(["s3://corpus/run"], str(tmp_path / "index")).index
    data = IndexedDataset(index, transform=lambda sample: sample["n"])
    found = [one for batch in ElasticLoader(data, 7, last="repeat", epochs=1, collate_fn=list) for one in batch]
    assert len(found) == 301 and sorted(set(found)) == list(range(300))
    assert build_index(["s3://corpus/run"], str(tmp_path / "index")).read == 0
    assert build_index(["s3://corpus/run/*1.jsonl"], str(tmp_path / "one")).index.samples == 100
    assert build_index(["s3://corpus/run/a2.jsonl"], str(tmp_path / "two")).index.samples == 100


def chunks_of(data: IndexedDataset) -> Any:
    assert data._files._chunks is not None
    return data._files._chunks


def test_chunks_come_from_the_disk_the_second_time(bucket, tmp_path):
    index = build_index(["s3://corpus/run"], str(tmp_path / "index")).index
    cache = DiskCache(str(tmp_path / "cache"), floor=0)
    first = IndexedDataset(index, cache=cache)
    assert first[5]["n"] == 5 and chunks_of(first).fetched > 0
    second = IndexedDataset(index, cache=cache)
    assert second[6]["n"] == 6 and chunks_of(second).fetched == 0
    (path,) = (os.path.join(at, name) for at, _, names in os.walk(cache.folder) for name in names)
    with open(path, "r+b") as stream:
        stream.write(b"damaged")
    third = IndexedDataset(index, cache=cache)
    assert third[6]["n"] == 6 and chunks_of(third).fetched > 0


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path):
    cache = DiskCache(str(tmp_path / "cache"), floor=1 << 60)
    cache.put("a", b"data")
    assert cache.get("a", 4) is None


def test_an_object_that_was_written_anew_is_refused(bucket, tmp_path):
    index = build_index(["s3://corpus/run"], str(tmp_path / "index")).index
    bucket.put_object(Bucket="corpus", Key="run/a0.jsonl", Body=b"{}\n")
    with pytest.raises(ChangedFile):
        IndexedDataset(index)[0]
    bucket.delete_object(Bucket="corpus", Key="run/a1.jsonl")
    with pytest.raises(DataUnavailable, match=r"s3://corpus/run/a1\.jsonl"):
        IndexedDataset(index)[100]


def test_an_object_that_was_uploaded_again_is_the_same_one(bucket, tmp_path, monkeypatch):
    index = build_index(["s3://corpus/run"], str(tmp_path / "index")).index
    body = bucket.get_object(Bucket="corpus", Key="run/a0.jsonl")["Body"].read()
    real = objects._nanoseconds
    monkeypatch.setattr(objects, "_nanoseconds", lambda when: real(when) + 3600 * 10**9)  # as if uploaded an hour later
    data = IndexedDataset(index)
    assert data[0]["n"] == 0 and data[1]["n"] == 1
    bucket.put_object(Bucket="corpus", Key="run/a0.jsonl", Body=body.replace(b"1", b"2"))
    with pytest.raises(ChangedFile, match="changed since it was indexed"):
        IndexedDataset(index)[0]


def test_what_a_mount_is_replaced_by_has_its_bytes(bucket, tmp_path):
    """Another version of a corpus, of as many bytes, is another corpus."""
    folder = tmp_path / "mount"
    folder.mkdir()
    for part in range(3):
        bucket.download_file("corpus", f"run/a{part}.jsonl", str(folder / f"a{part}.jsonl"))
    index = build_index([str(folder)], str(tmp_path / "index")).index
    os.rename(folder, tmp_path / "gone")
    body = bucket.get_object(Bucket="corpus", Key="run/a1.jsonl")["Body"].read()
    bucket.put_object(Bucket="corpus", Key="run/a1.jsonl", Body=body.replace(b"1", b"2"))
    files = RetryingFiles(0.0, {str(folder): "s3://corpus/run"})
    assert len(files.read(index.file(0), 0, 10)) == 10
    with pytest.raises(DataUnavailable, match="its bytes differ from those that were indexed"):
        files.read(index.file(1), 0, 10)


def test_a_mount_that_is_gone_is_read_from_its_bucket(bucket, tmp_path):
    folder = tmp_path / "mount"
    folder.mkdir()
    for part in range(3):
        bucket.download_file("corpus", f"run/a{part}.jsonl", str(folder / f"a{part}.jsonl"))
    index = build_index([str(folder)], str(tmp_path / "index")).index
    os.rename(folder, tmp_path / "gone")
    files = RetryingFiles(0.0, {str(folder): "s3://corpus/run"})
    assert json.loads(files.read(index.file(1), 0, 200).splitlines()[0])["n"] == 100
    pid = os.fork()  # as of a worker, which has none of the threads that fetch
    if not pid:
        os._exit(0 if files.read(index.file(1), 0, 10) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_what_is_no_address_is_said(bucket, tmp_path):
    with pytest.raises(DataError, match="names no bucket"):
        build_index(["s3://"], str(tmp_path / "index"))
    with pytest.raises(DataError, match="no such file or directory"):
        build_index(["s3://corpus/none"], str(tmp_path / "index"))
