"""The programs that an optional step stands on: there already, out of the packages that the configuration lists, or,
where it lists none, from the package sources of the node itself.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Tuple

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.model.clients import CLIENTS, Package
from hyperpod_kit.node.clients import apt
from hyperpod_kit.node.clients.decide import Machine, is_package_for_client_and_machine
from hyperpod_kit.node.clients.install import install_client_package_and_missing_dependencies
from hyperpod_kit.node.machine.context import Node


@dataclass(frozen=True)
class Software:
    """`programs`: absolute paths, one of which is there where it is installed; `clients`: whose packages bring it, the
    first of which the node's own sources are asked for, with `beside`; `mode`: of a library it is os.R_OK."""

    programs: Tuple[str, ...]
    clients: Tuple[str, ...]
    beside: Tuple[str, ...] = ()
    mode: int = os.X_OK


def find_program(node: Node, software: Software) -> Optional[str]:
    """The program, None when it is not there."""
    return next((path for path in software.programs if os.access(node.paths.under_root(path), software.mode)), None)


def describe_pending_install(node: Node, software: Software) -> str:
    """Return what `ensure_installed` would do, in words; "" for nothing."""
    if _is_completely_installed(node, software):
        return ""
    listed = _listed_packages(node, software)
    names = ", ".join(package.name for package in listed)
    return f"install {names or CLIENTS[software.clients[0]] + ' from the package sources of the node'}"


def ensure_installed(node: Node, software: Software) -> str:
    """Install it unless it is there; what was done, "" for nothing. Raises NodeError, BundleIntegrityError."""
    if _is_completely_installed(node, software):
        return ""
    listed = _listed_packages(node, software)
    if listed:
        install_client_package_and_missing_dependencies(node, listed)
        done = f"installed {listed[0].name} {listed[0].version}"
    else:
        name = CLIENTS[software.clients[0]]
        try:
            apt.install_from_apt_repositories(node, name, *software.beside)
        except HyperpodKitError as err:
            raise NodeError(
                f"{software.programs[0]} is not installed, and {err.message}",
                hint=f"list {name} and its dependencies under hyperpod_kit.clients, or use an image that has it",
            ) from err
        done = f"installed {name} from the package sources of the node"
    if find_program(node, software) is None:
        raise NodeError(f"{done}, but {software.programs[0]} is still missing")
    return done


def _is_completely_installed(node: Node, software: Software) -> bool:
    """Whether the program is there, and no package of it was left half installed by a crash."""
    if find_program(node, software) is None:
        return False
    listed = [package.name for package in _listed_packages(node, software)]
    installed = [apt.query_package(node, name) for name in listed or [CLIENTS[name] for name in software.clients]]
    return all(installed_package is None or installed_package.complete for installed_package in installed)


def _listed_packages(node: Node, software: Software) -> Tuple[Package, ...]:
    """The packages of the configuration that bring it to this machine, its own first; () without its own."""
    if node.config.packages:
        machine = Machine(apt.architecture(node), os.uname().release)
    else:
        machine = Machine("", "")
    for client in software.clients:
        fitting = [
            package for package in node.config.packages if is_package_for_client_and_machine(package, client, machine)
        ]
        if any(package.is_clients_own_package for package in fitting):
            return tuple(sorted(fitting, key=lambda package: not package.is_clients_own_package))
    return ()
