"""A shared file system of two users, and mounts of one of them that answer nothing."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Callable, Iterator

import pytest

from hyperpod_kit.storage.preload import run as preloading
from hyperpod_kit.storage.usage import walk as walking
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits
from tests.hostile.users import ATTACKER, VICTIM, place
from tests.support.capabilities import require
from tests.support.wait import slowness


@pytest.fixture
def shared() -> Iterator[Path]:
    with place() as top:
        (top / "fsx").mkdir()
        (top / "fsx").chmod(0o1777)
        (top / "archive").mkdir(mode=0o755)
        yield top


@pytest.fixture
def silent() -> Iterator[Callable[..., None]]:
    """Mounts that answer nothing, as fusermount makes them for a user."""
    require("fuse", "mounts")
    libc, channels, places = ctypes.CDLL(None, use_errno=True), [], []

    def mount(where: Path, regular: bool = False) -> None:
        channel = os.open("/dev/fuse", os.O_RDWR)
        words = (
            f"fd={channel},rootmode={100000 if regular else 40000},user_id={ATTACKER},group_id={ATTACKER},allow_other"
        )
        if libc.mount(b"evil", str(where).encode(), b"fuse.evil", 6, words.encode()):
            os.close(channel)
            raise OSError(ctypes.get_errno(), "mount")
        channels.append(channel)
        places.append(where)

    yield mount
    for channel in channels:
        os.close(channel)
    for where in places:
        libc.umount2(str(where).encode(), 1 | 2)  # MNT_FORCE ends every wait in it, MNT_DETACH takes it away


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer is given up after two seconds, and on a machine that is slow after more of them."""
    monkeypatch.setattr(owner, "_SILENT", {})
    times = slowness()
    patience = OwnerLimits(silence=1.0 * times, longest=5.0 * times)
    monkeypatch.setattr(owner.OwnerLimits, "allowed_silence_seconds", lambda self, moved, worked: 2.0 * times)
    for function in (owner.run_as_owner_in_child_if_root, owner.uid_to_act_as_if_root, owner.run_as_user_in_child):
        monkeypatch.setattr(function, "__defaults__", (patience,))
    monkeypatch.setattr(owner.run_as_user_with_reports, "__defaults__", (patience,))
    monkeypatch.setattr(preloading, "LFS", patience)
    monkeypatch.setattr(walking, "HANG_SECONDS", 2.0 * times)


def data_of_two(shared: Path) -> Path:
    """A directory of root's with one of each user, private to each."""
    data = shared / "fsx" / "data"
    for name, uid in (("mallory", ATTACKER), ("good", VICTIM)):
        (data / name).mkdir(parents=True)
        (data / name / "file").write_bytes(b"x" * 1000)
        for path in (data / name, data / name / "file"):
            os.chown(path, uid, uid)
            path.chmod(0o700 if path.is_dir() else 0o600)
    return data
