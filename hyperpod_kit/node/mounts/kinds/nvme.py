"""NVMe scratch: a directory on the instance store, bound to where it is wanted.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Sequence

from hyperpod_kit.errors import MountFailed, RunError, Untrusted
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text
from hyperpod_kit.node.mounts.kinds import instance_store
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.node.mounts.mount_record import read_record
from hyperpod_kit.system.mountinfo import MountEntry, find
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.files import own_directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NvmeKind(Kind):
    """`mount -o bind`. There is no endpoint: the disk answers, or the machine is to be replaced."""

    program = "/usr/bin/mount"
    package = "util-linux"
    client_check = ClientCheck()
    restart_when_hung = False

    def command(self, node: Node, mount: NvmeMount) -> Sequence[str]:
        return ("mount", "-o", "bind,nosuid,nodev", directory(node, mount), mount.path)

    def prepare(self, node: Node, mount: NvmeMount) -> None:
        """Make the directory on the store, with the owner and mode that were asked for."""
        others = [other.name for other in node.mounts if other.kind == mount.kind]
        store = instance_store.provide(node, others.index(mount.name))
        shelf = node.paths.real(f"{store.path}/hyperpod-kit")
        place = f"{shelf}/{mount.name}"
        try:
            by_descriptor.make_parents(shelf)
            own_directory(shelf, 0o755)  # the store may be everybody's; what lies on our shelf is not
            _make(node, mount, shelf)
        except (OSError, RunError, Untrusted) as err:
            raise MountFailed(f"{place}: {err}", hint=f"on the node: findmnt {store.path}") from err

    def identify(self, node: Node, mount: NvmeMount, entry: MountEntry) -> MountIdentity:
        wanted = f"expected the instance store's directory hyperpod-kit/{mount.name}"
        source = f"{entry.source}{entry.root}"
        if not entry.root.endswith(f"/hyperpod-kit/{mount.name}"):
            return MountIdentity(False, source, wanted)
        root = find(read_text(node.paths.mountinfo) or "", "/")
        if root is not None and root.device == entry.device:
            return MountIdentity(False, source, f"{wanted}, found the root disk")
        record = read_record(node, mount)
        stores = {store.device for store in instance_store.mounted_stores(node)}
        known = entry.device in stores or (record is not None and record.device == entry.device)
        return MountIdentity(known, source, wanted)


def _make(node: Node, mount: NvmeMount, shelf: str) -> None:
    """The mount's directory on the shelf, by descriptors: where the store is everybody's, a link in the place of either
    is refused and not followed. Raises OSError, RunError, Untrusted."""
    above = os.open(shelf, _DIRECTORY)
    try:
        found = os.fstat(above)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Untrusted(f"{shelf} became a directory of uid {found.st_uid} while it was looked at")
        with contextlib.suppress(FileExistsError):
            os.mkdir(mount.name, 0o700, dir_fd=above)
        here = os.open(mount.name, _DIRECTORY, dir_fd=above)
        try:
            found = os.fstat(here)
            if (found.st_uid, found.st_gid) != (mount.uid, mount.gid):
                if os.geteuid() == 0:
                    os.fchown(here, mount.uid, mount.gid)
                else:  # a sandbox's
                    node.runner.run(["chown", f"{mount.uid}:{mount.gid}", f"{shelf}/{mount.name}"], timeout=30)
            os.fchmod(here, int(mount.mode, 8))  # after chown, which may clear bits
        finally:
            os.close(here)
    finally:
        os.close(above)


def directory(node: Node, mount: NvmeMount) -> str:
    """The directory on the instance store that has been prepared for the mount; the image's place while none is."""
    for store in instance_store.mounted_stores(node):
        place = f"{store.path}/hyperpod-kit/{mount.name}"
        if os.path.isdir(node.paths.real(place)):
            return place
    return f"{instance_store.PLATFORM}/hyperpod-kit/{mount.name}"


KIND = NvmeKind()
