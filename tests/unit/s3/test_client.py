"""The client of S3, against services that answer as S3 does and as it should not."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Callable, Dict, Iterator, List

import pytest

from hyperpod_kit.checkpoint.repository.store.s3 import S3Store
from hyperpod_kit.s3 import client as client_module
from hyperpod_kit.s3.client import S3HttpClient, S3Refused
from hyperpod_kit.s3.connections import S3Broken
from hyperpod_kit.s3.errors import S3NotConfigured
from hyperpod_kit.system.readable import wait_until_readable
from hyperpod_kit.system.wait import BackOff
from tests.support.http import Responder, served
from tests.support.wait import Deadline

KEYS = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}
LISTING = (
    b"<ListBucketResult><IsTruncated>%s</IsTruncated><Contents><Key>a%%20b</Key>"
    b"<LastModified>2009-10-12T17:50:30.000Z</LastModified></Contents></ListBucketResult>"
)
REFUSED = b"<Error><Code>%s</Code><Message>no</Message></Error>"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAUSES", BackOff(0.001, 0.001))


@contextmanager
def s3(answer: Callable[[Responder, int], None], asked: List[Any], **more: str) -> Iterator[S3HttpClient]:
    """A client of a service that answers its n-th request (from 1) by `answer`."""

    class Service(Responder):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked.append((self.command, self.path, dict(self.headers), self.connection.getpeername()))
            answer(self, len(asked))

        do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    with served(Service) as url:
        yield S3HttpClient({**KEYS, "AWS_ENDPOINT_URL_S3": url, **more}, silence=5.0)


def test_where_requests_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    client = S3HttpClient(KEYS)
    assert client._url("b", "a b/ü", "eu-west-1", {}) == "https://b.s3.eu-west-1.amazonaws.com/a%20b/%C3%BC"
    assert client._url("b.c", "k", "us-east-1", {"x": "1/2"}) == "https://s3.us-east-1.amazonaws.com/b.c/k?x=1%2F2"
    assert client._url("b", "k", "cn-north-1", {}) == "https://b.s3.cn-north-1.amazonaws.com.cn/k"
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/x"}
    with pytest.raises(S3NotConfigured, match="no AWS region"):
        S3HttpClient(nowhere)


def test_a_connection_is_used_again_and_not_by_a_child() -> None:
    asked: List[Any] = []
    with s3(lambda to, number: to.answer(200, LISTING % b"false"), asked) as client:
        for _ in range(3):
            assert client.list_objects_v2("b")["Contents"] == [
                {"Key": "a b", "Size": 0, "LastModified": datetime(2009, 10, 12, 17, 50, 30, tzinfo=timezone.utc)}
            ]
        assert len({entry[3] for entry in asked}) == 1
        child = os.fork()
        if child == 0:
            with_pid = client.list_objects_v2("b")["IsTruncated"]
            os._exit(3 if with_pid is False else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        client.list_objects_v2("b")
    assert len({entry[3] for entry in asked}) == 2 and asked[-1][3] == asked[0][3]


def test_a_bucket_of_another_region_is_asked_there() -> None:
    asked: List[Any] = []

    def answer(to: Responder, number: int) -> None:
        if "/eu-west-3/" in to.headers["authorization"]:
            return to.answer(200, LISTING % b"false")
        to.answer(301, REFUSED % b"PermanentRedirect", x_amz_bucket_region="eu-west-3")

    with s3(answer, asked) as client:
        client.list_objects_v2("b")
        client.list_objects_v2("b")
    assert len(asked) == 3


def test_credentials_that_have_ended_are_asked_for_anew_once(tmp_path: Any) -> None:
    asked: List[Any] = []
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id=old\naws_secret_access_key=s\n")

    def answer(to: Responder, number: int) -> None:
        if "Credential=new/" in to.headers["authorization"]:
            return to.answer(200, LISTING % b"false")
        path.write_text("[default]\naws_access_key_id=new\naws_secret_access_key=s\n" if number == 1 else "")
        to.answer(400, REFUSED % b"ExpiredToken")

    files = {"AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    with s3(answer, asked, **files) as client:
        client.list_objects_v2("b")
    assert len(asked) == 2
    refused = pytest.raises(PermissionError, match="ExpiredToken")
    with s3(lambda to, number: to.answer(400, REFUSED % b"ExpiredToken"), asked) as client, refused:
        S3Store("s3://b/p", client).list()
    assert len(asked) == 4


@pytest.mark.parametrize(
    "body, word",
    [
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "declarations"),
        (b"<ListBucketResult>", "not XML"),
        (b"", "not XML"),
        (LISTING % b"true", "without a continuation token"),
    ],
)
def test_a_listing_that_is_none_is_an_error_and_never_empty(body: bytes, word: str) -> None:
    asked: List[Any] = []
    with s3(lambda to, number: to.answer(200, body), asked) as client, pytest.raises(OSError, match=word):
        S3Store("s3://b/p", client).list()


def test_an_answer_larger_than_any_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 100)
    refused = pytest.raises(OSError, match="more than 100 bytes")
    with s3(lambda to, number: to.answer(200, b"x" * 101), []) as client, refused:
        client.list_objects_v2("b")


def test_answers_that_come_in_chunks() -> None:
    def answer(to: Responder, number: int) -> None:
        body = LISTING % b"false"
        to.send_response(200)
        to.send_header("Transfer-Encoding", "chunked")
        to.end_headers()
        for at in range(0, len(body), 50):
            piece = body[at : at + 50]
            to.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        to.wfile.write(b"0\r\n\r\n")

    asked: List[Any] = []
    with s3(answer, asked) as client:
        assert [client.list_objects_v2("b")["Contents"][0]["Key"] for _ in range(2)] == ["a b", "a b"]
    assert len({entry[3] for entry in asked}) == 1


def test_a_refusal_inside_of_a_success() -> None:
    refused = pytest.raises(S3Refused, match="InternalError")
    with s3(lambda to, number: to.answer(200, REFUSED % b"InternalError"), []) as client, refused:
        client.complete_multipart_upload("b", "k", "u", {"Parts": []})


def test_bytes_that_are_not_those_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    crc: Dict[str, str] = {}
    with s3(lambda to, number: to.answer(200, b"hello", x_amz_checksum_crc32=crc["is"]), []) as client:
        store = S3Store("s3://b/p", client)
        crc["is"] = client_module._base64_crc32(b"hello")
        assert store.read("x") == b"hello"
        crc["is"] = client_module._base64_crc32(b"hallo")
        with pytest.raises(OSError, match="CRC-32"):
            store.read("x")


def test_silence_is_bounded() -> None:
    def answer(to: Responder, number: int) -> None:
        to.close_connection = True
        time.sleep(1.0)

    asked: List[Any] = []
    with s3(answer, asked) as client:
        client._connections._silence, client._tries = 0.2, 2
        deadline = Deadline(60)
        with pytest.raises(TimeoutError):
            S3Store("s3://b/p", client).list()
        assert not deadline.has_passed() and len(asked) == 2


def test_a_connection_that_was_closed_meanwhile_costs_no_try() -> None:
    asked: List[Any] = []

    def answer(to: Responder, number: int) -> None:
        to.answer(200, LISTING % b"false")
        to.close_connection = True  # and the answer has not said so

    with s3(answer, asked) as client:
        client._tries = 1
        for _ in range(3):
            client.list_objects_v2("b")
            [idle] = client._connections._idle.values()
            assert wait_until_readable([idle[0].sock.fileno()], 60)
    assert len({entry[3] for entry in asked}) == 3


def test_when_an_object_was_written() -> None:
    asked: List[Any] = []

    def answer(to: Responder, number: int) -> None:
        time_of_object = "Mon, 12 Oct 2009 17:50:30 GMT"
        if number == 2:
            time_of_object = "yesterday"
        to.answer(200, b"", ETag='"e"', Last_Modified=time_of_object)

    with s3(answer, asked) as client:
        head = client.head_object("b", "k")
        assert head["LastModified"] == datetime(2009, 10, 12, 17, 50, 30, tzinfo=timezone.utc)
        with pytest.raises(S3Broken, match="time 'yesterday'"):
            client.head_object("b", "k")
