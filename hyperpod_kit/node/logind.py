"""A user who logs out leaves shared memory alone: systemd-logind removes it by default, of jobs that run too.

With RemoveIPC=yes logind deletes everything of a user below /dev/shm when the last session of that user on the node
ends (logind.conf(5)). Slurm's steps are no sessions of logind. So whoever looked at a node over ssh took with the
logout what their own job had captured in memory there, and nothing said so.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.errors import RunError
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import read_text, write_if_different
from hyperpod_kit.node.step import Step, StepOutcome

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


def _removes(node: Node) -> bool:
    """Whether the logind that runs would remove it; False where none runs, which reads the file when it starts."""
    try:
        return node.runner.run(QUERY, timeout=20, check=False).stdout.split() == ["b", "true"]
    except RunError:
        return False


def pending(node: Node) -> str:
    """What `ensure_kept` would do, in words."""
    if read_text(node.paths.real(CONF)) != TEXT:
        return f"write {CONF}"
    if _removes(node):
        return "have systemd-logind read its configuration"
    return ""


def ensure_kept(node: Node) -> bool:
    """Have logind leave shared memory alone; True when it did not. Raises RunError."""
    changed = write_if_different(node.paths.real(CONF), TEXT)
    if not _removes(node):
        return changed
    # SIGHUP is its word for reading the configuration; a restart would close sessions of older versions of systemd.
    node.runner.run(["systemctl", "kill", "--signal=HUP", "systemd-logind.service"], timeout=30)
    return True


def _run(node: Node) -> StepOutcome:
    return StepOutcome(ensure_kept(node))


STEP = Step("logind", _run, pending, required=False)
