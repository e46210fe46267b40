"""Users go from node to node by ssh without a password, and no key of a user lies anywhere: nodes vouch for their users
(hostbased authentication of OpenSSH), and know each other by their host keys (host_keys.py).

Root is left out: sshd takes no node's word for it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
from typing import Dict

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import host_keys
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.slurm.hooks import without_kit_block
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

CLIENT = "/etc/ssh/ssh_config.d/50-hyperpod-kit.conf"
SERVER = "/etc/ssh/sshd_config.d/50-hyperpod-kit.conf"
HEADER = "# Written by hyperpod-kit: ssh between the nodes of the cluster.\n"
TEXTS: Dict[str, str] = {
    CLIENT: HEADER + "HostbasedAuthentication yes\nEnableSSHKeysign yes\n",
    # A name is worth as much as the key that it comes with; no user can add to the names or the keys.
    SERVER: HEADER
    + "HostbasedAuthentication yes\nHostbasedUsesNameFromPacketOnly yes\nIgnoreRhosts yes\nIgnoreUserKnownHosts yes\n",
}
RELOAD = "sshd-reload"
UNITS = ("ssh.service", "sshd.service")


def host_keys_mount(node: Node) -> Mount:
    """Return the mount on which the nodes find each other's host keys. Raises NodeError where the
    configuration has none."""
    configuration = node.config.steps.ssh_between_nodes
    if configuration is None or not configuration.mount:
        raise NodeError(
            "no mount that the nodes share for their host keys",
            hint="set a mount that every node has: hyperpod_kit.steps.ssh_between_nodes.mount",
        )
    return node.mount(configuration.mount)


def _apply_ssh_between_nodes(node: Node) -> StepOutcome:
    mount = host_keys_mount(node)
    changed = host_keys.publish_local_keys(node, mount)
    changed = host_keys.update_known_hosts_from_joined_keys(node, mount) or changed
    for path, text in TEXTS.items():
        if read_text(node.paths.under_root(path)) != text:
            deferred_actions.record_action(node, RELOAD)
            changed = write_if_different(node.paths.under_root(path), text) or changed
    _reload_sshd_if_recorded(node)
    if not changed:
        return StepOutcome()
    host_names = host_keys.count_trusted_host_names(node)
    return StepOutcome(True, f"{counted(host_names, 'host name is', 'host names are')} trusted")


def _describe_pending_changes(node: Node) -> str:
    differing = [path for path, text in TEXTS.items() if read_text(node.paths.under_root(path)) != text]
    parts = []
    if differing:
        parts.append(f"write {', '.join(differing)}")
    if deferred_actions.is_recorded(node, RELOAD):
        parts.append("reload sshd")
    if not host_keys.are_local_keys_published(node):
        parts.append(f"put this node's host keys on {host_keys_mount(node).path}")
    return "; ".join(part for part in parts if part)


def _undo_ssh_between_nodes(node: Node) -> str:
    deferred_actions.record_action(node, RELOAD)
    for path in TEXTS:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(node.paths.under_root(path))
    for path in (host_keys.KNOWN_HOSTS, host_keys.EQUIVALENT):
        text = read_text(node.paths.under_root(path))
        if text is not None and without_kit_block(text) != text:
            write_if_different(node.paths.under_root(path), without_kit_block(text))
    host_keys.delete_stamps(node)
    _reload_sshd_if_recorded(node)
    return "ssh between nodes needs passwords or keys again"


def _reload_sshd_if_recorded(node: Node) -> None:
    if not deferred_actions.is_recorded(node, RELOAD):
        return
    unit = next((unit for unit in UNITS if systemd.is_active(node, unit)), None)
    if unit is not None:
        node.runner.run(["systemctl", "reload", unit], timeout=60)
    deferred_actions.delete_action_record(node, RELOAD)


STEP = OptionalStep(
    "ssh_between_nodes",
    _apply_ssh_between_nodes,
    _describe_pending_changes,
    _undo_ssh_between_nodes,
    after_success=True,
)
