"""Where mounts may be: absolute, not over the system, not over each other."""

from __future__ import annotations

import posixpath
import re
from typing import Iterator

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.mounts.base import Mount

PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")

LONGEST = 200
"""Characters: systemd names units after paths, and no file name has more than 255."""

RESERVED = ("/", "/home", "/mnt", "/opt", "/root", "/srv", "/var", "/var/lib", "/var/log")
"""Directories that other things live in: a mount may lie inside, but not on top."""

RESERVED_TREES = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
    "/opt/aws",
    "/opt/dlami",
    "/opt/hyperpod-kit",
    "/opt/ml",
    "/opt/sagemaker",
    "/opt/sagemaker_cluster",
    "/opt/slurm",
    "/var/lib/hyperpod-kit",
    "/var/log/provision",
    "/var/run",
    "/var/spool",
    "/var/tmp",
)
"""Directories that belong to the system, to HyperPod or to the kit: nothing is mounted anywhere inside."""


def check_paths_absolute_and_plain(settings: Settings) -> Iterator[Finding]:
    """Paths are absolute, normalised and made of plain characters."""
    for mount, at in settings.sourced_mounts:
        path = mount.path
        if not path.startswith("/"):
            yield Finding("HPK-M010", f"{at}.path", f"`{path}` is not absolute", "Begin it with /")
        elif path != "/" and posixpath.normpath(path) != path:
            yield Finding(
                "HPK-M011", f"{at}.path", f"`{path}` is not normalised", f"Write `{posixpath.normpath(path)}`"
            )
        elif path != "/" and not (PATH.fullmatch(path) and len(path) <= LONGEST):
            plain = PATH.fullmatch(path) is not None
            problem = "has characters that a shell would change, and"
            if plain:
                problem = f"has {len(path)} characters, and"
            yield Finding(
                "HPK-M012",
                f"{at}.path",
                f"`{path}` {problem} systemd names units after it",
                f"Use up to {LONGEST} letters, digits and ._- between slashes",
            )


def check_paths_not_reserved(settings: Settings) -> Iterator[Finding]:
    """No mount hides a part of the system."""
    for mount, at in settings.sourced_mounts:
        tree = next((tree for tree in RESERVED_TREES if is_file_path_at_or_below(mount.path, tree)), None)
        if mount.traits.at_home and mount.path == "/home":
            continue  # where HyperPod and AWS's own scripts put it
        if mount.path in RESERVED or tree:
            yield Finding(
                "HPK-M013",
                f"{at}.path",
                f"`{mount.path}` is reserved: a mount there would hide {tree or mount.path} of the system",
                "Choose a directory of its own, like /fsx or /mnt/data",
            )


def warn_of_suid_and_devices(settings: Settings) -> Iterator[Finding]:
    """Warn of every mount with `suid_and_devices`: its server's root can make programs that are root on
    the nodes."""
    for mount, at in settings.sourced_mounts:
        if mount.suid_and_devices:
            yield Finding(
                "HPK-M016",
                f"{at}.suid_and_devices",
                f"whoever the server of `{mount.name}` takes for root makes a program there that is root on every "
                f"node which mounts it",
                "Remove it, unless set-user-id programs have to run from there and nobody else can write as root",
                WARNING,
            )


def check_paths_disjoint(settings: Settings) -> Iterator[Finding]:
    """No two mounts that one node can carry lie at the same place or inside each other; one finding a mount."""
    earlier_mounts: list[Mount] = []
    for mount, at in settings.sourced_mounts:
        for other in earlier_mounts:
            other_path, other_name = other.path, other.name
            if not _may_share_node(mount, other):
                continue
            if mount.path == other_path:
                yield Finding(
                    "HPK-M014",
                    f"{at}.path",
                    f"`{mount.path}` is where `{other_name}` is mounted too",
                    "Choose another path",
                )
                break
            if is_file_path_at_or_below(mount.path, other_path) or is_file_path_at_or_below(other_path, mount.path):
                yield Finding(
                    "HPK-M015",
                    f"{at}.path",
                    f"`{mount.path}` and `{other_path}` (`{other_name}`) lie inside each other",
                    "Put them side by side: the inner one vanishes whenever the outer one is mounted again",
                )
                break
        earlier_mounts.append(mount)


def _may_share_node(first: Mount, second: Mount) -> bool:
    """Whether a node may carry both."""
    groups_meet = not first.groups or not second.groups or set(first.groups) & set(second.groups)
    return bool(set(first.roles) & set(second.roles) and groups_meet)


def is_file_path_at_or_below(path: str, tree: str) -> bool:
    """Whether `path` is `tree` or lies below it."""
    return path == tree or path.startswith(tree.rstrip("/") + "/")
