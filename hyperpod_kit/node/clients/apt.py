"""Local packages into this system: exactly those that are named, once nobody else installs something.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, TypeVar

from hyperpod_kit.errors import NodeError, RunError, RunTimeout
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.timing import wait_for

T = TypeVar("T")

LOCK_SECONDS = 300.0
"""How long others may hold the package lock: at a first boot unattended-upgrades does, for minutes."""

INSTALL_SECONDS = 300.0
"""Longest that one run of apt may take; Lustre's modules are registered for every kernel (depmod)."""

# NEEDRESTART_SUSPEND: Ubuntu 24.04 restarts services after every installation, slurmd among them.
UPDATE_SECONDS = 120.0
SOURCES = ("-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15", "-o", "Acquire::Retries=1")
"""A node without a way out must not wait for a way out for minutes at each of its sources."""

ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C"}

OPTIONS = (
    "-q",
    "-y",
    "--no-install-recommends",
    "--reinstall",
    # What an admin has changed in a configuration file stays, and nobody is asked.
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    # apt's own waiting is for two of three locks only, and older ones do not say for whom they wait.
    "-o",
    "DPkg::Lock::Timeout=0",
)
"""--reinstall: apt takes a package that a crash left half installed for an installed one."""

LOCKED = ("Could not get lock", "Unable to acquire the dpkg frontend lock", "Unable to lock", "lock was locked by")
"""What apt and dpkg say when another process has a lock. dpkg waits for none, apt never for the one on its cache."""

INTERRUPTED = "dpkg was interrupted"


@dataclass(frozen=True)
class Control:
    """What a package file says of itself."""

    name: str
    version: str
    arch: str


@dataclass(frozen=True)
class Installed:
    """A package in dpkg's database. `complete`: unpacked and configured, nothing left to do."""

    version: str
    complete: bool


def architecture(node: Node) -> str:
    """This system's architecture as dpkg says it, "" without dpkg."""
    try:
        return node.runner.run(["dpkg", "--print-architecture"], timeout=20).stdout.strip()
    except RunError:
        return ""


def read_control(node: Node, path: str) -> Control:
    """Read name, version and architecture of a package file. Raises NodeError when it is none."""
    try:
        done = node.runner.run(
            ["dpkg-deb", "--showformat=${Package}\n${Version}\n${Architecture}\n", "--show", path], timeout=60
        )
        name, version, arch = done.stdout.split("\n")[:3]
    except (RunError, ValueError) as err:
        raise NodeError(f"{path} is not a Debian package: {err}") from err
    return Control(name, version, arch)


def query_package(node: Node, name: str) -> Optional[Installed]:
    """Query dpkg for an installed package; None when it is not there at all."""
    done = node.runner.run(
        ["dpkg-query", "--showformat=${Version}\t${db:Status-Status}\t${db:Status-Eflag}\n", "--show", name],
        timeout=20,
        check=False,
    )
    version, _, status = done.stdout.strip().partition("\t")
    if version:
        return Installed(version, status == "installed\tok")
    return None


def is_newer(node: Node, version: str, than: str) -> bool:
    """Whether `version` is the later one in dpkg's order."""
    return node.runner.run(["dpkg", "--compare-versions", version, "gt", than], timeout=20, check=False).returncode == 0


def install_package_files_only(
    node: Node, paths: Sequence[str], names: Sequence[str], *, include_held: bool = False, seconds: float = LOCK_SECONDS
) -> None:
    """Install the package files `paths`, which hold the packages `names`, and nothing besides.

    include_held: also those that are held, for what we hold ourselves; an admin's hold stays.
    Raises NodeError when something else would be installed or removed (a kernel, a library of whatever version the
    package sources have today), when the lock is not free within `seconds`, or when dpkg fails.
    """
    options = list(OPTIONS)
    if include_held:
        options.append("--allow-change-held-packages")
    _refuse_other_packages(_simulate_install(node, options, paths, names), names)

    def run() -> None:
        node.runner.run(
            ["apt-get", *options, "--no-remove", "install", *paths], timeout=INSTALL_SECONDS, env=ENVIRONMENT
        )

    retry_until_package_lock_is_free(node, run, f"install {', '.join(names)}", seconds=seconds)


def install_from_apt_repositories(node: Node, *names: str, seconds: float = LOCK_SECONDS) -> None:
    """Install packages and what they need from the package sources that this system has; nothing is removed for them.

    Raises NodeError when there is no way to them, a package is not there, or the lock is not free in time.
    """

    def run() -> None:
        node.runner.run(["apt-get", *SOURCES, "update"], timeout=UPDATE_SECONDS, env=ENVIRONMENT)
        node.runner.run(
            ["apt-get", *OPTIONS, *SOURCES, "--no-remove", "install", *names], timeout=INSTALL_SECONDS, env=ENVIRONMENT
        )

    retry_until_package_lock_is_free(node, run, f"install {', '.join(names)}", seconds=seconds)


def hold_packages(node: Node, names: Sequence[str], *, seconds: float) -> None:
    """Keep upgrades away from installed packages. Raises NodeError."""
    retry_until_package_lock_is_free(
        node,
        lambda: node.runner.run(["apt-mark", "hold", *names], timeout=60, env=ENVIRONMENT),
        f"hold {', '.join(names)}",
        seconds=seconds,
    )


def retry_until_package_lock_is_free(node: Node, action: Callable[[], T], what: str, *, seconds: float) -> None:
    """Retry `action` until no package lock is in its way; first complete what a killed dpkg has left undone.

    Raises NodeError with whoever holds the lock, or with the error that is no lock's.
    """
    holder = ""

    def try_action() -> Optional[bool]:
        nonlocal holder
        for step in (action, lambda: _finish_interrupted_dpkg(node), action):
            try:
                step()
            except RunError as err:
                output = err.stdout + err.stderr
                if any(lock_message in output for lock_message in LOCKED):
                    holder = lock_holder(output) or holder
                    return None
                if step is action and INTERRUPTED in output:
                    continue
                raise NodeError(
                    f"cannot {what}: {failure_line(err)}", hint="on the node: /var/log/apt/term.log"
                ) from err
            if step is action:
                return True
        return None

    if wait_for(try_action, seconds=seconds, clock=node.clock, first=0.5, longest=2.0) is None:
        by_whom = ""
        if holder:
            by_whom = f" by {holder}"
        raise NodeError(
            f"cannot {what}: the package lock is held{by_whom} and was not released within {seconds:g} s",
            hint="on the node: systemctl status apt-daily*",
        )


def _finish_interrupted_dpkg(node: Node) -> None:
    node.runner.run(
        ["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"], timeout=INSTALL_SECONDS, env=ENVIRONMENT
    )


def _simulate_install(node: Node, options: Sequence[str], paths: Sequence[str], names: Sequence[str]) -> str:
    """Return apt's output for a simulated installation, which takes no lock and changes nothing. Raises
    NodeError when apt cannot install them."""
    try:
        return node.runner.run(
            ["apt-get", *options, "--simulate", "install", *paths], timeout=120, env=ENVIRONMENT
        ).stdout
    except RunError as err:
        reason = "; ".join(unmet_dependencies(err.stdout)) or failure_line(err)
        raise NodeError(
            f"cannot install {', '.join(names)}: {reason}",
            hint="list what is missing under hyperpod_kit.clients, with the same `client`",
        ) from err


def unmet_dependencies(output: str) -> List[str]:
    """What apt finds missing: ` nfs-common : Depends: rpcbind but it is …`, further lines without the name."""
    dependencies, name = [], ""
    for line in output.splitlines():
        match = re.match(r"^ (?:(\S+) : |\s{3,})(?:Pre)?Depends: (.+?)(?: but .*)?$", line)
        if match:
            name = match.group(1) or name
            dependencies.append(f"{name} needs {match.group(2)}")
    return dependencies


def _refuse_other_packages(simulated_output: str, names: Sequence[str]) -> None:
    other_packages = []
    for verb, name, version in re.findall(r"^(Inst|Remv) (\S+) (?:\[\S+\] )?\(?(\S*)", simulated_output, re.MULTILINE):
        if verb == "Remv":
            raise NodeError(
                f"installing {', '.join(names)} would remove {name}",
                hint="list packages that were built for this release of the operating system",
            )
        if name.split(":")[0] not in names:
            other_packages.append(f"{name} {version}")
    if other_packages:
        raise NodeError(
            f"installing {', '.join(names)} would also install {', '.join(other_packages)}",
            hint="list them under hyperpod_kit.clients too, but never a kernel",
        )


def lock_holder(output: str) -> str:
    """Who holds the lock, from apt's or dpkg's words: `process 812 (unattended-upgr)`."""
    holders: List[str] = re.findall(r"(?:held by|another) (process (?:with pid )?\d+(?: \([^)]*\))?)", output)
    if holders:
        return holders[-1]
    return ""


def failure_line(err: RunError) -> str:
    """Return the line of the output that says why it failed, not apt's last one, which only says that dpkg
    failed."""
    if isinstance(err, RunTimeout):
        return err.message
    lines = [line.strip() for line in (err.stderr + "\n" + err.stdout).splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if line.startswith("dpkg: error processing"):
            return " ".join(lines[index : index + 2])
    return next((line for line in lines if line.startswith(("E: ", "dpkg: error"))), err.message)
