"""Keep a client, install it, or say what is missing: pure, from what is there and what the bundle lists.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple, Union

from hyperpod_kit.model.clients import ARCHITECTURES, CLIENTS, Package
from hyperpod_kit.node.clients.installed import InstalledClient
from hyperpod_kit.node.clients.required import RequiredClient


@dataclass(frozen=True)
class Keep:
    """The client is good as it is."""

    version: str


@dataclass(frozen=True)
class Install:
    """`packages`: the client's own, then what it needs; `reason`: what is wrong with what is there."""

    packages: Tuple[Package, ...]
    reason: str


@dataclass(frozen=True)
class Missing:
    """The client is not good, and no package of the bundle would help."""

    reason: str
    hint: str


@dataclass(frozen=True)
class Machine:
    """What a package must fit. `arch`: as dpkg says it, "" without dpkg; `kernel`: as `uname -r` says it."""

    arch: str
    kernel: str


Decision = Union[Keep, Install, Missing]


def decide(
    requirement: RequiredClient, installed: InstalledClient, packages: Sequence[Package], machine: Machine
) -> Decision:
    """Decide what to do about one client.

    A listed version that is newer than what is there is installed, an older one never. A Lustre client that
    fits the running kernel is kept whatever is listed: its module may be in use.
    """
    fitting = [
        package for package in packages if is_package_for_client_and_machine(package, requirement.client, machine)
    ]
    client_package = find_client_package(requirement, packages, machine)
    problem = installed.problem or _age_problem(requirement, installed.version, client_package)
    if not problem:
        return Keep(installed.version)
    if client_package is not None:
        return Install(
            (client_package, *(package for package in fitting if not package.is_clients_own_package)), problem
        )
    return Missing(problem, _missing_client_hint(requirement, packages, machine))


def find_client_package(
    requirement: RequiredClient, packages: Sequence[Package], machine: Machine
) -> Optional[Package]:
    """The listed package that is the client itself and fits this machine."""
    return next(
        (
            package
            for package in packages
            if package.is_clients_own_package
            and is_package_for_client_and_machine(package, requirement.client, machine)
        ),
        None,
    )


def is_package_for_client_and_machine(package: Package, client: str, machine: Machine) -> bool:
    """Whether a package is for this client on this machine."""
    if package.client != client or ARCHITECTURES[package.arch] not in (machine.arch, "all"):
        return False
    package_name = CLIENTS[client]
    # Lustre's modules are built for one kernel each: those of another one would bring that kernel with them.
    return (
        not (package_name.endswith("-") and package.is_clients_own_package)
        or package.name == package_name + machine.kernel
    )


def _age_problem(requirement: RequiredClient, version: str, client_package: Optional[Package]) -> str:
    if not version or requirement.module:
        return ""
    if version_numbers(version) < version_numbers(requirement.minimum):
        return f"{requirement.program} is {version}, older than {requirement.minimum}"
    if client_package is not None and version_numbers(version) < version_numbers(client_package.version):
        return f"{requirement.program} is {version}, but the bundle has {client_package.version}"
    return ""


def version_numbers(version: str) -> Tuple[int, ...]:
    """The upstream part of a version as numbers: `1:2.1.0-3ubuntu1` -> (2, 1, 0); () for ""."""
    upstream = version.split(":")[-1].split("-")[0]
    match = re.match(r"\d+(\.\d+)*", upstream)
    if match:
        return tuple(int(part) for part in match.group().split("."))
    return ()


def _missing_client_hint(requirement: RequiredClient, packages: Sequence[Package], machine: Machine) -> str:
    package_name = CLIENTS[requirement.client]
    if package_name.endswith("-"):
        needed = package_name + machine.kernel
    else:
        needed = package_name
    other_packages: List[str] = sorted(
        {
            f"{package.name} for {package.arch}"
            for package in packages
            if package.client == requirement.client and package.is_clients_own_package
        }
    )
    listed = ""
    if other_packages:
        listed = f"; listed are {', '.join(other_packages)}"
    return (
        f"list {needed} for {machine.arch or 'this machine'} under hyperpod_kit.clients, "
        f"or use an image that has it{listed}"
    )
