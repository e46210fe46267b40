"""The temporary root of a sandbox: the files that a node of this cluster would find, and the shims in front of PATH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Tuple

from hyperpod_kit.model.cluster import ClusterSpec
from hyperpod_kit.model.instance_types import has_instance_store
from hyperpod_kit.model.states import Role
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.platform import resource_config, slurm_conf
from hyperpod_rehearsal.platform.cluster_state import COMPUTE, CONTROLLER, LOGIN, RehearsedCluster, RehearsedNode

RECORDED = (
    "systemctl",
    "mount",
    "umount",
    "mount-s3",
    "useradd",
    "groupadd",
    "usermod",
    "getent",
    "sudo",
    "chown",
    "modprobe",
    "sysctl",
    "apt-get",
    "apt",
    "yum",
    "dnf",
    "pip",
    "pip3",
    "curl",
    "wget",
    "docker",
    "iptables",
    "nft",
    "scontrol",
    "sinfo",
    "srun",
    "sbatch",
    "cc",
    "gcc",
    "journalctl",
    "loginctl",
    "hostnamectl",
    "reboot",
    "shutdown",
    "sleep",
    "ldconfig",
    "modinfo",
)
"""Programs that a lifecycle script may call and that must not touch this machine."""
PRESENT = (*(client for its in REHEARSED.values() for client in its.clients), "usr/sbin/nft")
"""Programs that the node side looks for by their place."""
NODE_TYPES: dict[str, str] = {Role.CONTROLLER: CONTROLLER, Role.LOGIN: LOGIN, Role.COMPUTE: COMPUTE}


def cluster_from_spec(spec: ClusterSpec) -> RehearsedCluster:
    """The cluster as the control plane would know it, with made-up instances."""
    groups = [
        {"InstanceGroupName": group.name, "InstanceType": group.types[0], "InstanceCount": group.count}
        for group in spec.groups
    ]
    roles = {group.name: NODE_TYPES[group.role] for group in spec.groups}
    partitions: Dict[str, list[str]] = {slurm_conf.DEFAULT_PARTITION: []}
    cluster = RehearsedCluster(spec.name, "sandbox00000", {"InstanceGroups": groups}, slurm=roles)
    for position, group in enumerate(spec.groups):
        if group.role == Role.COMPUTE:
            partitions[slurm_conf.DEFAULT_PARTITION].append(group.name)
            if group.partition:
                partitions.setdefault(group.partition, []).append(group.name)
        for index in range(group.count):
            node = RehearsedNode(
                f"i-{position:02d}{index:015d}",
                group.name,
                group.types[0],
                index,
                f"10.1.{41 + position}.{18 + index}",
                role=roles[group.name],
            )
            cluster.nodes[node.instance_id] = node
    cluster.partitions = partitions
    return cluster


def made_up_mount_listing_by_type_json() -> str:
    """Return the JSON that the shim of mount(8) reads: how the kernel would list the mounts of each kind."""
    return json.dumps({word: how for its in REHEARSED.values() for word, how in its.shown.items()})


def build_sandbox_shims_and_root(root: Path, cluster: RehearsedCluster, node: RehearsedNode) -> Tuple[Path, Path]:
    """Fill an empty directory for `node`; returns the shims' directory and the root that is HPK_ROOT."""
    shims, inside = root / "shims", root / "root"
    for directory in (
        "etc/systemd/system",
        "opt/ml/config",
        "opt/slurm/etc",
        "opt/slurm/bin",
        "proc/self",
        "proc/sys/kernel",
        "sandbox",
        "tmp",
        "var/log/provision",
        "usr/include/slurm",
        "home",
    ):
        by_descriptor.make_directories(inside / directory)
    by_descriptor.make_directory(shims)
    program = shims / "shim"
    by_descriptor.copy_file(Path(__file__).with_name("sandbox_shim.py"), program)
    by_descriptor.set_mode(program, 0o755)
    for name in RECORDED:
        by_descriptor.symlink(program, shims / name)
    by_descriptor.write_text(inside / "sandbox" / "shown.json", made_up_mount_listing_by_type_json())
    for name in ("scontrol", "sinfo", "srun", "sbatch", "squeue"):
        by_descriptor.symlink(program, inside / "opt/slurm/bin" / name)
    for client in PRESENT:
        by_descriptor.make_parents(inside / client)
        by_descriptor.symlink(program, inside / client)
    by_descriptor.touch(inside / "usr/include/slurm/spank.h")
    mounts = "1 0 0:1 / / rw,relatime shared:1 - overlay overlay rw\n"
    if has_instance_store(node.instance_type):
        by_descriptor.make_directories(inside / "opt/dlami/nvme")
        mounts += "2 1 259:0 / /opt/dlami/nvme rw,noatime shared:2 - ext4 /dev/mapper/vg.01-lv_ephemeral rw\n"
    by_descriptor.write_text(inside / "proc/self/mountinfo", mounts)
    by_descriptor.write_text(inside / "proc/sys/kernel/hostname", f"{node.host}\n")
    users = "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n"
    by_descriptor.write_text(inside / "etc/passwd", users)
    by_descriptor.write_text(inside / "etc/group", "root:x:0:\nubuntu:x:1000:\n")
    by_descriptor.write_text(
        inside / "opt/ml/config/resource_config.json", resource_config.render_resource_config_json(cluster)
    )
    if node.role == CONTROLLER:
        by_descriptor.write_text(
            inside / "opt/slurm/etc/slurm.conf", slurm_conf.render_slurm_conf(cluster, 4096, 10, 30)
        )
    return shims, inside
