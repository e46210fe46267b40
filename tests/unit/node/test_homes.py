"""Private parents, links and first files of homes, on real directories with real owners."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.node_config import User
from hyperpod_kit.node.mounts import homes
from hyperpod_kit.node.packets import packet_rules
from hyperpod_kit.node.setup import users
from hyperpod_kit.run import LocalRunner

ALICE, BOB = User("alice", 2001, 2001), User("bob", 2002, 2002)
FILE_SYSTEM = "fs-0123456789abcdef0"

pytestmark = pytest.mark.needs("root")


def home_of(user: User) -> EfsMount:
    return EfsMount(
        f"home-{user.name}",
        f"/home/.homes/{user.name}/home",
        FILE_SYSTEM,
        "fsap-0123456789abcdef0",
        iam=True,
        owner=user.name,
    )


@pytest.fixture
def fake(make_node: Any) -> Any:
    made = make_node([home_of(ALICE), home_of(BOB)], (ALICE, BOB))
    made.root.chmod(0o755)
    real = LocalRunner()
    # What looks into directories and copies files is the real thing.
    for program in ("find", "cp", "chown"):
        answer = made.runner.answers
        answer[program] = lambda argv: ((done := real.run(argv, check=False)).returncode, done.stdout)
    (made.root / "usr/sbin").mkdir(parents=True)
    (made.root / "usr/sbin/nft").touch()
    made.runner.on(
        "nft --numeric list",
        out="\n".join(packet_rules.nft_table(packet_rules.expected_rules(made.node)).splitlines()[2:]),
    )
    return made


def modes(path: Path) -> tuple[int, int, str]:
    found = path.lstat()
    return found.st_uid, found.st_gid, oct(stat.S_IMODE(found.st_mode))


def mount(fake: Any, user: User) -> Path:
    """What a mounted access point looks like: a directory of the user's."""
    homes.set_packet_rules_and_make_mount_point(fake.node, home_of(user))
    point: Path = fake.root / f"home/.homes/{user.name}/home"
    os.chown(point, user.uid, user.gid)
    fake.mounted(home_of(user).path, "nfs4", "127.0.0.1:/")
    return point


def test_the_mount_point_is_made_inside_a_private_parent(fake: Any) -> None:
    old = os.umask(0)
    try:
        homes.set_packet_rules_and_make_mount_point(fake.node, home_of(ALICE))
    finally:
        os.umask(old)
    base = fake.root / "home/.homes"
    assert modes(base) == (0, 0, "0o711")
    assert modes(base / "alice") == (0, 2001, "0o710")
    assert modes(base / "alice/home") == (0, 0, "0o700"), "nobody writes there while nothing is mounted"


def test_only_the_owner_passes(fake: Any) -> None:
    point = mount(fake, ALICE)
    point.chmod(0o777)  # what an access point amounts to: the server lets everyone do everything as alice
    (point / "secret").write_text("x")

    def read(user: User) -> int:
        # From within the root: pytest's own directories above it let nobody in.
        return subprocess.run(
            ["cat", str(point.relative_to(fake.root) / "secret")],
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            capture_output=True,
            cwd=fake.root,
            timeout=20,
        ).returncode

    assert read(ALICE) == 0 and read(BOB) != 0
    fake.root.joinpath("home/.homes/alice").chmod(0o755)
    assert read(BOB) == 0, "the private parent is what keeps him out"
    assert not homes.has_private_parent(fake.node, home_of(ALICE))
    assert homes.ensure_private_parent(fake.node, home_of(ALICE))
    assert not homes.ensure_private_parent(fake.node, home_of(ALICE))
    assert read(BOB) != 0


def test_a_home_gets_its_link_and_its_first_files_once(fake: Any) -> None:
    point = mount(fake, ALICE)
    mount(fake, BOB)
    (fake.root / "etc/skel").mkdir(parents=True)
    (fake.root / "etc/skel/.bashrc").write_text("PS1=\n")
    assert homes.describe_pending_changes(fake.node) == "link /home/alice, link /home/bob"
    assert homes.ensure_homes(fake.node) == ["alice: link, first files", "bob: link, first files"]
    assert os.readlink(fake.root / "home/alice") == ".homes/alice/home"
    assert (fake.root / "home/alice/.bashrc").read_text() == "PS1=\n"
    (point / ".bashrc").write_text("mine\n")
    assert homes.ensure_homes(fake.node) == [] and homes.describe_pending_changes(fake.node) == ""
    assert (point / ".bashrc").read_text() == "mine\n"


def test_a_home_that_is_not_mounted_gets_no_files_beneath(fake: Any) -> None:
    (fake.root / "etc/skel").mkdir(parents=True)
    (fake.root / "etc/skel/.bashrc").write_text("PS1=\n")
    assert homes.ensure_homes(fake.node) == ["alice: private parent, link", "bob: private parent, link"]
    assert not (fake.root / "home/.homes/alice/home").exists()


def test_files_of_an_older_home_are_not_hidden(fake: Any) -> None:
    (fake.root / "home/alice").mkdir(parents=True)
    (fake.root / "home/alice/thesis.tex").write_text("x")
    (fake.root / "home/bob").mkdir()
    with pytest.raises(NodeError, match="/home/alice already exists") as caught:
        homes.ensure_homes(fake.node)
    assert "bob" not in caught.value.message and os.path.islink(fake.root / "home/bob")
    assert (fake.root / "home/alice/thesis.tex").exists()


def test_a_link_in_place_of_a_private_parent_is_refused(fake: Any) -> None:
    (fake.root / "home/.homes").mkdir(parents=True)
    (fake.root / "home/.homes/alice").symlink_to("/tmp")
    with pytest.raises(NodeError, match="must be a directory"):
        homes.ensure_private_parent(fake.node, home_of(ALICE))
    assert not homes.has_private_parent(fake.node, home_of(ALICE))


def test_the_account_names_the_link_and_makes_no_home_of_its_own(fake: Any) -> None:
    fake.runner.on("getent", code=2)
    assert users.create_user_or_correct_home(fake.node, ALICE)
    assert users.create_user_or_correct_home(fake.node, User("carol", 2003, 2003))
    added = [call for call in fake.runner.calls if call.startswith("useradd")]
    assert "--no-create-home --home-dir /home/alice" in added[0]
    assert "--create-home" in added[1] and "--home-dir" not in added[1]


def test_an_account_with_another_home_is_moved(fake: Any) -> None:
    fake.runner.on("getent passwd alice", out="alice:x:2001:2001::/var/alice:/bin/bash\n")
    assert users.create_user_or_correct_home(fake.node, ALICE)
    assert fake.runner.calls[-1] == "usermod --home /home/alice alice"
    fake.runner.on("getent passwd alice", out="alice:x:2001:2001::/home/alice:/bin/bash\n")
    assert not users.create_user_or_correct_home(fake.node, ALICE)


def test_an_owner_that_nobody_knows(make_node: Any, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "node", ignore_errors=True)
    with pytest.raises(NodeError, match="its owner alice is not a user"):
        homes.ensure_private_parent(make_node([home_of(ALICE)], (BOB,)).node, home_of(ALICE))
