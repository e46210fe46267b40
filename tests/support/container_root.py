"""A node on loopback with enroot and pyxis: a mount namespace in which they lie over this host's files.

/run is its own, so that several nodes on one host do not take each other's containers for theirs; all else is the
host's.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.mount_root import MountRoot

# An empty directory of the host's is where it comes to lie, seen by this namespace alone.
ENTER = """\
set -e
mount --make-rslave /
mount -t tmpfs -o mode=755 node /mnt
for place in usr etc opt; do mount -t overlay node -o "lowerdir=$1/$place:/$place" "/$place"; done
mount -t tmpfs -o mode=755 node /run
install -d -m 1777 /run/enroot
install -d /run/pyxis
sed s:/var/lib/enroot:/run/enroot: "$1/etc/enroot/enroot.conf" >/mnt/enroot.conf
mount --bind /mnt/enroot.conf /etc/enroot/enroot.conf
"""


class ContainerRoot(MountRoot):
    """`tree`: of containers.build."""

    def __init__(self, tree: Path) -> None:
        super().__init__(ENTER, str(tree))
