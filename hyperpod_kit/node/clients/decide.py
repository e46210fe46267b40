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
    """`packages`: the client's own, then what it needs; `why`: what is wrong with what is there."""

    packages: Tuple[Package, ...]
    why: str


@dataclass(frozen=True)
class Missing:
    """The client is not good, and no package of the bundle would help."""

    why: str
    hint: str


@dataclass(frozen=True)
class Machine:
    """What a package must fit. `arch`: as dpkg says it, "" without dpkg; `kernel`: as `uname -r` says it."""

    arch: str
    kernel: str


Decision = Union[Keep, Install, Missing]


def decide(want: RequiredClient, found: InstalledClient, packages: Sequence[Package], machine: Machine) -> Decision:
    """What to do about one client.

    A listed version that is newer than what is there is installed, an older one never. A Lustre client that fits
    the running kernel is kept whatever is listed: its module may be in use.
    """
    fitting = [package for package in packages if fits(package, want.client, machine)]
    own = own_package(want, packages, machine)
    problem = found.problem or _too_old(want, found.version, own)
    if not problem:
        return Keep(found.version)
    if own is not None:
        return Install((own, *(package for package in fitting if not package.is_own)), problem)
    return Missing(problem, _hint(want, packages, machine))


def own_package(want: RequiredClient, packages: Sequence[Package], machine: Machine) -> Optional[Package]:
    """The listed package that is the client itself and fits this machine."""
    return next((package for package in packages if package.is_own and fits(package, want.client, machine)), None)


def fits(package: Package, client: str, machine: Machine) -> bool:
    """Whether a package is for this client on this machine."""
    if package.client != client or ARCHITECTURES[package.arch] not in (machine.arch, "all"):
        return False
    own = CLIENTS[client]
    # Lustre's modules are built for one kernel each: those of another one would bring that kernel with them.
    return not (own.endswith("-") and package.is_own) or package.name == own + machine.kernel


def _too_old(want: RequiredClient, version: str, own: Optional[Package]) -> str:
    if not version or want.module:
        return ""
    if numbers(version) < numbers(want.minimum):
        return f"{want.program} is {version}, older than {want.minimum}"
    if own is not None and numbers(version) < numbers(own.version):
        return f"{want.program} is {version}, the bundle has {own.version}"
    return ""


def numbers(version: str) -> Tuple[int, ...]:
    """The upstream part of a version as numbers: `1:2.1.0-3ubuntu1` -> (2, 1, 0); () for ""."""
    upstream = version.split(":")[-1].split("-")[0]
    match = re.match(r"\d+(\.\d+)*", upstream)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _hint(want: RequiredClient, packages: Sequence[Package], machine: Machine) -> str:
    own = CLIENTS[want.client]
    needed = own + machine.kernel if own.endswith("-") else own
    others: List[str] = sorted(
        {
            f"{package.name} for {package.arch}"
            for package in packages
            if package.client == want.client and package.is_own
        }
    )
    listed = f"; listed are {', '.join(others)}" if others else ""
    return (
        f"list {needed} for {machine.arch or 'this machine'} under hyperpod_kit.clients, "
        f"or use an image that has it{listed}"
    )
