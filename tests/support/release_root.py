"""Programs of another release, run on this host: its node image as the root of a mount namespace of their own.

No machine boots: processes, loopback, /tmp, /dev/shm and this repository are this host's, /usr and /etc are the
image's. What is written elsewhere goes to a tmpfs that ends with the namespace.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hyperpod_rehearsal.machines import image
from hyperpod_rehearsal.records.layout import cache_dir
from tests.support.mount_root import MountRoot

REPOSITORY = Path(__file__).resolve().parents[2]

# An empty directory of the host's is where it all comes to lie, seen by this namespace alone.
ENTER = """\
set -e
mount --make-rslave /
mount -t tmpfs release /mnt
mkdir /mnt/image /mnt/up /mnt/work /mnt/root
mount -o ro,loop "$1" /mnt/image
mount -t overlay release -o lowerdir=/mnt/image,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
cd /mnt/root
for place in /proc /sys /dev /tmp "$2"; do mkdir -p ".$place"; mount --rbind "$place" ".$place"; done
mount -t tmpfs run run
cp /etc/hosts /etc/hostname etc/
mkdir -p old
pivot_root . old
cd /
umount -l old
"""


class ReleaseRoot(MountRoot):
    """`release`: as `rehearse up --release` takes it. The image is built where it is not there yet."""

    def __init__(self, release: str) -> None:
        self.release = release
        built = image.ensure_image_built(cache_dir(), lambda text: print(text, file=sys.stderr), release)
        super().__init__(ENTER, str(built), str(REPOSITORY))

    def run(self, *command: str, timeout: float = 60) -> str:
        """Standard output. Raises AssertionError."""
        done = subprocess.run(self.argv(command, Path("/")), text=True, timeout=timeout, capture_output=True)
        assert done.returncode == 0, f"{command} exited {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout
