"""Every storage that the engine knows, empty and ready to be filled."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.memory import MemoryStore
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore
from hyperpod_kit.checkpoint.repository.store.s3 import S3Store
from hyperpod_kit.untrusted import by_descriptor

_HERE: Mapping[str, Callable[[str], Store]] = {
    "memory": MemoryStore,
    "posix": PosixStore,
    "restricted": RestrictedStore,
}
NAMES = (*_HERE, "s3")
_number = itertools.count()


def reason_unavailable(name: str) -> str | None:
    """Return why a backend cannot be tortured here, None when it can."""
    if name == "s3" and importlib.util.find_spec("moto") is None:
        return "moto is not installed"
    return None


@contextlib.contextmanager
def open_store_factory(name: str, path: Path) -> Iterator[Callable[[], Store]]:
    """Yield a function that makes an empty store of this kind; one of files is always at `path`."""
    if name in _HERE:

        def local() -> Store:
            by_descriptor.remove_tree(path, ignore_errors=True)
            by_descriptor.make_directory(path)
            return _HERE[name](str(path))

        yield local
        return
    with _temporary_environment(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION="us-east-1"):
        import boto3
        from moto import mock_aws

        with mock_aws(), serialize_moto_requests():
            client = boto3.client("s3")
            client.create_bucket(Bucket="torture")
            yield lambda: S3Store(f"s3://torture/{next(_number)}", client)


@contextlib.contextmanager
def serialize_moto_requests() -> Iterator[None]:
    """Patch moto so that it answers a request before it looks at the next one.

    moto looks whether an object exists and creates it in two steps. Where threads send `If-None-Match: *` for
    one name at the same time, two of them may create it, which S3 never allows.
    """
    from moto.core.botocore_stubber import BotocoreStubber

    lock = threading.RLock()
    process_request = BotocoreStubber.process_request

    def process_alone(stubber: BotocoreStubber, request: Any) -> Any:
        with lock:
            return process_request(stubber, request)

    with mock.patch.object(BotocoreStubber, "process_request", process_alone):
        yield


@contextlib.contextmanager
def _temporary_environment(**values: str) -> Iterator[None]:
    """Set environment variables of this process until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
