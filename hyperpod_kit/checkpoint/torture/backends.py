"""Every storage that the engine knows, empty and ready to be filled."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store

NAMES = ("memory", "posix", "restricted", "s3")
_number = itertools.count()


def missing(name: str) -> str | None:
    """Why a backend cannot be tortured here; None when it can."""
    module = f"hyperpod_kit.checkpoint.repository.store.{name}"
    if importlib.util.find_spec(module) is None:
        return "this version of the engine has no such store"
    if name == "s3" and importlib.util.find_spec("moto") is None:
        return "moto is not installed"
    return None


@contextlib.contextmanager
def maker(name: str, path: Path) -> Iterator[Callable[[], Store]]:
    """A function that makes an empty store of this kind; one of files is always at `path`."""
    if name != "s3":
        module = importlib.import_module(f"hyperpod_kit.checkpoint.repository.store.{name}")
        kind: Callable[[str], Store] = getattr(module, f"{name.capitalize()}Store")

        def local() -> Store:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            return kind(str(path))

        yield local
        return
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    with mock.patch.dict(os.environ, keys):
        import boto3
        from moto import mock_aws

        with mock_aws():
            boto3.client("s3").create_bucket(Bucket="torture")
            yield lambda: open_store(f"s3://torture/{next(_number)}")
