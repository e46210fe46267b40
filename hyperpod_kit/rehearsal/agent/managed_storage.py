"""FSx for Lustre as HyperPod itself mounts it, in the modes where no OnCreate script owns the node.

How HyperPod keeps the mount over a reboot is not published; here it is a line of fstab, what AWS's own scripts wrote.
Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any, Mapping, Sequence

FSTAB = "/etc/fstab"
OPTIONS = "noatime,flock,_netdev"


def lustre_line(config: Mapping[str, Any]) -> str:
    """The fstab line of one FsxLustreConfig."""
    return f"{config['DnsName']}@tcp:/{config['MountName']} {config.get('MountPath') or '/fsx'} lustre {OPTIONS} 0 0"


def mount(storage: Sequence[Mapping[str, Any]], fstab: str = FSTAB) -> None:
    """Mount every FsxLustreConfig of an instance group, now and at later boots.

    Raises subprocess.SubprocessError. Other kinds of storage have no stand-in and are passed over.
    """
    for entry in storage:
        config = entry.get("FsxLustreConfig")
        if not config:
            continue
        line = lustre_line(config)
        path = line.split()[1]
        with open(fstab, "a+") as file:
            file.seek(0)
            if line not in file.read().splitlines():
                file.write(line + "\n")
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", path], check=True, timeout=60, stdin=subprocess.DEVNULL)
