"""A user who logs out leaves shared memory alone: systemd-logind removes it by default, of jobs that run too.

With RemoveIPC=yes logind deletes everything of a user below /dev/shm when the last session of that user on the node
ends (logind.conf(5)). Slurm's steps are no sessions of logind. So whoever looked at a node over ssh took with the
logout what their own job had captured in memory there, and nothing said so.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import Step, StepOutcome

CONF = "/etc/systemd/logind.conf.d/50-hyperpod-kit.conf"
TEXT = """\
# hyperpod-kit: what a user's job keeps in /dev/shm outlives the logout of its user
[Login]
RemoveIPC=no
"""
QUERY = (
    "busctl",
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    "RemoveIPC",
)


def _removes_ipc_at_logout(node: Node) -> bool:
    """Return whether the logind that runs would remove shared memory at a logout; False where none runs, which
    reads the file when it starts."""
    try:
        return node.runner.run(QUERY, timeout=20, check=False).stdout.split() == ["b", "true"]
    except RunError:
        return False


def describe_pending_changes(node: Node) -> str:
    """Return what `disable_remove_ipc` would do, in words; "" for nothing."""
    if read_text(node.paths.under_root(CONF)) != TEXT:
        return f"write {CONF}"
    if _removes_ipc_at_logout(node):
        return "make systemd-logind reload its configuration"
    return ""


def disable_remove_ipc(node: Node) -> bool:
    """Configure RemoveIPC=no, and have logind read it; True when that was not in force. Raises RunError."""
    changed = write_if_different(node.paths.under_root(CONF), TEXT)
    if not _removes_ipc_at_logout(node):
        return changed
    # SIGHUP is its word for reading the configuration; a restart would close sessions of older versions of systemd.
    node.runner.run(["systemctl", "kill", "--signal=HUP", "systemd-logind.service"], timeout=30)
    return True


def _apply_remove_ipc_setting(node: Node) -> StepOutcome:
    return StepOutcome(disable_remove_ipc(node))


STEP = Step("logind", _apply_remove_ipc_setting, describe_pending_changes, required=False)
