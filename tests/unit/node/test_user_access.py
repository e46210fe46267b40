"""What users can write, asked with the numbers of real users in real directories, and of a real file system that hangs.

The node's root is a directory that every user can come to: what they are refused is the directory's own word.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import pytest

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.node_config import HealthPolicy, User
from hyperpod_kit.model.optional_steps import OptionalSteps, Sssd
from hyperpod_kit.model.shares import Group
from hyperpod_kit.node.health.warnings import warning_lines_about_node
from hyperpod_kit.node.observe import user_access
from tests.support.serving_fuse import serving_mount, silence
from tests.support.wait import scaled
from tests.unit.node.fakes import FakeNode, ticked

pytestmark = [pytest.mark.needs("root"), pytest.mark.usefixtures("no_packet_rules")]

CHECKOUT = Path(__file__).parents[3]
UNIT = CHECKOUT / "templates/systemd/health.service.j2"
ANN, BEN = User("ann", 39101, 39101), User("ben", 39102, 39102)
VISION = 39200
LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
BUCKET = S3Mount("out", "/mnt/out", "sagemaker-out", read_only=False)
MakeNode = Callable[..., FakeNode]


@pytest.fixture
def node_of() -> Iterator[MakeNode]:
    """A node below /tmp with these mounts, each a directory of root's with mode 0755."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hpk-users-") as made:
        os.chmod(made, 0o755)

        def make(mounts: Sequence[Mount], users: Sequence[User] = (ANN, BEN), role: str = "compute") -> FakeNode:
            fake = FakeNode(Path(made) / "node", mounts, users, role)
            for mount in mounts:
                place(fake, mount.path)
            return fake

        yield make


def place(fake: FakeNode, path: str, uid: int = 0, gid: int = 0, mode: int = 0o755) -> Path:
    """A directory of the node."""
    made = fake.root / path.lstrip("/")
    made.mkdir(parents=True, exist_ok=True)
    os.chown(made, uid, gid)
    made.chmod(mode)
    return made


def configured(fake: FakeNode, **changes: Any) -> FakeNode:
    fake.node = replace(fake.node, config=replace(fake.node.config, **changes))
    return fake


def refused(fake: FakeNode) -> dict[str, str]:
    return user_access.find_user_refusals(fake.node, fake.node.mounts)


def test_a_bucket_that_only_root_can_write_to_is_named_with_what_to_do(node_of: MakeNode) -> None:
    assert refused(node_of([BUCKET])) == {
        "out": "/mnt/out cannot be written by ann, ben: it is 0:0 with mode 0755; set uid or gid and dir_mode of the "
        "mount in the configuration, then: hyperpod-kit upload"
    }


@pytest.mark.parametrize(
    ("path", "uid", "gid", "mode"),
    [
        ("/fsx", ANN.uid, 0, 0o755),
        ("/fsx", 0, BEN.gid, 0o775),
        ("/fsx", 0, 0, 0o1777),
        ("/fsx/ben", BEN.uid, BEN.gid, 0o700),
        ("/fsx/vision", 0, VISION, 0o2770),
    ],
)
def test_one_user_who_can_write_in_it_or_right_below_is_enough(
    node_of: MakeNode, path: str, uid: int, gid: int, mode: int
) -> None:
    fake = configured(node_of([LUSTRE]), groups=(Group("vision", VISION, ("ann",)),))
    assert "install -d -o USER" in refused(fake)["fsx"]
    made = place(fake, path, uid, gid, mode)
    assert refused(fake) == {}
    assert list(made.iterdir()) == [], "the file of the probe is gone"


def test_a_directory_that_users_cannot_come_to_is_refused_whatever_its_own_mode(node_of: MakeNode) -> None:
    fake = node_of([replace(LUSTRE, path="/closed/fsx")])
    place(fake, "/closed/fsx", mode=0o1777)
    assert refused(fake) == {}
    place(fake, "/closed", mode=0o700)
    assert "/closed/fsx" in refused(fake)["fsx"]


def test_a_share_is_asked_for_its_members_and_a_home_for_its_owner(node_of: MakeNode) -> None:
    home = EfsMount("home-ann", "/home/.homes/ann/home", "fs-0123456789abcdef0", owner="ann")
    fake = configured(node_of([LUSTRE, home]), groups=(Group("vision", VISION, ("ann",), ("fsx",)),))
    place(fake, "/fsx", mode=0o1777)
    place(fake, "/fsx/vision", 0, BEN.gid, 0o2770)
    place(fake, home.path, BEN.uid, BEN.gid, 0o700)
    words = refused(fake)
    assert words["fsx"].startswith(f"/fsx/vision cannot be written by ann: it is 0:{BEN.gid} with mode 2770; ")
    assert words["home-ann"].startswith(
        f"{home.path} cannot be written by ann: it is {BEN.uid}:{BEN.gid} with mode 0700; "
    )
    place(fake, "/fsx/vision", 0, VISION, 0o2770)
    place(fake, home.path, ANN.uid, ANN.gid, 0o700)
    assert refused(fake) == {}


@pytest.mark.parametrize(
    ("mounts", "users", "role"),
    [
        ([replace(BUCKET, read_only=True)], (ANN,), "compute"),
        ([replace(BUCKET, roles=("controller",))], (ANN,), "controller"),
        ([BUCKET], (), "compute"),
        ([BUCKET], tuple(User(f"u{n}", 40000 + n, 40000 + n) for n in range(65)), "compute"),
    ],
    ids=["read-only", "nobody works there", "nobody is known", "more than can be asked"],
)
def test_nothing_is_claimed_where_nobody_is_refused_for_certain(
    node_of: MakeNode, mounts: list[Mount], users: tuple[User, ...], role: str
) -> None:
    assert refused(node_of(mounts, users, role)) == {}


def test_users_of_a_directory_service_are_not_known(node_of: MakeNode) -> None:
    steps = OptionalSteps(sssd=Sssd("ldaps://ldap.example.com", "dc=example,dc=com"))
    assert refused(configured(node_of([BUCKET]), steps=steps)) == {}


def test_of_more_directories_than_are_looked_at_nothing_is_claimed(node_of: MakeNode) -> None:
    fake = node_of([LUSTRE])
    for number in range(user_access.MOST_DIRECTORIES + 1):
        place(fake, f"/fsx/{number}")
    assert refused(fake) == {}


def test_without_users_in_the_configuration_the_accounts_of_people_are_asked_for(node_of: MakeNode) -> None:
    fake = node_of([LUSTRE], users=())
    (fake.root / "etc").mkdir()
    (fake.root / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n"
        "slurm:x:1001:1001::/:/usr/sbin/nologin\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\nhalf a line\n"
    )
    (fake.root / "etc/group").write_text("docker:x:39201:root,ubuntu\nother:x:39202:\n")
    assert refused(fake)["fsx"].startswith("/fsx or a directory in it cannot be written by ubuntu: it is 0:0 ")
    place(fake, "/fsx/data", 0, 39201, 0o775)
    assert refused(fake) == {}


def test_the_health_check_tells_it_once_and_reports_have_it_until_it_is_mended(node_of: MakeNode) -> None:
    fake = node_of([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    first = ticked(fake.node)
    words = first.records["fsx"].users_refused
    assert words in first.messages[0] and first.messages[0].startswith(
        "fsx: /fsx or a directory in it cannot be written by ann"
    )
    assert first.records["fsx"].state == "ok" and first.records["fsx"].is_usable_by_jobs and first.ordered == ()
    assert ticked(fake.node).messages == () and warning_lines_about_node(fake.node) == [words]
    line = json.loads(Path(fake.node.paths.provisioning_log).read_text().splitlines()[-1])
    assert line["warnings"] == [words], "and `validate-mounts --via pull`"
    place(fake, "/fsx/ann", ANN.uid, ANN.gid, 0o700)
    assert ticked(fake.node).records["fsx"].users_refused == words, "not asked again at every check"
    fake.clock.now += 301
    assert ticked(fake.node).messages == ("fsx: users can write there again",)
    assert warning_lines_about_node(fake.node) == [] and list((fake.root / "fsx/ann").iterdir()) == []


def test_the_unit_of_the_timer_may_become_users(node_of: MakeNode) -> None:
    """With its capabilities and no more, the check is what it is without a limit."""
    fake = node_of([BUCKET])
    limits = [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith("CapabilityBound")]
    kept = ",".join(f"+{name.lower()[4:]}" for name in limits[0].split())
    program = (
        "import sys; from pathlib import Path; from tests.unit.node import test_user_access as here; "
        "fake = here.FakeNode(Path(sys.argv[1]), [here.BUCKET], [here.ANN, here.BEN]); print(here.refused(fake))"
    )
    (fake.root / "proc").rename(fake.root / "made")
    words = ["setpriv", f"--bounding-set=-all,{kept}", "--no-new-privs", sys.executable, "-c", program, str(fake.root)]
    done = subprocess.run(words, cwd=CHECKOUT, text=True, stdout=subprocess.PIPE, timeout=120, check=True)
    assert "cannot be written by ann, ben" in done.stdout
    filters = [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith("SystemCallFilter")]
    assert filters[-1] == "@setuid", "what is refused with the privileged calls is let through again"


@pytest.mark.needs("fuse")
def test_what_a_user_mounts_below_a_mount_is_not_asked(node_of: MakeNode) -> None:
    """It may answer nothing, and then the time of all other mounts would be gone."""
    fake = configured(node_of([LUSTRE, BUCKET]), health=HealthPolicy(deadline=scaled(5.0)))
    with serving_mount(place(fake, "/fsx/a")) as daemon:
        silence(daemon)
        assert set(refused(fake)) == {"fsx", "out"}


@pytest.mark.needs("fuse")
def test_a_mount_that_hangs_for_users_gets_no_verdict_and_keeps_no_lock(node_of: MakeNode) -> None:
    """Its child is out of reach of SIGKILL, and what it had of the health check's it would have for ever."""
    fake = configured(node_of([LUSTRE]), health=HealthPolicy(deadline=scaled(1.0)))
    lock = fake.root / "lock"
    with serving_mount(fake.root / "fsx") as daemon:
        os.stat(fake.root / "fsx")
        silence(daemon)
        with lock.open("w") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            assert refused(fake) == {}
        with lock.open("w") as another:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
