import hashlib
import subprocess
import sys
import time

import pytest

from hyperpod_rehearsal.s3.bucket import Conditions
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.objects import Attributes, Checksums
from hyperpod_rehearsal.s3.receive import receive_verified_body_into_blob
from hyperpod_rehearsal.s3.store import StoredBuckets
from rehearsal_tests.s3.conftest import BUCKET


def blob_count(store):
    return len(list((store.root / BUCKET / "blobs").glob("*/*")))


def test_objects_survive_a_restart(store):
    store.put(BUCKET, "a/b", b"one")
    store.put(BUCKET, "a/b", b"two")
    store.put(BUCKET, "é \U0001f600", b"")
    again = StoredBuckets(store.root)
    assert again.get(BUCKET, "a/b") == b"two"
    assert [info.key for info in again.list(BUCKET)] == ["a/b", "é \U0001f600"]
    assert [info.key for info in again.list(BUCKET, "a/")] == ["a/b"]


def test_open_uploads_survive_a_restart(store):
    bucket = store.bucket(BUCKET)
    upload = bucket.uploads.create_upload("k", Attributes({"content-type": "text/plain"}), "crc32", "COMPOSITE")
    bucket.uploads.record_part(upload, 3, receive_verified_body_into_blob(iter([b"part"]), bucket.blobs))
    again = StoredBuckets(store.root).bucket(BUCKET)
    reopened = again.uploads.find_open_upload(upload.upload_id, "k")
    assert reopened.parts[3].segment.size == 4 and reopened.attributes.headers == {"content-type": "text/plain"}
    assert again.blobs.path(reopened.parts[3].segment.blob).read_bytes() == b"part"


def test_replaced_and_deleted_bytes_are_not_kept(store):
    store.put(BUCKET, "k", b"one")
    store.put(BUCKET, "k", b"two")
    assert blob_count(store) == 1
    store.bucket(BUCKET).delete("k")
    store.bucket(BUCKET).delete("k")
    assert blob_count(store) == 0


def test_a_writer_killed_before_its_commit_leaves_nothing_behind(store):
    store.put(BUCKET, "k", b"old")
    bucket = store.bucket(BUCKET)
    receive_verified_body_into_blob(iter([b"new bytes that nobody committed"]), bucket.blobs)
    (store.root / BUCKET / "objects" / "ab").mkdir()
    (store.root / BUCKET / "objects" / "ab" / "x.json.4711.0123456789abcdef.partial").write_text('{"half')
    again = StoredBuckets(store.root)
    assert again.get(BUCKET, "k") == b"old"
    assert blob_count(again) == 1
    assert not list((store.root / BUCKET / "objects").glob("*/*.partial"))


def test_an_open_object_outlives_its_replacement(store):
    store.put(BUCKET, "k", b"old bytes")
    _, ranges = store.bucket(BUCKET).open("k", 4)
    store.put(BUCKET, "k", b"new")
    store.bucket(BUCKET).delete("k")
    with ranges[0].file as file:
        file.seek(ranges[0].offset)
        assert file.read(ranges[0].length) == b"bytes"


def test_a_refused_commit_changes_nothing(store):
    store.put(BUCKET, "k", b"old")
    bucket = store.bucket(BUCKET)
    received = receive_verified_body_into_blob(iter([b"new"]), bucket.blobs)
    with pytest.raises(S3Error) as caught:
        bucket.commit("k", (received.segment,), received.md5, Attributes(), Checksums(), Conditions(if_none_match="*"))
    assert caught.value.status == 412
    assert store.get(BUCKET, "k") == b"old"


def test_bucket_names(store):
    for name in ("ab", "Upper", "under_score", "-x-", "../escape"):
        with pytest.raises(S3Error):
            store.create_bucket(name)
    assert store.bucket_names() == [BUCKET]
    store.delete_bucket(BUCKET)
    assert not store.has_bucket(BUCKET) and not store.exists(BUCKET, "k")


def test_only_an_empty_bucket_can_be_deleted(store):
    store.put(BUCKET, "k", b"")
    with pytest.raises(S3Error) as caught:
        store.delete_bucket(BUCKET)
    assert caught.value.code == "BucketNotEmpty"


WRITER = """
import itertools, pathlib, sys
from hyperpod_rehearsal.s3.store import StoredBuckets
store = StoredBuckets(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
for number in itertools.count():
    store.put("sagemaker-test", f"k{number % 7}", str(number).encode() * 10_000)
    if number % 5 == 0:
        store.bucket("sagemaker-test").delete(f"k{number % 3}")
"""


def test_killing_the_process_never_mixes_two_versions(store):
    for round_number in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(store.root)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.1 + 0.013 * round_number)  # how long it writes, not a wait for anything
            writer.kill()
        again = StoredBuckets(store.root)
        infos = again.list(BUCKET)
        assert infos and len(infos) == blob_count(again)
        for info in infos:
            assert hashlib.md5(again.get(BUCKET, info.key)).hexdigest() == info.etag
