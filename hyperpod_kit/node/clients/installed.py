"""What of a client is on this node: the program itself is asked, because it, not a package database, is what runs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.clients.required import RequiredClient
from hyperpod_kit.node.context import Node


@dataclass(frozen=True)
class InstalledClient:
    """`problem`: why nothing can be mounted with it, "" when it works; `version`: "" when nobody says it."""

    problem: str = ""
    version: str = ""


def installed_client(node: Node, want: RequiredClient) -> InstalledClient:
    """Look for one client. Raises nothing: what cannot be run does not work."""
    path = node.paths.real(want.program)
    if not os.access(path, os.X_OK):
        return InstalledClient(f"{want.program} is not there")
    if want.module:
        return _module(node, want.module)
    if not want.ask:
        return InstalledClient()
    try:
        done = node.runner.run([path, *want.ask], timeout=20)
    except RunError as err:
        return InstalledClient(f"{want.program} is there, but does not run: {err.message}")
    return InstalledClient(version=version_in(done.stdout or done.stderr))


def _module(node: Node, module: str) -> InstalledClient:
    if os.path.isdir(node.paths.real(f"/sys/module/{module}")):
        return InstalledClient()  # loaded: whatever modinfo would say, it fits
    try:
        done = node.runner.run(["modinfo", "--field", "version", module], timeout=20)
    except RunError:
        return InstalledClient(f"there is no module {module} for kernel {os.uname().release}")
    return InstalledClient(version=version_in(done.stdout))


def version_in(text: str) -> str:
    """The first dotted number in what a program says: `mount.efs Version: 2.1.0` -> `2.1.0`."""
    match = re.search(r"(?<![\w.])\d+(\.\d+)+", text)
    return match.group() if match else ""
