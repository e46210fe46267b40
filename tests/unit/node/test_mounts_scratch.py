"""NVMe scratch: which disks are taken, which never, and a real bind mount in a mount namespace of its own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

from hyperpod_kit.errors import MountFailed
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.node.mounts.ensure import ensure_mounted
from hyperpod_kit.node.mounts.kinds import instance_store
from hyperpod_kit.node.mounts.kinds.registry import kind_of
from hyperpod_kit.run import LocalRunner

CHECKOUT = Path(__file__).parents[3]
SCRATCH = NvmeMount("scratch", "/scratch", uid=os.geteuid(), gid=os.getegid(), mode="0750")
SECOND = NvmeMount("second", "/second", uid=os.geteuid(), gid=os.getegid())


def disk(
    fake: Any,
    name: str,
    model: str = instance_store.MODEL,
    *,
    blkid: Optional[str] = None,
    code: int = 2,
    holder: str = "",
    partition: bool = False,
    number: str = "259:7",
) -> None:
    """A block device of the machine, and what blkid says of it."""
    block = fake.root / "sys/block" / name
    (block / "device").mkdir(parents=True)
    (block / "device/model").write_text(f"{model:<40}\n")
    (block / "dev").write_text(f"{number}\n")
    (block / "holders" / holder).mkdir(parents=True)
    if partition:
        (block / f"{name}p1").mkdir()
    fake.runner.on(f"blkid -p -o export {fake.root}/dev/{name}", 0 if blkid else code, blkid or "")


def without_the_images_service(fake: Any) -> None:
    fake.runner.on("systemctl is-enabled --quiet dlami-nvme.service", 1)


def test_the_images_own_volume_is_used_as_it_is(make_node: Any) -> None:
    fake = make_node([SCRATCH])
    disk(fake, "nvme1n1")
    fake.mounted("/opt/dlami/nvme", "ext4", "/dev/mapper/vg.01-lv_ephemeral")
    fake.runner.on("mount -o bind", do=lambda: fake.mounted("/scratch", "ext4", "/dev/mapper/vg.01-lv_ephemeral"))
    with pytest.raises(MountFailed):  # the fake lists a bind mount without its directory
        ensure_mounted(fake.node, SCRATCH)
    place = fake.root / "opt/dlami/nvme/hyperpod-kit/scratch"
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    changing = [call for call in fake.runner.calls if not call.startswith("systemctl")]
    assert changing == ["mount -o bind,nosuid,nodev /opt/dlami/nvme/hyperpod-kit/scratch /scratch"]


def test_the_images_service_is_waited_for_and_never_fought(make_node: Any) -> None:
    fake = make_node([SCRATCH])
    disk(fake, "nvme1n1")
    with pytest.raises(MountFailed, match=r"dlami-nvme\.service has not mounted /opt/dlami/nvme within 90 s"):
        ensure_mounted(fake.node, SCRATCH)
    assert not any(call.startswith(("mkfs", "mount", "blkid")) for call in fake.runner.calls)


@pytest.mark.parametrize(
    "what, said",
    [
        ({"blkid": "TYPE=ext4\nLABEL=data\n"}, "/dev/nvme1n1 holds ext4"),
        ({"blkid": "TYPE=LVM2_member\n"}, "/dev/nvme1n1 holds LVM2_member"),
        ({"blkid": "PTTYPE=gpt\n"}, "/dev/nvme1n1 holds gpt"),
        ({"code": 8}, "blkid cannot identify"),  # two signatures at once
        ({"code": 4}, "blkid cannot identify"),  # it could not even be read
        ({"holder": "dm-0"}, "a part of dm-0"),
        ({"partition": True}, "holds partitions"),
        ({"number": "0:50"}, "holds what is mounted at /precious"),
        ({"model": "Amazon Elastic Block Store"}, "this instance has no instance store device"),
    ],
)
def test_a_disk_that_is_not_blank_is_never_written_to(make_node: Any, what: Dict[str, Any], said: str) -> None:
    fake = make_node([SCRATCH])
    without_the_images_service(fake)
    disk(fake, "nvme1n1", **what)
    fake.mounted("/precious", "ext4", "/dev/nvme1n1")
    with pytest.raises(MountFailed, match=said):
        ensure_mounted(fake.node, SCRATCH)
    assert not any(call.startswith(("mkfs", "mount")) for call in fake.runner.calls)


def test_each_scratch_mount_gets_a_disk_while_there_are_some(make_node: Any) -> None:
    fake = make_node([SCRATCH, S3Mount("data", "/d", "bucket"), SECOND])
    without_the_images_service(fake)
    disk(fake, "nvme0n1", "Amazon Elastic Block Store")
    disk(fake, "nvme1n1", blkid="TYPE=ext4\nLABEL=hpk-scratch\n", number="0:50")  # from before a reboot: kept
    disk(fake, "nvme2n1", number="0:51")
    for name in ("nvme1n1", "nvme2n1"):
        fake.runner.on(
            f"mount -o noatime,nosuid,nodev {fake.root}/dev/{name}",
            do=lambda name=name: fake.mounted(f"{instance_store.KIT_DIRECTORY}/{name}", "ext4", f"/dev/{name}"),
        )
    kind_of(SCRATCH).prepare(fake.node, SCRATCH)
    kind_of(SECOND).prepare(fake.node, SECOND)
    kind_of(SECOND).prepare(fake.node, SECOND)
    changing = [call for call in fake.runner.calls if call.startswith(("mkfs", "mount"))]
    assert changing == [
        f"mount -o noatime,nosuid,nodev {fake.root}/dev/nvme1n1 {instance_store.KIT_DIRECTORY}/nvme1n1",
        f"mkfs.ext4 -q -m 0 -L hpk-scratch {fake.root}/dev/nvme2n1",
        f"mount -o noatime,nosuid,nodev {fake.root}/dev/nvme2n1 {instance_store.KIT_DIRECTORY}/nvme2n1",
    ]
    assert (
        kind_of(SECOND).mount_command(fake.node, SECOND)[3]
        == f"{instance_store.KIT_DIRECTORY}/nvme2n1/hyperpod-kit/second"
    )


REAL = textwrap.dedent("""
    import os, subprocess, sys
    from hyperpod_kit.model.mounts.nvme import NvmeMount
    from hyperpod_kit.model.node_config import NodeConfig
    from hyperpod_kit.node.machine.context import Node
    from hyperpod_kit.node.machine.facts import NodeFacts
    from hyperpod_kit.node.observe.check import check_mount
    from hyperpod_kit.node.mounts.ensure import ensure_mounted
    from hyperpod_kit.node.mounts.kinds import instance_store
    from hyperpod_kit.node.machine.paths import NodePaths
    from hyperpod_kit.node.machine.timing import Clock
    from hyperpod_kit.run import LocalRunner

    class Runner(LocalRunner):
        def run(self, argv, **options):  # no systemd here: nothing of the image's is enabled
            return LocalRunner.run(self, ["false"] if argv[0] == "systemctl" else argv, **options)

    for place in ("/opt", "/run", "/mnt", "/var/lib"):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    os.makedirs("/opt/dlami/nvme")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/opt/dlami/nvme"], check=True)
    mount = NvmeMount("scratch", "/mnt/scratch", uid=2001, gid=2002, mode="1777", world_writable=True)
    node = Node(NodePaths(""), NodeConfig("demo", "on_create", {"g": "compute"}, (mount,)),
                NodeFacts("n", "10.0.0.1", "i-1", "g", "compute", "us-east-1", "aws", None), Runner(), Clock())
    assert ensure_mounted(node, mount) is True
    assert ensure_mounted(node, mount) is False
    found = os.stat("/mnt/scratch")
    assert (found.st_uid, found.st_gid, oct(found.st_mode & 0o7777)) == (2001, 2002, "0o1777")
    options = [line.split()[5] for line in open("/proc/self/mountinfo") if " /mnt/scratch " in line]
    assert len(options) == 1 and {"nosuid", "nodev"} <= set(options[0].split(","))
    open("/mnt/scratch/full", "wb").write(bytes(900000))
    status = check_mount(node, mount)
    assert (status.state, status.source) == ("ok", "tmpfs/hyperpod-kit/scratch"), status
    subprocess.run(["mount", "-o", "remount,bind,ro", "/mnt/scratch"], check=True)
    assert check_mount(node, mount).state == "readonly"
    subprocess.run(["umount", "/mnt/scratch"], check=True)
    assert check_mount(node, mount).state == "absent" and ensure_mounted(node, mount) is True
    assert os.path.getsize("/mnt/scratch/full") == 900000
    # As after a reboot of a HyperPod node: the volume is there again, and empty.
    subprocess.run(["umount", "/mnt/scratch", "/opt/dlami/nvme"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/opt/dlami/nvme"], check=True)
    assert ensure_mounted(node, mount) is True and os.listdir("/mnt/scratch") == []
    print("all of it")
""")


@pytest.mark.needs("mounts")
def test_a_real_bind_mount_survives_what_happens_to_it() -> None:
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", REAL],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HPK_ROOT": ""},
        text=True,
        timeout=60,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.stdout.endswith("all of it\n"), done.stdout


def loop_device(image: Path) -> str:
    argv = ["losetup", "--find", "--show", str(image)]
    return subprocess.run(argv, text=True, stdout=subprocess.PIPE, check=True).stdout.strip()


@pytest.mark.needs("loop-devices", "mkfs.ext4")
def test_a_real_disk_is_formatted_once_and_a_foreign_one_never(make_node: Any, tmp_path: Path) -> None:
    image = tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    device = loop_device(image)
    fake = make_node([SCRATCH])
    node = replace(fake.node, runner=LocalRunner())
    disk(fake, "nvme1n1")
    (fake.root / "dev").mkdir()
    (fake.root / "dev/nvme1n1").symlink_to(device)
    try:
        assert [found.contents for found in instance_store.find_instance_store_devices(node)] == [""]
        instance_store._make_labelled_file_system(node, device)
        assert [found.contents for found in instance_store.find_instance_store_devices(node)] == [instance_store.LABEL]
        subprocess.run(["tune2fs", "-L", "precious", device], check=True, stdout=subprocess.DEVNULL)
        assert [found.contents for found in instance_store.find_instance_store_devices(node)] == ["ext4"]
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
