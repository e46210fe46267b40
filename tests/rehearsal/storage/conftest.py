"""A cluster with one mount of every kind, for faults and reboots; shared by the tests of this directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from driver import CONFIG, Driver

EVERY_KIND: List[Dict[str, Any]] = [
    {"kind": "efs", "name": "home", "path": "/efs/trainer", "file_system_id": "fs-0123456789abcdef0",
     "access_point_id": "fsap-0123456789abcdef0"},
    {"kind": "s3files", "name": "files", "path": "/mnt/files", "file_system_id": "fs-0aaaabbbbccccdddd",
     "access_point_id": "fsap-0aaaabbbbccccdddd"},
    {"kind": "openzfs", "name": "zfs", "path": "/zfs", "dns_name": "fs-0123456789fedcba0.fsx.us-east-1.amazonaws.com"},
    {"kind": "mountpoint-s3", "name": "data", "path": "/mnt/data", "bucket": "sagemaker-hyperpod-kit-data",
     "prefix": "corpus/", "read_only": False},
    {"kind": "nvme", "name": "scratch", "path": "/scratch", "roles": ["compute"]},
]
"""One mount of each kind; the example's keys of AWS's own bring Lustre at /fsx."""


def storage_config(directory: Path, name: str = "storage") -> Path:
    """A configuration of one controller and one worker that carry every kind of mount, watched closely.

    Its groups bear its name: nodes of another cluster in the same rehearsal are never meant.
    """
    values = json.loads(CONFIG.read_text())
    own = values["hyperpod_kit"]
    values["controller_group"] = f"{name}-controller"
    values["worker_groups"][0]["instance_group_name"] = f"{name}-worker"
    controller, worker = own["cluster"]["instance_groups"]
    own["cluster"]["name"] = name
    controller["name"] = f"{name}-controller"
    worker.update(name=f"{name}-worker", instance_type="ml.g5.xlarge", count=1)
    own["bundle"]["prefix"] = f"{name}/"
    own["mounts"] = EVERY_KIND
    own["health"] = {"interval": 5, "deadline": 2}
    path = directory / "provisioning_parameters.json"
    path.write_text(json.dumps(values))
    return path


def create(driver: Driver, config: Path) -> None:
    """Upload a configuration's bundle and create its cluster."""
    driver.config = config
    driver.kit("upload", str(config))
    driver.kit("create-cluster", str(config), "--wait", "--interval", "1", "--timeout", "200")


@pytest.fixture(scope="session")
def create_storage() -> Callable[[Driver, Path], Path]:
    """create_storage(driver, directory) makes such a cluster and returns its configuration."""
    def make(driver: Driver, directory: Path) -> Path:
        config = storage_config(directory)
        create(driver, config)
        return config

    return make


@pytest.fixture(scope="package")
def storage(endpoint: Driver, tmp_path_factory: pytest.TempPathFactory,
            create_storage: Callable[[Driver, Path], Path]) -> Iterator[Driver]:
    """A small cluster with every kind of mount, beside the others in the same rehearsal."""
    driver = Driver(endpoint.name, endpoint.logs, environment=endpoint.environment)
    config = create_storage(driver, tmp_path_factory.mktemp("storage"))
    yield driver
    driver.kit("delete-cluster", str(config), "--yes", "--wait", "--interval", "1", check=False)
