"""Hold what would move the kernel away from the Lustre client: at the next reboot the mount would be gone.

Unattended upgrades bring a kernel for which there is no client yet (aws-parallelcluster #2095); AWS's own base image
holds lustre-client-modules-aws for the same reason.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import List

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.clients import apt
from hyperpod_kit.node.context import Node

HOLD_SECONDS = 60.0
"""How long others may hold the package lock: the mount works without, so creation does not wait for minutes."""

FORMAT = "${Package}\t${db:Status-Want}\t${db:Status-Status}\n"
KERNEL_RELEASE = re.compile(r"-\d+\.\d+\.\d+-\d+")
"""In the name of a package that is one kernel; without it, the package is the moving name of the newest one."""


def hold_lustre_and_kernel_packages(node: Node) -> List[str]:
    """Hold the packages that would move the kernel away from the Lustre client, and return their names. Raises
    NodeError when the package lock is not free."""
    names = lustre_and_kernel_packages_to_hold(node)
    if names:
        apt.hold_packages(node, names, seconds=HOLD_SECONDS)
    return names


def lustre_and_kernel_packages_to_hold(node: Node) -> List[str]:
    """Query the packages of the Lustre client, and those that always name the newest kernel, where they are
    installed and not held yet."""
    try:
        done = node.runner.run(
            ["dpkg-query", "--showformat", FORMAT, "--show", "lustre-client*", "linux-image-*"], timeout=20, check=False
        )
    except RunError:  # no dpkg: nothing of it upgrades anything
        return []
    return parse_unheld_upgradable_packages(done.stdout)


def parse_unheld_upgradable_packages(listing: str) -> List[str]:
    """Names in dpkg-query's listing that an upgrade may move and that are not held yet."""
    names = []
    for line in listing.splitlines():
        name, want, status = [*line.split("\t"), "", ""][:3]
        one_kernel = name.startswith("linux-image-") and KERNEL_RELEASE.search(name)
        if status == "installed" and want != "hold" and not one_kernel:
            names.append(name)
    return names
