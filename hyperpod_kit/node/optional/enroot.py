"""Enroot, with what it unpacks on the node's local disk where it has one: each user's in directories of their own.

What /etc/enroot/enroot.conf says stays: enroot reads it before the file that is ours, and the first word counts.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from typing import Dict

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import local_disk, software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.untrusted import by_descriptor

ENROOT = Software(("/usr/bin/enroot", "/usr/local/bin/enroot"), ("enroot",))
CONF = "/etc/enroot/enroot.conf.d/50-hyperpod-kit.conf"
TMPFILES = "/etc/tmpfiles.d/hyperpod-kit-enroot.conf"
RUNTIME = "/run/enroot"
WITHOUT_DISK = "/var/lib"
TEXT = """\
# Written by hyperpod-kit from the bundle's configuration: change that, not this file.
ENROOT_RUNTIME_PATH {runtime}/user-$(id -u)
ENROOT_CACHE_PATH {place}/cache-$(id -u)
ENROOT_DATA_PATH {place}/data-$(id -u)
ENROOT_TEMP_PATH {place}/tmp
"""


def _data_directory(node: Node) -> str:
    # Never a home: enroot's own default, where a home on a network file system would hold every image unpacked.
    return f"{local_disk.find_local_disk_or_volume_path(node) or WITHOUT_DISK}/enroot"


def _expected_files(node: Node) -> Dict[str, str]:
    """Return path -> text of each file. The directory in /run is made again at boot, before a job can come."""
    return {
        node.paths.under_root(CONF): TEXT.format(runtime=RUNTIME, place=_data_directory(node)),
        node.paths.under_root(TMPFILES): f"d {RUNTIME} 1777 root root -\n",
    }


def _apply_enroot(node: Node) -> StepOutcome:
    done = []
    written = [path for path, text in _expected_files(node).items() if write_if_different(path, text)]
    if written:
        done.append(f"wrote {', '.join(os.path.basename(path) for path in written)}")
    if ensure_directories(node):
        done += ["created its directories"]
    else:
        done += []
    done.append(software.ensure_installed(node, ENROOT))
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _describe_pending_changes(node: Node) -> str:
    outdated = [path for path, text in _expected_files(node).items() if read_text(path) != text]
    parts = []
    if outdated:
        parts.append(f"write {', '.join(outdated)}")
    parts.append(software.describe_pending_install(node, ENROOT))
    return "; ".join(part for part in parts if part)


def _undo_enroot(node: Node) -> str:
    for path in _expected_files(node):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    return "enroot unpacks to its previous directory; unpacked images are kept"


def ensure_directories(node: Node) -> bool:
    """Make the directories in which every user has a directory of their own: the disk is empty again after a
    boot. Raises OSError."""
    directory = _data_directory(node)
    made = [local_disk.ensure_world_writable_directory(node, path) for path in (RUNTIME, directory, f"{directory}/tmp")]
    return any(made)


# Required: Slurm takes no node without pyxis where that is on, which takes none without enroot.
STEP = OptionalStep("enroot", _apply_enroot, _describe_pending_changes, _undo_enroot, required=True)
