"""NVMe scratch: a directory on the instance store, bound to where it is wanted.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Sequence

from hyperpod_kit.errors import MountFailed, RunError, Untrusted
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.mounts.kinds import instance_store
from hyperpod_kit.node.mounts.kinds.kind import ClientCheck, Kind, MountIdentity
from hyperpod_kit.node.mounts.kinds.mount_record import read_record
from hyperpod_kit.system.mountinfo import MountEntry, find_mount_at
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.files import ensure_own_directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NvmeKind(Kind):
    """`mount -o bind`. There is no endpoint: the disk answers, or the machine is to be replaced."""

    program = "/usr/bin/mount"
    package = "util-linux"
    client_check = ClientCheck()
    restart_when_hung = False

    def mount_command(self, node: Node, mount: NvmeMount) -> Sequence[str]:
        return ("mount", "-o", "bind,nosuid,nodev", directory_on_instance_store(node, mount), mount.path)

    def prepare(self, node: Node, mount: NvmeMount) -> None:
        """Make sure that an instance store is mounted, and make the directory on it, with the owner and mode that
        were configured."""
        names = [other.name for other in node.mounts if other.kind == mount.kind]
        store = instance_store.ensure_store_mounted(node, names.index(mount.name))
        kit_directory = node.paths.under_root(f"{store.path}/hyperpod-kit")
        target = f"{kit_directory}/{mount.name}"
        try:
            by_descriptor.make_parents(kit_directory)
            ensure_own_directory(kit_directory, 0o755)  # the store may be everybody's; what lies on our shelf is not
            _make_directory(node, mount, kit_directory)
        except (OSError, RunError, Untrusted) as err:
            raise MountFailed(f"{target}: {err}", hint=f"on the node: findmnt {store.path}") from err

    def identify(self, node: Node, mount: NvmeMount, entry: MountEntry) -> MountIdentity:
        expected = f"expected the instance store's directory hyperpod-kit/{mount.name}"
        source = f"{entry.source}{entry.root}"
        if not entry.root.endswith(f"/hyperpod-kit/{mount.name}"):
            return MountIdentity(False, source, expected)
        root = find_mount_at(read_text(node.paths.mountinfo) or "", "/")
        if root is not None and root.device == entry.device:
            return MountIdentity(False, source, f"{expected}, found the root disk")
        record = read_record(node, mount)
        stores = {store.device for store in instance_store.mounted_stores(node)}
        is_instance_store = entry.device in stores or (record is not None and record.device == entry.device)
        return MountIdentity(is_instance_store, source, expected)


def _make_directory(node: Node, mount: NvmeMount, kit_directory: str) -> None:
    """Make the mount's directory below `kit_directory` with its owner and mode, by descriptors: where the
    store is everybody's, a link in the place of either is refused and not followed. Raises OSError,
    RunError, Untrusted."""
    parent = os.open(kit_directory, _DIRECTORY)
    try:
        status = os.fstat(parent)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise Untrusted(f"{kit_directory} became a directory of uid {status.st_uid} while it was checked")
        with contextlib.suppress(FileExistsError):
            os.mkdir(mount.name, 0o700, dir_fd=parent)
        descriptor = os.open(mount.name, _DIRECTORY, dir_fd=parent)
        try:
            status = os.fstat(descriptor)
            if (status.st_uid, status.st_gid) != (mount.uid, mount.gid):
                if os.geteuid() == 0:
                    os.fchown(descriptor, mount.uid, mount.gid)
                else:  # a sandbox's
                    node.runner.run(["chown", f"{mount.uid}:{mount.gid}", f"{kit_directory}/{mount.name}"], timeout=30)
            os.fchmod(descriptor, int(mount.mode, 8))  # after chown, which may clear bits
        finally:
            os.close(descriptor)
    finally:
        os.close(parent)


def directory_on_instance_store(node: Node, mount: NvmeMount) -> str:
    """Return the directory on the instance store that has been prepared for the mount; its path on the image's
    store while there is none."""
    for store in instance_store.mounted_stores(node):
        path = f"{store.path}/hyperpod-kit/{mount.name}"
        if os.path.isdir(node.paths.under_root(path)):
            return path
    return f"{instance_store.PLATFORM}/hyperpod-kit/{mount.name}"


KIND = NvmeKind()
