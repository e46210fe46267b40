"""The toy filer, mounted by a helper of its own.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.mounts.toy import ToyMount

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.system.mountinfo import MountEntry


class ToyKind(Kind):
    """`mount -t toy`."""

    program = "/usr/sbin/mount.toy"
    package = "toy-utils"
    client_check = ClientCheck()
    restart_when_hung = False

    def mount_command(self, node: Node, mount: ToyMount) -> Sequence[str]:
        return (
            "mount",
            "-t",
            "toy",
            "-o",
            ",".join(mount.expected_protective_flags()),
            f"{mount.server}:/{mount.volume}",
            mount.path,
        )

    def identify(self, node: Node, mount: ToyMount, entry: MountEntry) -> MountIdentity:
        wanted = f"{mount.server}:/{mount.volume}"
        return MountIdentity(entry.source == wanted, entry.source, f"expected {wanted}")


KIND = ToyKind()
