"""What of a client is on this node: the program itself is asked, because it, not a package database, is what runs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.clients.required import RequiredClient
from hyperpod_kit.node.machine.context import Node


@dataclass(frozen=True)
class InstalledClient:
    """`problem`: why nothing can be mounted with it, "" when it works; `version`: "" when nobody says it."""

    problem: str = ""
    version: str = ""


def inspect_installed_client(node: Node, requirement: RequiredClient) -> InstalledClient:
    """Inspect one client: whether it is there and runs, and its version. Raises nothing: what cannot be run
    does not work."""
    path = node.paths.under_root(requirement.program)
    if not os.access(path, os.X_OK):
        return InstalledClient(f"{requirement.program} is not installed")
    if requirement.module:
        return _inspect_kernel_module(node, requirement.module)
    if not requirement.version_arguments:
        return InstalledClient()
    try:
        done = node.runner.run([path, *requirement.version_arguments], timeout=20)
    except RunError as err:
        return InstalledClient(f"{requirement.program} is installed, but does not run: {err.message}")
    return InstalledClient(version=parse_version(done.stdout or done.stderr))


def _inspect_kernel_module(node: Node, module: str) -> InstalledClient:
    if os.path.isdir(node.paths.under_root(f"/sys/module/{module}")):
        return InstalledClient()  # loaded: whatever modinfo would say, it fits
    try:
        done = node.runner.run(["modinfo", "--field", "version", module], timeout=20)
    except RunError:
        return InstalledClient(f"no module {module} for kernel {os.uname().release}")
    return InstalledClient(version=parse_version(done.stdout))


def parse_version(text: str) -> str:
    """Return the first dotted number in a program's output: `mount.efs Version: 2.1.0` -> `2.1.0`; "" without
    one."""
    match = re.search(r"(?<![\w.])\d+(\.\d+)+", text)
    if match:
        return match.group()
    return ""
