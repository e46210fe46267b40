"""FSx for OpenZFS: a volume over NFS 4.2, the kernel's own client.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.system.mountinfo import MountEntry

OPTIONS = "noatime,nfsvers=4.2,nconnect=16,rsize=1048576,wsize=1048576,hard,timeo=600"
"""FSx's own recommendation and AWS's HyperPod scripts; hard: a server that is away makes a job wait, not fail."""


class OpenZfsKind(Kind):
    """`mount -t nfs`. A hang is the network's or the server's: nothing on this node is worth killing."""

    program = "/usr/sbin/mount.nfs"
    package = "nfs-common"
    client_check = ClientCheck()
    restart_when_hung = False

    def mount_command(self, node: Node, mount: OpenZfsMount) -> Sequence[str]:
        options = ",".join(("_netdev", *mount.expected_protective_flags(), OPTIONS))
        return ("mount", "-t", "nfs", "-o", options, f"{mount.dns_name}:{mount.export}", mount.path)

    def identify(self, node: Node, mount: OpenZfsMount, entry: MountEntry) -> MountIdentity:
        expected = f"{mount.dns_name}:{mount.export}"
        host, separator, export = entry.source.partition(":")
        if not separator or "nfs" not in entry.fs_type:
            return MountIdentity(False, entry.source, f"expected {expected}, found {entry.fs_type}")
        if (export.rstrip("/") or "/") != mount.export:
            return MountIdentity(False, entry.source, f"expected {expected}")
        # Whoever mounted it by address (HyperPod may) leaves no name to compare.
        if host.replace(".", "").isdigit():
            return MountIdentity(True, entry.source, "known by its export only")
        return MountIdentity(host == mount.dns_name, entry.source, f"expected {expected}")


KIND = OpenZfsKind()
