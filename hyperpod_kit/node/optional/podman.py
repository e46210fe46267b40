"""Podman, with what it unpacks on the node's local disk where it has one: each user's in a directory of their own.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import local_disk, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.untrusted import by_descriptor

# What Podman's package only recommends, and who is not root needs: more than one id, a network, a file system.
BESIDE = ("uidmap", "slirp4netns", "fuse-overlayfs")
PODMAN = Software(("/usr/bin/podman",), ("podman",), BESIDE)
CONF = "/etc/containers/storage.conf"
HEADER = "# Written by hyperpod-kit"
TEXT = (
    HEADER
    + """ from the bundle's configuration: change that, not this file.
[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "{place}/podman/root"
rootless_storage_path = "{place}/podman/$UID"
"""
)


def _expected_conf_or_empty_if_foreign(node: Node) -> str:
    """Text of storage.conf; "" where there is no such disk, or somebody else has written one."""
    disk = local_disk.find_local_disk_or_volume_path(node)
    current = read_text(node.paths.under_root(CONF))
    if disk and (current is None or current.startswith(HEADER)):
        return TEXT.format(place=disk)
    return ""


def _apply_podman(node: Node) -> StepOutcome:
    text = _expected_conf_or_empty_if_foreign(node)
    done = []
    if text and write_if_different(node.paths.under_root(CONF), text):
        done = ["wrote its storage.conf"]
    if ensure_directory(node):
        done += ["created its directory"]
    else:
        done += []
    done.append(software.ensure_installed(node, PODMAN))
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _describe_pending_changes(node: Node) -> str:
    text = _expected_conf_or_empty_if_foreign(node)
    parts = []
    if text and read_text(node.paths.under_root(CONF)) != text:
        parts.append(f"write {CONF}")
    parts.append(software.describe_pending_install(node, PODMAN))
    return "; ".join(part for part in parts if part)


def _undo_podman(node: Node) -> str:
    if (read_text(node.paths.under_root(CONF)) or "").startswith(HEADER):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.under_root(CONF))
    return "Podman unpacks to its previous directory; its images on the local disk are kept until the disk is lost"


def ensure_directory(node: Node) -> bool:
    """Make the directory in which every user has a directory of their own: the disk is empty again after a
    boot. Raises OSError."""
    disk = local_disk.find_local_disk_or_volume_path(node)
    return bool(disk and _expected_conf_or_empty_if_foreign(node)) and local_disk.ensure_world_writable_directory(
        node, f"{disk}/podman"
    )


STEP = OptionalStep("podman", _apply_podman, _describe_pending_changes, _undo_podman)
