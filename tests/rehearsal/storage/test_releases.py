"""The same bundle on an older and a newer system: other systemd, other Python, other Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
from driver import Driver, wait_until

WORKER = "storage-worker/0"
SERVED = ("/efs/trainer", "/mnt/files", "/fsx", "/zfs", "/mnt/data")


@pytest.mark.full  # each release builds an image of its own first
@pytest.mark.needs("debian")
@pytest.mark.parametrize(("release", "python"), [("bullseye", "3.9"), ("trixie", "3.13")])
def test_the_bundle_boots_applies_twice_and_repairs_itself(
    release: str, python: str, tmp_path: Path, create_storage: Callable[[Driver, Path], Path]
) -> None:
    driver = Driver(f"test-{release}", tmp_path)
    try:
        driver.kit("rehearse", "up", "--name", driver.name, "--release", release, "--quiet", timeout=600)
        driver.up({})
        config = create_storage(driver, tmp_path)
        assert f"Python {python}." in driver.on(WORKER, "/usr/bin/python3 --version")
        assert driver.data("validate-mounts", str(config))["healthy"]
        assert "changed=0" in driver.on(WORKER, "hyperpod-kit node apply", timeout=180)
        driver.kit("rehearse", "break-mount", "--name", driver.name, "kill-daemon", WORKER, *SERVED)
        wait_until(
            "repair by the timer",
            lambda: driver.data("validate-mounts", str(config), check=False)["healthy"],
            timeout=180,
        )
        driver.on("controller", "timeout 30 srun true", user="trainer")
    finally:
        driver.down()
