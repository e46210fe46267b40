"""FSx for Lustre: the kernel's client, one source string that says it all.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Sequence

from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.system.mountinfo import MountEntry


class LustreKind(Kind):
    """`mount -t lustre`. A hang is the network's or the file system's: the client recovers, killing nothing helps."""

    program = "/usr/sbin/mount.lustre"
    package = "lustre-client-modules-aws"
    # Any client that was built for the running kernel speaks to FSx; mount.lustre's own version says nothing.
    client_check = ClientCheck(module="lustre")
    restart_when_hung = False

    def mount_command(self, node: Node, mount: LustreMount) -> Sequence[str]:
        # flock: PyTorch's and HDF5's locks fail without it. noatime: no write per read.
        options = ",".join((*mount.expected_protective_flags(), "noatime", "flock"))
        return ("mount", "-t", "lustre", "-o", options, f"{mount.dns_name}@tcp:/{mount.mount_name}", mount.path)

    def identify(self, node: Node, mount: LustreMount, entry: MountEntry) -> MountIdentity:
        # The kernel shows the server's address, never the DNS name: only the mount name can be compared.
        server, separator, name = entry.source.rpartition(":/")
        if separator and "@" in server:
            return MountIdentity(name == mount.mount_name, entry.source, f"expected mount name {mount.mount_name}")
        return MountIdentity(False, entry.source, f"expected Lustre …@tcp:/{mount.mount_name}, found {entry.fs_type}")


KIND = LustreKind()
