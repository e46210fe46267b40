"""A cluster with one mount of every kind, for faults and reboots; shared by the tests of this directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable, Iterator

import pytest
from driver import REPOSITORY, Driver

EXAMPLE = REPOSITORY / "examples/every-mount.json"
"""One controller and one worker with one mount of every kind. Their groups bear the cluster's name: nodes of another
cluster in the same rehearsal are never meant."""


def storage_config(directory: Path) -> Path:
    """The example's configuration, watched closely."""
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["health"] = {"interval": 5, "deadline": 2}
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
def storage(
    endpoint: Driver, tmp_path_factory: pytest.TempPathFactory, create_storage: Callable[[Driver, Path], Path]
) -> Iterator[Driver]:
    """A small cluster with every kind of mount, beside the others in the same rehearsal."""
    driver = Driver(endpoint.name, endpoint.logs, environment=endpoint.environment)
    config = create_storage(driver, tmp_path_factory.mktemp("storage"))
    yield driver
    driver.kit("delete-cluster", str(config), "--yes", "--wait", "--interval", "1", check=False)
