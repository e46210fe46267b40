"""How full the mounts are: seen by the bounded probe, said once up and once down, and no reason to do anything."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.states import MountState
from hyperpod_kit.node.observe import check as observed
from hyperpod_kit.node.observe.probe import Probed
from hyperpod_kit.system import fullness
from tests.unit.node.fakes import ticked
from tests.unit.node.test_check_cycle import TEXTFILE

LUSTRE = LustreMount("fsx", "/fsx", "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "abcdefgh")
S3 = S3Mount("data", "/mnt/data", "sagemaker-data", "corpus/")
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("no_packet_rules", "full_at_80")


@contextmanager
def disk(place: Path, *options: str) -> Iterator[None]:
    """A file system of 20 MiB, or what the kernel makes of that."""
    words = ",".join(["size=20m", *options])
    subprocess.run(["mount", "-t", "tmpfs", "-o", words, "tmpfs", str(place)], timeout=20, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=20)


def test_it_goes_up_at_80_and_down_below_75() -> None:
    went = [0.5, 0.799, 0.8, 0.79, 0.75, 0.749, 0.79, 0.8, 1.0]
    was, seen = False, []
    for share in went:
        was = fullness.is_nearly_full(share, was)
        seen.append(was)
    assert seen == [False, False, True, True, True, False, False, True, True]


@pytest.mark.needs("mounts")
def test_it_is_said_once_and_keeps_nothing_from_anybody(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    ballast = fake.root / "fsx" / "ballast"
    with disk(fake.root / "fsx"):
        assert ticked(fake.node).messages == ()
        ballast.write_bytes(bytes(17 * MIB))
        up = ticked(fake.node)
        assert up.messages == ("fsx: nearly full: 85 % full",) and up.ordered == ()
        record = up.records["fsx"]
        assert record.is_usable_by_jobs and record.state == "ok" and not record.failures and record.nearly_full
        assert ticked(fake.node).messages == ()
        ballast.write_bytes(bytes(int(15.5 * MIB)))
        assert ticked(fake.node).messages == ()
        text = (fake.root / TEXTFILE).read_text()
        labels = '{mount="fsx",kind="lustre",path="/fsx",required="true"}'
        assert f"hyperpod_kit_mount_nearly_full{labels} 1" in text
        assert f"hyperpod_kit_mount_used_bytes{labels} {int(15.5 * MIB)}" in text
        assert f"hyperpod_kit_mount_free_bytes{labels} {int(4.5 * MIB)}" in text
        # A look by hand knows what the timer knows.
        (by_hand,) = observed.check_mounts(fake.node, [LUSTRE], nearly_full={"fsx"})
        assert by_hand.nearly_full and not observed.check_mount(fake.node, LUSTRE).nearly_full
        ballast.write_bytes(bytes(14 * MIB))
        assert ticked(fake.node).messages == ("fsx: no longer nearly full: 70 % full",)
    lines = [json.loads(line) for line in Path(fake.node.paths.provisioning_log).read_text().splitlines()]
    told = [line["mounts"][0] for line in lines if line["step"] == "mounts"]
    assert [one.get("nearly_full", False) for one in told] == [False, True, False]
    assert all(line["status"] == "ok" for line in lines if line["step"] == "mounts")


@pytest.mark.needs("mounts")
def test_files_count_too(make_node: Any) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    with disk(fake.root / "fsx", "nr_inodes=11"):
        for number in range(9):
            (fake.root / "fsx" / str(number)).touch()
        found = observed.check_mount(fake.node, LUSTRE)
    assert (found.used_files, found.free_files) == (10, 1)
    assert found.nearly_full and found.fullness_text == "90 % full"


def test_what_could_not_be_asked_stays_what_it_was_and_a_bucket_tells_nothing(
    make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_node([LUSTRE])
    fake.mounted("/fsx", "lustre", "10.1.0.1@tcp:/abcdefgh")
    monkeypatch.setattr(observed, "probe_all", lambda targets, deadline, name: [Probed("no_answer")])
    (fsx,) = observed.check_mounts(fake.node, [LUSTRE], nearly_full={"fsx"})
    assert fsx.nearly_full and fsx.fullness_text == "" and fsx.used_share == 0.0
    seen = Probed("answered", size=100, available=1, inodes=10, available_inodes=1)
    data = observed.with_capacity(MountStatus("data", "mountpoint-s3", "/mnt/data", MountState.OK), S3, seen)
    assert not data.nearly_full and (data.used_bytes, data.free_bytes) == (0, 0)
