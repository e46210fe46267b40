"""/etc/fuse.conf: whether a FUSE daemon may let others than its own user into its mount.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import Step, StepOutcome


def is_allow_other_enabled(node: Node) -> bool:
    """Whether /etc/fuse.conf lets --allow-other work for a daemon that is not root."""
    lines = (read_text(node.paths.fuse_conf) or "").splitlines()
    return any(line.strip() == "user_allow_other" for line in lines)


def enable_user_allow_other(node: Node) -> bool:
    """Put `user_allow_other` into /etc/fuse.conf; True when it was not there."""
    if is_allow_other_enabled(node):
        return False
    text = read_text(node.paths.fuse_conf) or ""
    if not text or text.endswith("\n"):
        joint = ""
    else:
        joint = "\n"
    return write_if_different(node.paths.fuse_conf, f"{text}{joint}user_allow_other\n")


def _has_daemon_mount(node: Node) -> bool:
    return any(mount.traits.service.daemon for mount in node.mounts)


def _apply_user_allow_other(node: Node) -> StepOutcome:
    return StepOutcome(_has_daemon_mount(node) and enable_user_allow_other(node))


def _describe_pending_changes(node: Node) -> str:
    if _has_daemon_mount(node) and not is_allow_other_enabled(node):
        return "user_allow_other in /etc/fuse.conf"
    return ""


STEP = Step("fuse", _apply_user_allow_other, _describe_pending_changes)
