"""`node fetch`: a bundle from S3 behind HTTP, into a directory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Callable, Iterator, Mapping

import pytest

from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.errors import HyperpodKitError, NodeError, UsageError
from hyperpod_kit.node.cli import main
from hyperpod_rehearsal.s3.store import StoredBuckets
from tests.support.aws import endpoint

FILES = {"on_create.sh": b"#!/bin/bash\n", "units/a.service": b"[Unit]\n", "lib/a.py": b"in the archive"}
PLACE = "hyperpod-kit/demo/0123456789abcdef/"


def sums(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bytes], None]]:
    """A bundle in S3, of which a test may change an object."""
    store = StoredBuckets(tmp_path / "s3")
    with endpoint(monkeypatch, store):
        store.create_bucket("bundles")
        bucket = Bucket("bundles", "us-east-1")

        def put_object(name: str, data: bytes) -> None:
            bucket.put(PLACE + name, data)

        sent = {name: data for name, data in FILES.items() if not name.startswith("lib/")}
        for name, data in {**sent, "SHA256SUMS": sums(FILES), "lib.tar.gz": b"tar", "bundle.json": b"{}"}.items():
            put_object(name, data)
        yield put_object


def fetched(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_is_listed_comes_and_nothing_else(put: Callable[[str, bytes], None], tmp_path: Path) -> None:
    put("extra", b"not of this bundle")
    target = tmp_path / "new"
    target.mkdir()
    assert main(["fetch", f"s3://bundles/{PLACE}", str(target)]) == 0
    assert set(fetched(target)) == {"on_create.sh", "units/a.service", "SHA256SUMS", "lib.tar.gz", "bundle.json"}
    assert fetched(target)["units/a.service"] == b"[Unit]\n"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("on_create.sh", b"rm -rf /\n", "on_create.sh: expected sha256"),
        ("SHA256SUMS", f"{'0' * 64}  ../etc/passwd\n".encode(), "is not a file of a bundle"),
        ("SHA256SUMS", f"{'0' * 64}  /etc/passwd\n".encode(), "is not a file of a bundle"),
        ("SHA256SUMS", b"\xff\n", "is not a file of a bundle"),
        ("SHA256SUMS", sums({**FILES, "missing": b""}), "NoSuchKey"),
    ],
)
def test_another_bundle_is_refused(
    put: Callable[[str, bytes], None], tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    put(name, data)
    target = tmp_path / "new"
    target.mkdir()
    with pytest.raises(NodeError, match=message):
        main(["fetch", f"s3://bundles/{PLACE}", str(target)])
    assert {path.name for path in tmp_path.iterdir()} <= {"new", "s3"}


def test_what_is_not_there_or_no_place_is_an_error(put: Callable[[str, bytes], None], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        main(["fetch", "/root/bundle", str(tmp_path)])
    with pytest.raises(NodeError, match="NoSuchKey"):
        main(["fetch", "s3://bundles/elsewhere/", str(tmp_path)])


def test_no_answer_is_an_absence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr("hyperpod_kit.s3.client.TRIES", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(HyperpodKitError) as caught:
        main(["fetch", f"s3://bundles/{PLACE}", str(tmp_path)])
    assert caught.value.exit_code == 3
