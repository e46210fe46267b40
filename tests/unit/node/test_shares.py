"""Groups and their directories: real groupadd and gpasswd on a copy of /etc, real users in a real directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.shares import Group
from hyperpod_kit.node.setup import shares
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from tests.support.capabilities import require

CHECKOUT = Path(__file__).parents[3]
USERS = ("hpkalice", "hpkbob", "hpkcarol")
GID = 39001

pytestmark = pytest.mark.needs("root")


class Place:
    """A root that every user can come to, and a copy of /etc with three users; `node` and `as_user` see both."""

    def __init__(self, directory: Path) -> None:
        self.root, self.etc = directory / "root", directory / "etc"
        self.share = self.root / "fsx" / "vision"
        self.root.mkdir()
        self.etc.mkdir()
        for name in ("passwd", "group", "shadow", "gshadow", "nsswitch.conf", "login.defs", "pam.d"):
            source = Path("/etc") / name
            if source.is_dir():
                shutil.copytree(source, self.etc / name, symlinks=True)
            elif source.exists():
                shutil.copy(source, self.etc / name)
        with open(self.etc / "passwd", "a") as passwd:
            passwd.writelines(
                f"{name}:x:{39010 + n}:{39010 + n}::/nonexistent:/bin/sh\n" for n, name in enumerate(USERS)
            )

    def within(self, *words: str) -> subprocess.CompletedProcess[str]:
        script = 'mount --bind "$1" /etc && shift && exec "$@"'
        argv = ["unshare", "--mount", "bash", "-c", script, "within", str(self.etc), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=CHECKOUT)

    def node(self, *groups: Group) -> List[List[Any]]:
        """What the steps `groups` and `shares` say."""
        text = json.dumps([dataclass_to_json(group) for group in groups])
        done = self.within(sys.executable, "-m", "tests.unit.node.shared_etc", str(self.root), text)
        assert not done.returncode, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def as_user(self, user: str, script: str) -> bool:
        """Whether it worked; with the groups that a login would give."""
        done = self.within("setpriv", f"--reuid={user}", f"--regid={39010 + USERS.index(user)}", "--init-groups",
                           "--", "sh", "-c", f"cd {self.share} && {script}")  # fmt: skip
        return not done.returncode


@pytest.fixture
def place() -> Iterator[Place]:
    require("mounts")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hpk-shares-") as made:
        os.chmod(made, 0o755)
        yield Place(Path(made))


def test_members_write_what_members_change_and_nobody_else_gets_in(place: Place) -> None:
    vision = Group("hpkvision", GID, USERS[:2], ("fsx",))
    place.share = place.root / "fsx" / "hpkvision"
    grouped, shared = place.node(vision)
    assert grouped == ["create hpkvision, members of hpkvision", True, "changed hpkvision", ""]
    assert shared == ["/fsx/hpkvision", True, "made /fsx/hpkvision", ""]
    assert place.node(vision) == [["", False, "", ""], ["", False, "", ""]]
    found = place.share.stat()
    assert (found.st_uid, found.st_gid, oct(found.st_mode)[-4:]) == (0, GID, "2770")

    alice, bob, carol = USERS
    assert place.as_user(alice, "umask 002; echo one >file; mkdir deep; test $(stat -c %G deep) = hpkvision")
    assert place.as_user(
        bob, "echo two >>file && umask 002 && echo x >deep/his && test $(stat -c %G deep/his) = hpkvision"
    )
    assert place.as_user(alice, "umask 022; echo mine >own") and not place.as_user(bob, "echo no >>own")
    for script in ("cat file", "ls .", "touch x"):
        assert not place.as_user(carol, script)
    # Even whoever owns a file in it cannot change who gets in.
    assert not place.as_user(alice, "chmod 777 .") and not place.as_user(alice, f"chgrp {39010} .")

    # Bob is no member any more, and carol is one.
    place.node(Group("hpkvision", GID, (alice, carol), ("fsx",)))
    assert place.as_user(carol, "grep -q two file") and not place.as_user(bob, "cat file")
    # An archive is root's, with every file; and it can be taken back.
    archived = place.node(Group("hpkvision", GID, (), ("fsx",), archived=True))
    assert archived[1][1:] == [True, "made /fsx/hpkvision", ""]
    assert not any(place.as_user(user, "cat file") for user in USERS)
    assert (place.share / "file").read_text() == "one\ntwo\n"
    place.node(vision)
    assert place.as_user(bob, "grep -q one file")


def test_numbers_and_directories_of_others_are_refused(place: Place) -> None:
    (place.root / "fsx" / "hpkvision").mkdir(parents=True)
    os.chown(place.root / "fsx" / "hpkvision", 39010, 39010)
    vision = Group("hpkvision", GID, (), ("fsx",))
    grouped, shared = place.node(vision)
    assert grouped[1] is True
    assert shared[0] == "error" and "already exists, of 39010:39010" in shared[1]
    assert (place.root / "fsx" / "hpkvision").stat().st_uid == 39010
    assert place.node(Group("hpkvision", GID + 1))[0] == [
        "error",
        f"group hpkvision has the id {GID} on this node, expected {GID + 1}",
    ]
    assert place.node(Group("hpkother", GID))[0] == ["error", f"gid {GID} for hpkother already belongs to hpkvision"]


def test_nothing_is_followed_and_nothing_of_roots_with_content_is_given_away(tmp_path: Path) -> None:
    vision = Group("vision", GID, ())
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "vision").symlink_to("elsewhere")
    with pytest.raises(OSError, match="vision"):
        shares.ensure_share_directory(str(tmp_path / "vision"), vision)
    assert (tmp_path / "elsewhere").stat().st_gid == 0
    (tmp_path / "full").mkdir(mode=0o755)
    (tmp_path / "full" / "file").touch()
    with pytest.raises(NodeError, match="already exists, of 0:0 with mode 755"):
        shares.ensure_share_directory(str(tmp_path / "full"), vision)
    assert not shares.is_share_directory_correct(str(tmp_path / "nothing"), vision)


def test_a_bundle_of_an_earlier_release_has_no_groups() -> None:
    config = NodeConfig("demo", "on_create", {}, groups=(Group("vision", GID, ("alice",), ("fsx",)),))
    assert NodeConfig.from_json(config.to_json()) == config
    raw: Dict[str, Any] = json.loads(config.to_json())
    del raw["groups"]
    assert NodeConfig.from_json(json.dumps(raw)).groups == ()
