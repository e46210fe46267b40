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
from hyperpod_kit.node.clients.decide import Decision, Install, Keep, Machine, Missing, decide, own_package
from hyperpod_kit.node.clients.fetch import drop, obtain
from hyperpod_kit.node.clients.installed import InstalledClient, installed_client
from hyperpod_kit.node.clients.lustre_hold import hold_lustre, to_hold
from hyperpod_kit.node.clients.required import RequiredClient, required_clients
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.step import Step, StepOutcome


def install_clients(node: Node) -> Tuple[bool, str]:
    """Install what the mounts of this node need and what is not good already; (changed, what was done or is wrong).

    A client that only optional mounts need does not fail the node. Otherwise raises NodeError or
    BundleIntegrityError, with all that is wrong.
    """
    wants = required_clients(node.mounts)
    done: List[str] = []
    notes: List[str] = []
    errors: List[HyperpodKitError] = []
    for want in wants:
        try:
            done += _see_to(node, want)
            if want.module:
                done += _hold(node, notes)
        except HyperpodKitError as err:
            if want.required:
                errors.append(err)
            else:
                notes.append(f"{', '.join(want.mounts)}: {err.message}")
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise NodeError("; ".join(err.message for err in errors), hint=errors[0].hint)
    return bool(done), "; ".join(done + notes)


def pending(node: Node) -> str:
    """What `install_clients` would do now, "" for nothing. Reads only."""
    said = []
    for want in required_clients(node.mounts):
        decision = _decide(node, want)
        if isinstance(decision, Install):
            said.append(f"install {', '.join(package.name for package in decision.packages)}: {decision.why}")
        elif isinstance(decision, Missing):
            said.append(f"{decision.why}: {decision.hint}")
        if want.module:
            names = to_hold(node)
            said += [f"hold {', '.join(names)}"] if names else []
    return "; ".join(said)


def _decide(node: Node, want: RequiredClient) -> Decision:
    found = installed_client(node, want)
    machine = Machine(apt.architecture(node) if found.problem or node.config.packages else "", os.uname().release)
    own = own_package(want, node.config.packages, machine)
    if own is not None and not found.problem:
        # A crash between unpacking and configuring leaves a program that runs and a package that is not finished.
        there = apt.installed(node, own.name)
        if there is not None and not there.whole:
            found = InstalledClient(f"{own.name} is only half installed")
    return decide(want, found, node.config.packages, machine)


def _see_to(node: Node, want: RequiredClient) -> List[str]:
    """Make one client good; what was done for it."""
    decision = _decide(node, want)
    if isinstance(decision, Missing):
        raise NodeError(decision.why, hint=decision.hint)
    if isinstance(decision, Keep):
        return []
    own = decision.packages[0]
    install_packages(node, decision.packages, held_too=bool(want.module))
    again = _decide(node, want)
    if not isinstance(again, Keep):
        raise NodeError(
            f"{own.name} {own.version} is installed, and still {again.why}",
            hint=f"on the node: dpkg --verify {own.name}",
        )
    return [f"installed {own.name} {own.version}: {decision.why}"]


def _hold(node: Node, notes: List[str]) -> List[str]:
    """Hold what belongs to Lustre; what was not possible is a note: the mount works until the next kernel."""
    try:
        held = hold_lustre(node)
    except HyperpodKitError as err:
        notes.append(err.message)
        return []
    return [f"held {', '.join(held)}"] if held else []


def install_packages(node: Node, packages: Sequence[Package], *, held_too: bool = False) -> None:
    """Get the files of a program's own package, the first, and of what it needs and is not there; check that they are
    what they are listed as, and install them. Raises NodeError, BundleIntegrityError."""
    own = packages[0]
    needed = [package for package in packages if package is own or _lacks(node, package)]
    files = [obtain(node, package) for package in needed]
    for package, path in zip(needed, files):
        _check(node, package, path)
    apt.install(node, files, [package.name for package in needed], held_too=held_too)
    for package in needed:
        drop(node, package)


def _lacks(node: Node, package: Package) -> bool:
    """Whether a dependency is not there, not whole, or older than listed: newer ones are never replaced."""
    there = apt.installed(node, package.name)
    return there is None or not there.whole or apt.newer(node, package.version, there.version)


def _check(node: Node, package: Package, path: str) -> None:
    """Raise NodeError unless the file is the package that it is listed as."""
    listed = apt.Control(package.name, package.version, ARCHITECTURES[package.arch])
    found = apt.control(node, path)
    if found != listed:
        raise NodeError(
            f"{os.path.basename(path)} is {found.name} {found.version} for {found.arch}, "
            f"listed as {listed.name} {listed.version} for {listed.arch}",
            hint="correct hyperpod_kit.clients, then hyperpod-kit upload",
        )


def _run(node: Node) -> StepOutcome:
    return StepOutcome(*install_clients(node))


STEP = Step("clients", _run, pending)
