"""See to it that this node can make its mounts: what creation's step `clients` does.

Nothing of it runs at a reboot: what is installed stays installed, and no mount unit downloads anything.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from typing import BinaryIO, List, Optional, Sequence, Tuple

from hyperpod_kit.errors import BundleIntegrityError, HyperpodKitError, NodeError, RunError
from hyperpod_kit.model.clients import ARCHITECTURES, Package
from hyperpod_kit.node.clients import apt
from hyperpod_kit.node.clients.decide import Decision, Install, Keep, Machine, Missing, decide, find_client_package
from hyperpod_kit.node.clients.installed import InstalledClient, inspect_installed_client
from hyperpod_kit.node.clients.required import RequiredClient, required_clients
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.machine.timing import wait_for
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor


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
            installed = InstalledClient(f"{client_package.name} is only partly installed")
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
            f"{client_package.name} {client_package.version} is installed, but still {decision_after.reason}",
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


# Hold what would move the kernel away from the Lustre client: at the next reboot the mount would be gone.
#
# Unattended upgrades bring a kernel for which there is no client yet (aws-parallelcluster #2095); AWS's own base
# image holds lustre-client-modules-aws for the same reason.

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


# A package's file: out of the bundle, or from its pinned URL with a deadline; either way its sha256 decides.

DOWNLOAD_SECONDS = 180.0
"""Seconds in which a download must succeed, all attempts together."""

SOCKET_SECONDS = 15.0
"""Longest silence of a server."""

LARGEST = 1 << 30
"""Bytes: no client is a tenth of that, and a stream without an end must not fill the disk."""

WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)


def obtain_verified_file(node: Node, package: Package, *, seconds: float = DOWNLOAD_SECONDS) -> str:
    """Path of the package's file, verified just now. Raises BundleIntegrityError, NodeError."""
    if not package.url:
        path = f"{node.paths.bundle}/{package.bundle_path}"
        digest = sha256_of(path)
        if digest is None:
            raise NodeError(
                f"{package.bundle_path} is not in the bundle", hint="hyperpod-kit upload with the same version"
            )
        if digest != package.sha256:
            raise BundleIntegrityError(package.bundle_path, package.sha256, digest)
        return path
    path = f"{node.paths.package_cache}/{package.sha256}.deb"
    if sha256_of(path) != package.sha256:
        _download_verified_with_retries(node, package, path, seconds)
    return path


def delete_downloaded_file(node: Node, package: Package) -> None:
    """Remove a downloaded file that has served its purpose."""
    if package.url:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(f"{node.paths.package_cache}/{package.sha256}.deb")


def sha256_of(path: str) -> Optional[str]:
    """Digest of a file, None when there is none."""
    try:
        with open(path, "rb") as stream:
            return _sha256(stream)
    except FileNotFoundError:
        return None


def _sha256(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: stream.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


def _download_verified_with_retries(node: Node, package: Package, path: str, seconds: float) -> None:
    by_descriptor.make_directories(os.path.dirname(path), 0o700)
    end = node.clock.monotonic() + seconds
    errors: List[str] = []

    def try_download() -> Optional[bool]:
        try:
            with atomic_file.open_for_atomic_replace(path) as stream:
                _download_once_into_stream(node, package.url, stream, end)
                stream.seek(0)
                digest = _sha256(stream)
                if digest != package.sha256:
                    raise NodeError(
                        f"{package.url}: expected sha256 {package.sha256}, found {digest}",
                        hint="the file at the url has changed, or hyperpod_kit.clients has a wrong sha256",
                    )
        except urllib.error.HTTPError as err:
            if err.code not in WORTH_ANOTHER_TRY:
                raise NodeError(
                    f"{package.url}: HTTP {err.code} {err.reason}",
                    hint="correct `url` under hyperpod_kit.clients, or give the package as a file",
                ) from err
            errors.append(f"HTTP {err.code}")
            return None
        except (OSError, http.client.HTTPException) as err:  # URLError is an OSError
            errors.append(str(getattr(err, "reason", err)) or type(err).__name__)
            return None
        return True

    if wait_for(try_download, seconds=seconds, clock=node.clock, first=1.0, longest=15.0) is None:
        raise NodeError(
            f"{package.url}: no download within {seconds:g} s: {errors[-1]}",
            hint="give the package as a file: it is then part of the bundle, and needs no internet access",
        )


def _download_once_into_stream(node: Node, url: str, stream: BinaryIO, end: float) -> None:
    """Download the URL into the stream, once. Raises OSError or http.client.HTTPException for anything that
    another try may cure.

    The resolver has a deadline of its own (resolv.conf), every other wait has one here.
    """
    remaining = max(1.0, min(SOCKET_SECONDS, end - node.clock.monotonic()))
    with urllib.request.urlopen(url, timeout=remaining) as response:
        announced = response.headers.get("Content-Length")
        while True:
            # read1: `read` would wait for a whole block from a server that trickles, for as long as it likes.
            block = response.read1(1 << 16)
            if not block:
                break
            stream.write(block)
            if stream.tell() > LARGEST:
                raise NodeError(f"{url}: more than {LARGEST >> 20} MiB, too large for a client package")
            if node.clock.monotonic() > end:
                raise OSError(f"{stream.tell()} bytes in time, of {announced or 'an unknown number'}")
        if announced is not None and stream.tell() != int(announced):
            raise OSError(f"the connection broke after {stream.tell()} of {announced} bytes")
