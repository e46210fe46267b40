"""A running rehearsal's endpoint."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from hyperpod_rehearsal.credentials.keys import Keys
from hyperpod_rehearsal.efs.service import EfsService
from hyperpod_rehearsal.platform.control_plane import RehearsalControlPlane
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from tests.hostile.endpoint.requests import BUCKET


class Operations:
    """Notes what it is told; no machine is booted."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clusters: dict[str, Any] = {}
        self.told: list[Any] = []

    def changed(self) -> None:
        return

    def run_in_background(self, work, cluster, *more) -> None:
        self.told.append(work)

    bring_up_cluster = "create: boots machines, runs the script as root"


@pytest.fixture
def world(tmp_path):
    """A running rehearsal's endpoint, without machines: (URL, store, operations, keys)."""
    store, operations, keys = StoredBuckets(tmp_path / "s3"), Operations(), Keys.generate()
    store.create_bucket(BUCKET)
    store.put(BUCKET, "bundle/on_create.sh", b"#!/bin/bash\n")
    (tmp_path / "registry.json").write_text('{"file_systems": ["fs-0123456789abcdef0"], "access_points": {}}')
    server = serve(
        [("127.0.0.1", 0)], store, RehearsalControlPlane(cast(Any, operations)), EfsService(tmp_path), keys=keys.by_id()
    )
    yield server.url, store, operations, keys
    server.close()
