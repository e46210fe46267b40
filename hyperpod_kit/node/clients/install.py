"""See to it that this node can make its mounts: what creation's step `clients` does.

Nothing of it runs at a reboot: what is installed stays installed, and no mount unit downloads anything.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import List, Sequence, Tuple

from hyperpod_kit.errors import HyperpodKitError, NodeError
from hyperpod_kit.model.clients import ARCHITECTURES, Package
from hyperpod_kit.node.clients import apt
from hyperpod_kit.node.clients.decide import Decision, Install, Keep, Machine, Missing, decide, find_client_package
from hyperpod_kit.node.clients.fetch import delete_downloaded_file, obtain_verified_file
from hyperpod_kit.node.clients.installed import InstalledClient, inspect_installed_client
from hyperpod_kit.node.clients.lustre_hold import hold_lustre_and_kernel_packages, lustre_and_kernel_packages_to_hold
from hyperpod_kit.node.clients.required import RequiredClient, required_clients
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.step import Step, StepOutcome


def install_missing_mount_clients(node: Node) -> Tuple[bool, str]:
    """Install what the mounts of this node need and what is not good already; return (changed, what was done
    or is wrong).

    A client that only optional mounts need does not fail the node. Otherwise raises NodeError or
    BundleIntegrityError, with all that is wrong.
    """
    requirements = required_clients(node.mounts)
    done: List[str] = []
    notes: List[str] = []
    errors: List[HyperpodKitError] = []
    for requirement in requirements:
        try:
            done += _install_client_if_needed_and_describe(node, requirement)
            if requirement.module:
                done += _hold_lustre_packages_noting_failure(node, notes)
        except HyperpodKitError as err:
            if requirement.required:
                errors.append(err)
            else:
                notes.append(f"{', '.join(requirement.mounts)}: {err.message}")
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise NodeError("; ".join(err.message for err in errors), hint=errors[0].hint)
    return bool(done), "; ".join(done + notes)


def describe_pending_changes(node: Node) -> str:
    """What `install_missing_mount_clients` would do now, "" for nothing. Reads only."""
    changes = []
    for requirement in required_clients(node.mounts):
        decision = _inspect_client_and_decide(node, requirement)
        if isinstance(decision, Install):
            changes.append(f"install {', '.join(package.name for package in decision.packages)}: {decision.reason}")
        elif isinstance(decision, Missing):
            changes.append(f"{decision.reason}: {decision.hint}")
        if requirement.module:
            names = lustre_and_kernel_packages_to_hold(node)
            if names:
                changes += [f"hold {', '.join(names)}"]
            else:
                changes += []
    return "; ".join(changes)


def _inspect_client_and_decide(node: Node, requirement: RequiredClient) -> Decision:
    installed = inspect_installed_client(node, requirement)
    architecture = ""
    if installed.problem or node.config.packages:
        architecture = apt.architecture(node)
    machine = Machine(architecture, os.uname().release)
    client_package = find_client_package(requirement, node.config.packages, machine)
    if client_package is not None and not installed.problem:
        # A crash between unpacking and configuring leaves a program that runs and a package that is not finished.
        package = apt.query_package(node, client_package.name)
        if package is not None and not package.complete:
            installed = InstalledClient(f"{client_package.name} is only half installed")
    return decide(requirement, installed, node.config.packages, machine)


def _install_client_if_needed_and_describe(node: Node, requirement: RequiredClient) -> List[str]:
    """Install one client if need be, and return what was done for it."""
    decision = _inspect_client_and_decide(node, requirement)
    if isinstance(decision, Missing):
        raise NodeError(decision.reason, hint=decision.hint)
    if isinstance(decision, Keep):
        return []
    client_package = decision.packages[0]
    install_client_package_and_missing_dependencies(node, decision.packages, include_held=bool(requirement.module))
    decision_after = _inspect_client_and_decide(node, requirement)
    if not isinstance(decision_after, Keep):
        raise NodeError(
            f"{client_package.name} {client_package.version} is installed, and still {decision_after.reason}",
            hint=f"on the node: dpkg --verify {client_package.name}",
        )
    return [f"installed {client_package.name} {client_package.version}: {decision.reason}"]


def _hold_lustre_packages_noting_failure(node: Node, notes: List[str]) -> List[str]:
    """Hold what belongs to Lustre; what was not possible is a note: the mount works until the next kernel."""
    try:
        names = hold_lustre_and_kernel_packages(node)
    except HyperpodKitError as err:
        notes.append(err.message)
        return []
    if names:
        return [f"held {', '.join(names)}"]
    return []


def install_client_package_and_missing_dependencies(
    node: Node, packages: Sequence[Package], *, include_held: bool = False
) -> None:
    """Obtain the files of a program's own package, the first, and of what it needs and is missing; verify that
    they are what they are listed as, and install them. Raises NodeError, BundleIntegrityError."""
    client_package = packages[0]
    needed = [
        package for package in packages if package is client_package or _is_missing_incomplete_or_older(node, package)
    ]
    files = [obtain_verified_file(node, package) for package in needed]
    for package, path in zip(needed, files):
        _require_listed_package(node, package, path)
    apt.install_package_files_only(node, files, [package.name for package in needed], include_held=include_held)
    for package in needed:
        delete_downloaded_file(node, package)


def _is_missing_incomplete_or_older(node: Node, package: Package) -> bool:
    """Whether a dependency is not there, not whole, or older than listed: newer ones are never replaced."""
    installed = apt.query_package(node, package.name)
    return installed is None or not installed.complete or apt.is_newer(node, package.version, installed.version)


def _require_listed_package(node: Node, package: Package, path: str) -> None:
    """Raise NodeError unless the file is the package that it is listed as."""
    listed = apt.Control(package.name, package.version, ARCHITECTURES[package.arch])
    control = apt.read_control(node, path)
    if control != listed:
        raise NodeError(
            f"{os.path.basename(path)} is {control.name} {control.version} for {control.arch}, "
            f"listed as {listed.name} {listed.version} for {listed.arch}",
            hint="correct hyperpod_kit.clients, then hyperpod-kit upload",
        )


def _apply_clients(node: Node) -> StepOutcome:
    return StepOutcome(*install_missing_mount_clients(node))


STEP = Step("clients", _apply_clients, describe_pending_changes)
