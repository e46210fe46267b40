"""The local NVMe disks of an instance: found, and made usable where the image has not done it.

HyperPod's and AWS's deep learning images have `dlami-nvme.service`, which joins all instance store devices to one
volume at /opt/dlami/nvme; that is used as it is, and never fought. Elsewhere each blank device gets a file system of
ours, known by its label. A device that holds anything else is never written to.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional

from hyperpod_kit.errors import MountFailed, RunError
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.system.mountinfo import MountEntry, find_mount_at, parse_mountinfo
from hyperpod_kit.untrusted import by_descriptor

PLATFORM = "/opt/dlami/nvme"
PLATFORM_UNIT = "dlami-nvme.service"
PLATFORM_WITHIN = 90.0
"""Seconds that the image's own service may take to join and format the devices at boot."""

KIT_DIRECTORY = "/var/lib/hyperpod-kit/nvme"
LABEL = "hpk-scratch"
MODEL = "Amazon EC2 NVMe Instance Storage"
"""What EC2 calls these devices; EBS volumes are NVMe too, with another model."""


class NvmeDevice(NamedTuple):
    """`path`: /dev/nvme1n1; `number`: major:minor; `contents`: "" when blank, else what blkid found, LABEL when
    ours."""

    path: str
    number: str
    contents: str


def mounted_stores(node: Node) -> List[MountEntry]:
    """Every mount that is an instance store, the image's or ours."""
    mountinfo = read_text(node.paths.mountinfo) or ""
    platform_store = find_mount_at(mountinfo, PLATFORM)
    kit_stores = [entry for entry in parse_mountinfo(mountinfo) if entry.path.startswith(KIT_DIRECTORY + "/")]
    if platform_store is None:
        return kit_stores
    return [platform_store, *kit_stores]


def ensure_store_mounted(node: Node, device_index: int) -> MountEntry:
    """Return a mounted instance store: the image's if it makes one, else that of a device, which is formatted
    if blank, and mounted. Raises MountFailed."""
    entry = find_mount_at(read_text(node.paths.mountinfo) or "", PLATFORM)
    if entry is not None:
        return entry
    if systemd.is_enabled(node, PLATFORM_UNIT):

        def find_platform_store() -> Optional[MountEntry]:
            return find_mount_at(read_text(node.paths.mountinfo) or "", PLATFORM)

        store = wait_for(find_platform_store, seconds=PLATFORM_WITHIN, clock=node.clock)
        if store is None:
            raise MountFailed(
                f"{PLATFORM_UNIT} has not mounted {PLATFORM} within {PLATFORM_WITHIN:g} s",
                hint=f"on the node: journalctl -u {PLATFORM_UNIT}; check that the instance type has local disks",
            )
        return store
    devices = find_instance_store_devices(node)
    usable = [device for device in devices if device.contents in ("", LABEL)]
    if not usable:
        refused = "; ".join(f"{device.path} holds {device.contents}" for device in devices)
        problem = "this instance has no instance store device"
        if refused:
            problem = f"no instance store device is free: {refused}"
        raise MountFailed(
            problem,
            hint="choose an instance type with local NVMe, or set required to false",
        )
    return _format_and_mount(node, usable[device_index % len(usable)])


def find_instance_store_devices(node: Node) -> List[NvmeDevice]:
    """The instance store devices of this machine, by name, with what each holds."""
    block = node.paths.under_root("/sys/block")
    devices = []
    for name in sorted(os.listdir(block)) if os.path.isdir(block) else []:
        if (read_text(f"{block}/{name}/device/model") or "").strip() != MODEL:
            continue
        number = (read_text(f"{block}/{name}/dev") or "").strip()
        devices.append(
            NvmeDevice(
                f"/dev/{name}",
                number,
                _describe_mounted_contents(node, number) or _describe_device_contents(node, block, name),
            )
        )
    return devices


def _describe_mounted_contents(node: Node, number: str) -> str:
    for entry in parse_mountinfo(read_text(node.paths.mountinfo) or ""):
        if entry.device == number:
            if entry.path.startswith(KIT_DIRECTORY + "/"):
                return LABEL
            return f"what is mounted at {entry.path}"
    return ""


def _describe_device_contents(node: Node, block: str, name: str) -> str:
    holders = f"{block}/{name}/holders"
    if os.path.isdir(holders) and os.listdir(holders):
        return f"a part of {', '.join(sorted(os.listdir(holders)))}"
    if any(entry.startswith(name) for entry in os.listdir(f"{block}/{name}")):
        return "partitions"
    done = node.runner.run(
        ["blkid", "-p", "-o", "export", node.paths.under_root(f"/dev/{name}")], timeout=30, check=False
    )
    if done.returncode == 2 and not done.stdout.strip():
        return ""  # blkid's code for "no signature of any kind"
    values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode == 0 and values.get("LABEL") == LABEL:
        return LABEL
    return values.get("TYPE") or values.get("PTTYPE") or f"content that blkid cannot identify (code {done.returncode})"


def _format_and_mount(node: Node, device: NvmeDevice) -> MountEntry:
    mountinfo = read_text(node.paths.mountinfo) or ""
    for entry in parse_mountinfo(mountinfo):
        if entry.device == device.number and entry.path.startswith(KIT_DIRECTORY + "/"):
            return entry
    mount_point = f"{KIT_DIRECTORY}/{os.path.basename(device.path)}"
    special = node.paths.under_root(device.path)
    try:
        if device.contents == "":
            _make_labelled_file_system(node, special)
        by_descriptor.make_directories(node.paths.under_root(mount_point), shared=True)
        node.runner.run(["mount", "-o", "noatime,nosuid,nodev", special, mount_point], timeout=60)
    except RunError as err:
        raise MountFailed(f"{device.path}: {err.message}", hint=f"on the node: blkid -p {device.path}") from err
    mounted = find_mount_at(read_text(node.paths.mountinfo) or "", mount_point)
    if mounted is None:
        raise MountFailed(f"{device.path} is not at {mount_point} although mount reported success")
    return mounted


def _make_labelled_file_system(node: Node, special: str) -> None:
    # Neither is told to overwrite: mkfs.xfs then looks for a file system once more itself.
    if os.path.exists(node.paths.under_root("/usr/sbin/mkfs.xfs")):
        node.runner.run(["mkfs.xfs", "-q", "-L", LABEL, special], timeout=120)
    else:
        node.runner.run(["mkfs.ext4", "-q", "-m", "0", "-L", LABEL, special], timeout=120)
