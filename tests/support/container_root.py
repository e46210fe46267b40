"""A node on loopback with enroot and pyxis: a mount namespace in which they lie over this host's files.

/run is its own, so that several nodes on one host do not take each other's containers for theirs; all else is the
host's.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import List, Sequence

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
echo ready
read -r end
"""


class ContainerRoot:
    """`tree`: of containers.build."""

    def __init__(self, tree: Path) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--", "sh", "-c", ENTER, "sh", str(tree)],
            env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != "ready\n":
            raise AssertionError(f"{tree} cannot be laid over this host: {self._holder.stderr.read()}")

    def argv(self, command: Sequence[str], cwd: Path) -> List[str]:
        """The words that run a command there, in a directory there; the process is the command's own."""
        return ["nsenter", "-t", str(self._holder.pid), "-m", f"--wdns={cwd}", "--", *command]

    def close(self) -> None:
        """The mounts go with the last process that runs there."""
        self._holder.kill()
        self._holder.communicate(timeout=10)
