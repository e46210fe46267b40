"""FSx for Lustre and for OpenZFS as HyperPod itself mounts it, in the modes where no OnCreate script owns the node.

How HyperPod keeps the mount over a reboot is not published; here it is a line of fstab, what AWS's own scripts wrote.
Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import subprocess
from typing import Any, Mapping, Sequence

from hyperpod_kit.untrusted import by_descriptor

FSTAB = "/etc/fstab"
LUSTRE_OPTIONS = "noatime,flock,_netdev"
NFS_OPTIONS = "nfsvers=4.2,nconnect=16,_netdev"


def fstab_line_of_fsx_storage(storage_config: Mapping[str, Any]) -> str:
    """The fstab line of one InstanceStorageConfig; "" for storage that is no mount of a file system."""
    lustre, zfs = storage_config.get("FsxLustreConfig"), storage_config.get("FsxOpenZfsConfig")
    if lustre:
        source = f"{lustre['DnsName']}@tcp:/{lustre['MountName']}"
        return f"{source} {lustre.get('MountPath') or '/fsx'} lustre {LUSTRE_OPTIONS} 0 0"
    if zfs:
        return f"{zfs['DnsName']}:/fsx {zfs.get('MountPath') or '/home'} nfs {NFS_OPTIONS} 0 0"
    return ""


def mount_fsx_and_record_in_fstab(storage_configs: Sequence[Mapping[str, Any]], fstab: str = FSTAB) -> None:
    """Mount every FSx file system of an instance group, now and at later boots.

    Raises subprocess.SubprocessError. Other kinds of storage have no stand-in and are passed over.
    """
    for line in filter(None, map(fstab_line_of_fsx_storage, storage_configs)):
        path = line.split()[1]
        with by_descriptor.open_stream_for_writing(fstab, "a+") as file:
            file.seek(0)
            if line not in file.read().splitlines():
                file.write(line + "\n")
        by_descriptor.make_directories(path, shared=True)
        subprocess.run(["mount", path], check=True, timeout=60, stdin=subprocess.DEVNULL)
