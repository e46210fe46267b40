"""A btrfs file system in a file, where this machine can have one; an account on moto."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

import pytest
from moto import mock_aws

from tests.support.aws import as_client
from tests.support.capabilities import require
from tests.support.mail_server import MailServer, mail_server
from tests.unit.checkpoint.conftest import capture

__all__ = ["capture"]


@pytest.fixture
def btrfs() -> Iterator[Path]:
    """Mounted on a loop device, in a place where every user can come to; unmounted at the end."""
    require("mkfs.btrfs", "btrfs")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hpk-btrfs-") as made:
        os.chmod(made, 0o755)
        image, mount = Path(made) / "image", Path(made) / "mnt"
        mount.mkdir()
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True, timeout=60)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True, timeout=60)
        try:
            yield mount
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True, timeout=60)


@pytest.fixture
def shm(btrfs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared memory for `capture`, in a place where every user can come to."""
    place = btrfs.parent / "shm"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv("HPK_SHM_DIR", str(place))
    for name in ("HPK_RESUME_FROM", "HPK_DIGEST", "HPK_FAILPOINT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return place


def subvolume(mount: Path, name: str, uid: int) -> Path:
    """A new one that belongs to a user."""
    place = mount / name
    subprocess.run(["btrfs", "subvolume", "create", str(place)], check=True, capture_output=True, timeout=60)
    os.chown(place, uid, uid)
    return place


@pytest.fixture
def mails() -> Iterator[MailServer]:
    """A server that keeps what it gets."""
    with mail_server() as server:
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    as_client(monkeypatch)
    with mock_aws():
        yield
