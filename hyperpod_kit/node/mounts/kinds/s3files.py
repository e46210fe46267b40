"""S3 Files: a bucket over NFS 4.2, through the mount helper of efs-utils 3.0 and newer.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.mounts.kinds import efs_utils
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.system.mountinfo import MountEntry


class S3FilesKind(Kind):
    """`mount -t s3files`. The helper itself adds nfsvers=4.2, tls and iam, and refuses to do without."""

    program = "/usr/sbin/mount.s3files"
    package = "amazon-efs-utils 3.0 or newer"
    # mount.s3files came with 3.0.0 (efs-utils' change log).
    client_check = ClientCheck("3.0.0", ("--version",))
    restart_when_hung = False

    def mount_command(self, node: Node, mount: S3FilesMount) -> Sequence[str]:
        options = ["_netdev", *mount.expected_protective_flags(), "noresvport", *efs_utils.common_mount_options(mount)]
        return ("mount", "-t", "s3files", "-o", ",".join(options), f"{mount.file_system_id}:/", mount.path)

    def identify(self, node: Node, mount: S3FilesMount, entry: MountEntry) -> MountIdentity:
        return efs_utils.identify_proxied(node, mount, entry, service="s3files", tls=True)

    def endpoint_is_dead(self, node: Node, mount: S3FilesMount, entry: MountEntry) -> bool:
        return efs_utils.proxy_is_dead(entry)


KIND = S3FilesKind()
