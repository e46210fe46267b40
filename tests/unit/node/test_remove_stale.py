"""What an earlier configuration left: told by prefix and by our own records, and never taken from under anybody."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.kinds import mount_to_dict
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.node.machine.files import write_json
from hyperpod_kit.node.mounts import remove_stale
from hyperpod_kit.node.mounts.kinds.mount_record import record_current_mount_as_kits
from tests.support.capabilities import require

OLD = EfsMount("old", "/old", "fs-0123456789abcdef0")
UNITS = "etc/systemd/system"


def carrying(make_node: Any, *earlier: Any, now: Any = ()) -> Any:
    """A node that was given `earlier`, with their units, and whose configuration has `now`."""
    fake = make_node(now)
    write_json(fake.node.paths.recorded_mounts, [mount_to_dict(mount) for mount in earlier])
    (fake.root / UNITS).mkdir(parents=True)
    for mount in earlier:
        (fake.root / UNITS / f"hyperpod-kit-mount-{mount.name}.service").write_text("[Unit]\n")
    return fake


def mounted(fake: Any, mount: Any) -> None:
    fake.mounted(mount.path, "nfs4", "127.0.0.1:/")
    record_current_mount_as_kits(fake.node, mount)
    fake.runner.on(f"umount {mount.path}", do=lambda: fake.unmounted(mount.path))


def test_unit_and_mount_go_and_a_second_run_finds_nothing(make_node: Any) -> None:
    fake = carrying(make_node, OLD)
    mounted(fake, OLD)
    assert remove_stale.describe_pending_changes(fake.node) == "unmount /old; remove hyperpod-kit-mount-old.service"
    assert remove_stale.remove_stale_mounts_and_units(fake.node) == (True, [])
    assert not list((fake.root / UNITS).iterdir())
    assert "umount /old" in fake.runner.calls and "systemctl daemon-reload" in fake.runner.calls
    assert not [call for call in fake.runner.calls if "--lazy" in call or " -l" in call]
    before = len(fake.runner.calls)
    assert (
        remove_stale.remove_stale_mounts_and_units(fake.node) == (False, [])
        and remove_stale.describe_pending_changes(fake.node) == ""
    )
    assert len(fake.runner.calls) == before


def test_what_others_made_is_left_alone(make_node: Any) -> None:
    """Units without our prefix, a mount that no record of ours is about, and what HyperPod itself mounts."""
    theirs = LustreMount("fsx", "/fsx", "fs-1.fsx.us-east-1.amazonaws.com", "abcdefgh", platform=True)
    fake = carrying(make_node, OLD, theirs)
    (fake.root / UNITS / "slurmd.service").write_text("[Unit]\n")
    fake.mounted("/old", "nfs4", "127.0.0.1:/")  # somebody else's, at a path that was once ours
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    record_current_mount_as_kits(fake.node, theirs)
    changed, notes = remove_stale.remove_stale_mounts_and_units(fake.node)
    assert changed and notes == []
    assert not [call for call in fake.runner.calls if call.startswith("umount")]
    assert [path.name for path in (fake.root / UNITS).iterdir()] == ["slurmd.service"]


def test_halves_of_files_go_too(make_node: Any) -> None:
    fake = carrying(make_node)
    (fake.root / UNITS / "hyperpod-kit-mount-x.service.4242.partial").write_text("[Un")
    assert remove_stale.remove_stale_mounts_and_units(fake.node)[0]
    assert not list((fake.root / UNITS).iterdir())


@pytest.mark.parametrize(
    "now, same",
    [
        (OLD, True),
        (replace(OLD, required=False, roles=("compute",), groups=("g",)), True),
        (replace(OLD, iam=True), True),  # other options count from the next mount on
        (replace(OLD, path="/new"), False),
        (replace(OLD, name="new"), False),
        (replace(OLD, file_system_id="fs-0123456789abcdef1"), False),
        (replace(OLD, access_point_id="fsap-0123456789abcdef0"), False),
        (S3Mount("old", "/old", "bucket"), False),
    ],
)
def test_what_counts_as_the_same_mount(now: Any, same: bool) -> None:
    assert remove_stale.is_same_ignoring_options(OLD, now) is same


def test_another_bucket_is_the_units_business() -> None:
    mount = S3Mount("data", "/data", "bucket")
    assert remove_stale.is_same_ignoring_options(mount, replace(mount, bucket="other", file_mode="0640"))


def test_a_record_of_another_version_is_no_obstacle(make_node: Any) -> None:
    fake = carrying(make_node, OLD)
    write_json(
        fake.node.paths.recorded_mounts,
        [{"kind": "gluster", "name": "g"}, {"kind": "efs", "shape": 1}, mount_to_dict(OLD)],
    )
    assert remove_stale.recorded_mounts(fake.node) == [OLD]


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mounted"
    path.mkdir()
    require("mounts")
    subprocess.run(["mount", "-t", "tmpfs", "none", str(path)], timeout=20, check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], timeout=20, stderr=subprocess.DEVNULL)


def test_a_real_mount_is_busy_while_somebody_has_a_file_open(tmpfs: Path) -> None:
    with open(tmpfs / "file", "w"):
        assert remove_stale.is_mount_in_use(str(tmpfs))
    # To ask unmounts nothing, however often.
    for _ in range(3):
        assert not remove_stale.is_mount_in_use(str(tmpfs))
    assert os.path.ismount(tmpfs)


def test_a_mount_in_use_stays_with_a_note_and_goes_later(make_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = carrying(make_node, OLD)
    mounted(fake, OLD)
    fake.runner.on("systemctl is-enabled --quiet hyperpod-kit-mount-old.service", 1)
    monkeypatch.setattr(remove_stale, "is_mount_in_use", lambda path: True)
    assert remove_stale.describe_pending_changes(fake.node) == ""
    assert remove_stale.remove_stale_mounts_and_units(fake.node) == (
        False,
        ["/old is in use: it is removed at the next boot"],
    )
    assert "umount /old" not in fake.runner.calls
    assert (fake.root / UNITS / "hyperpod-kit-mount-old.service").exists()
    monkeypatch.setattr(remove_stale, "is_mount_in_use", lambda path: False)
    assert remove_stale.remove_stale_mounts_and_units(fake.node) == (True, [])
    assert not (fake.root / UNITS / "hyperpod-kit-mount-old.service").exists()
