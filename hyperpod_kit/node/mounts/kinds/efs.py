"""EFS through efs-utils' mount helper.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.mounts.kinds import efs_utils
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.system.mountinfo import MountEntry


class EfsKind(Kind):
    """`mount -t efs`. A hard NFS mount that hangs waits for its server and then goes on: it is never torn away."""

    program = "/usr/sbin/mount.efs"
    package = "amazon-efs-utils"
    # Before 1.34.4 two TLS mounts made at the same time could take the same port (efs-utils' change log).
    client_check = ClientCheck("1.34.4", ("--version",))
    restart_when_hung = False

    def mount_command(self, node: Node, mount: EfsMount) -> Sequence[str]:
        options = ["_netdev", *mount.expected_protective_flags(), "noresvport"]
        if mount.tls:
            options.append("tls")
        if mount.iam:
            options.append("iam")
        options += efs_utils.common_mount_options(mount)
        return ("mount", "-t", "efs", "-o", ",".join(options), f"{mount.file_system_id}:/", mount.path)

    def identify(self, node: Node, mount: EfsMount, entry: MountEntry) -> MountIdentity:
        host, separator, export = entry.source.rpartition(":")
        if separator and export == "/" and not mount.tls and not host.startswith("127."):
            # efs-utils before 2.0, without TLS: by name or, with a mount target's address, by number, which says less.
            if host.startswith("fs-"):
                matches = host.split(".")[0] == mount.file_system_id
                expected = efs_utils.format_source(mount.file_system_id, mount.access_point_id)
                return MountIdentity(matches, entry.source, f"expected {expected}")
            return MountIdentity(True, entry.source, "known by source and path only")
        return efs_utils.identify_proxied(node, mount, entry, service="elasticfilesystem", tls=mount.tls)

    def endpoint_is_dead(self, node: Node, mount: EfsMount, entry: MountEntry) -> bool:
        return efs_utils.proxy_is_dead(entry)


KIND = EfsKind()
