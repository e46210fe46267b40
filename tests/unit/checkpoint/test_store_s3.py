"""S3 by two services that know nothing of each other: moto's, and the one of the rehearsal."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, Iterator, Set, Tuple

import pytest

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

from botocore.exceptions import ConnectionClosedError  # noqa: E402

from hyperpod_kit.checkpoint.repository import selection  # noqa: E402
from hyperpod_kit.checkpoint.repository.format import layout, manifest  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import latest  # noqa: E402
from hyperpod_kit.checkpoint.repository.store import open, s3, s3_upload  # noqa: E402
from hyperpod_kit.checkpoint.repository.store.base import Store, Unsupported  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402
from hyperpod_kit.s3.client import S3HttpClient  # noqa: E402
from hyperpod_lab.torture.failing.backends import serialize_moto_requests  # noqa: E402
from hyperpod_rehearsal.credentials.keys import Key  # noqa: E402
from hyperpod_rehearsal.s3.faults import S3Fault  # noqa: E402
from hyperpod_rehearsal.s3.store import StoredBuckets as Service  # noqa: E402
from hyperpod_rehearsal.server import serve  # noqa: E402
from tests.support.wait import until  # noqa: E402
from tests.unit.checkpoint.small_checkpoint import put_checkpoint  # noqa: E402
from tests.unit.checkpoint.store_contract import ParallelStoreContract, aligned, get, put  # noqa: E402

BUCKET = "sagemaker-test"
PART = 5 * 1024 * 1024
"""The smallest part that S3 takes."""
BOTO3_ALONE = "AWS_METADATA_SERVICE_NUM_ATTEMPTS"
"""A variable with which boto3's client is made, and which changes nothing here."""


def environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", url),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_CONFIG_FILE", "/nonexistent"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_upload, "PART", PART)


class TestMoto(ParallelStoreContract):
    part = PART

    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        environment(monkeypatch, "")
        monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
        with moto.mock_aws(), serialize_moto_requests():
            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            yield s3.S3Store(f"s3://{BUCKET}/runs/llama/", client)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = Service(tmp_path / "s3")
    made.create_bucket(BUCKET)
    return made


@pytest.fixture(params=["the kit's client", "boto3"])
def own(service: Service, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Store]:
    server = serve([("127.0.0.1", 0)], service, keys={"test": Key("test", "secret")})
    environment(monkeypatch, server.url)
    if request.param == "boto3":
        monkeypatch.setenv(BOTO3_ALONE, "1")
    opened = open.open_store(f"s3://{BUCKET}/runs/llama")
    assert isinstance(opened, s3.S3Store)
    assert isinstance(opened._client, S3HttpClient) is (request.param != "boto3")
    yield opened
    server.close()


class TestOwn(ParallelStoreContract):
    part = PART

    @pytest.fixture
    def store(self, own: Store) -> Store:
        return own


def test_names_are_below_the_prefix_and_a_bucket_alone_is_a_root(own: Store, service: Service) -> None:
    own.create("a/x", b"1")
    assert own.url == f"s3://{BUCKET}/runs/llama"
    assert open.open_store(f"s3://{BUCKET}").list() == ["runs/"]
    assert open.open_store(f"s3://{BUCKET}/runs/lla").list() == []
    with pytest.raises(CheckpointError, match="names no bucket"):
        open.open_store("s3://")


def test_more_names_than_one_answer_holds(own: Store, service: Service) -> None:
    for number in range(1005):
        service.put(BUCKET, f"runs/llama/{number:05d}", b"")
    assert own.list() == [f"{number:05d}" for number in range(1005)]
    assert own.list(after="01002") == ["01003", "01004"]


def distinct_requests(service: Service) -> Set[Tuple[str, str, int]]:
    """Method, query and bytes of the requests that were answered."""
    return {
        (entry.method, entry.query, entry.body_bytes) for entry in service.requests.entries() if entry.status == 200
    }


def test_an_attempt_of_a_thousand_files_is_measured_and_deleted_in_two_calls_each(own: Store, service: Service) -> None:
    names = [f"a/{number:05d}" for number in range(1005)]
    for name in names:
        service.put(BUCKET, f"runs/llama/{name}", b"..")
    service.requests.clear()
    assert own.sizes("a") == {name[2:]: 2 for name in names}
    own.delete_all(names)
    assert own.list("a") == []
    # A request is written down once it is answered, and a busy machine may see one that had no answer in time again.
    until(lambda: len(distinct_requests(service)) >= 5, what="five requests")
    requests = distinct_requests(service)
    assert sorted(method for method, _, _ in requests) == ["GET", "GET", "GET", "POST", "POST"], requests


def test_a_service_that_cannot_delete_many_is_asked_for_each(own: Store, service: Service) -> None:
    for name in "abc":
        own.create(name, b".")
    service.faults.add(S3Fault(status=403, method="POST"))
    own.delete_all(list("abc"))
    assert own.list() == [] and own.capabilities.delete


def test_the_newest_of_thousands_takes_three_listings_at_most(own: Store, service: Service) -> None:
    for seq in range(1, 2001):
        service.put(BUCKET, f"runs/llama/{layout.CheckpointId(seq, seq, 1, 'abcd')}/{layout.MANIFEST_FILE}", b"old")
    for epoch, first in ((1, 1), (2, 2001)):
        own.create(layout.epoch_file(epoch), manifest.seal_json({"first_seq": first}))
    newest = put_checkpoint(own, 2001, epoch=2)
    latest.try_write(own, str(layout.CheckpointId(1990, 1990, 1, "abcd")))
    service.requests.clear()
    assert selection.newest_valid(own).checkpoint_id == newest
    listings = [entry for entry in service.requests.entries("GET") if "list-type=2" in entry.query]
    assert 1 <= len(listings) <= 3


def test_a_busy_service_is_asked_again(own: Store, service: Service) -> None:
    service.faults.add(S3Fault(status=503, count=2))
    own.create("x", b"1")
    service.faults.add(S3Fault(status=500, count=2))
    assert own.read("x") == b"1"


def test_errors_are_those_of_a_file_system(own: Store, service: Service) -> None:
    own.create("x", b"1")
    service.faults.add(S3Fault(status=403, count=3))
    for call in (own.read, own.exists, own.open_read):
        with pytest.raises(PermissionError) as caught:
            call("x")
        assert caught.value.filename == f"{own.url}/x"
    service.faults.add(S3Fault(status=500))
    with pytest.raises(OSError, match="InternalError"):
        own.list()


def test_no_permission_to_delete_is_said_once_and_remembered(own: Store, service: Service) -> None:
    own.create("x", b"1")
    service.faults.add(S3Fault(status=403, method="DELETE"))
    assert own.capabilities.delete
    for _ in range(2):
        with pytest.raises(Unsupported):
            own.delete("x")
    assert not own.capabilities.delete and len(service.requests.entries("DELETE")) <= 1


class Loses:
    """A client whose service has done what it was asked, and whose answer never came: boto3 asks once more."""

    def __init__(self, client: Any, call: str) -> None:
        self._client = client
        self._call = call

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)
        if name != self._call:
            return real

        def twice(**arguments: Any) -> Any:
            real(**arguments)
            try:
                return real(**arguments)
            except Exception as err:  # of boto3, or of the client that needs none
                answered: Any = err
                answered.response["ResponseMetadata"]["RetryAttempts"] = 1
                raise

        return twice


@pytest.mark.parametrize("call", ["put_object", "complete_multipart_upload"])
def test_a_lost_answer_does_not_make_our_own_object_somebody_elses(own: Any, call: str) -> None:
    own._client = Loses(own._client, call)
    data = random.Random(5).randbytes(2 * PART + 3)
    if call == "put_object":
        own.create("x", b"ours")
        assert own.read("x") == b"ours"
    else:
        put(own, "y", data, PART)
        assert get(own, "y", PART) == data


def test_two_writers_of_one_object_the_first_to_finish_has_it(own: Store) -> None:
    first, second = own.open_write("x", 2 * PART), own.open_write("x", 2 * PART)
    for writer, fill in ((first, b"1"), (second, b"2")):
        for at in (0, PART):
            writer.write(aligned(fill * PART), at)
    second.finish()
    with pytest.raises(FileExistsError):
        first.finish()
    first.abort()
    assert own.read("x") == b"2" * 2 * PART


def test_an_object_that_changes_under_a_reader_is_an_error(own: Store) -> None:
    own.overwrite_non_atomically("x", b"1" * 100)
    reader = own.open_read("x")
    own.overwrite_non_atomically("x", b"2" * 100)
    with pytest.raises(OSError):
        reader.read_into(memoryview(bytearray(100)), 0)


def test_a_connection_that_breaks_in_the_middle_is_continued(own: Any) -> None:
    own.create("x", bytes(range(200)))
    real = own._client.get_object

    class Breaks:
        def __init__(self, body: Any) -> None:
            self.body = body
            self.reads = 0

        def __enter__(self) -> Breaks:
            return self

        def __exit__(self, *_: object) -> None:
            self.body.close()

        def read(self, amount: int) -> bytes:
            self.reads += 1
            if self.reads > 1:
                raise ConnectionClosedError(endpoint_url="http://x")
            return self.body.read(min(amount, 70))

    reader = own.open_read("x")
    reader._object._client = type(
        "C", (), {"get_object": staticmethod(lambda **kw: {"Body": Breaks(real(**kw)["Body"])})}
    )
    view, done = memoryview(bytearray(200)), 0
    while done < 200:
        done += reader.read_into(view[done:], done)
    assert bytes(view) == bytes(range(200))


def test_parts_grow_with_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_upload.part_size(1) == s3_upload.part_size(160_000 << 20) == 16 << 20
    assert s3_upload.part_size((160_000 << 20) + 1) == 32 << 20
    for size in (10 << 40, 5 << 40, 161_000 << 20):
        assert -(-size // s3_upload.part_size(size)) <= s3_upload.MAX_PARTS
