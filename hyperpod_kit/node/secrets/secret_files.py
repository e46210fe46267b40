"""Secrets as files in memory: /run/hyperpod-kit/secrets/NAME, 0400, for its owner alone.

/run is empty after a boot, so a unit fetches them again (templates/systemd/secrets.service.j2).
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import stat
from typing import Callable, List, Tuple

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.secrets.fetch import fetch
from hyperpod_kit.node.step import Step, StepOutcome
from hyperpod_kit.node.timing import Clock
from hyperpod_kit.node.users import getent_entry
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

Fetch = Callable[[Secret, Clock], bytes]


def secrets_for_node_role(node: Node) -> Tuple[Secret, ...]:
    """The secrets that this node is to have."""
    return tuple(secret for secret in node.config.secrets if node.facts.role in secret.roles)


def missing_secret_names(node: Node) -> List[str]:
    """Names of the secrets whose files are not there."""
    return [secret.name for secret in secrets_for_node_role(node) if not os.path.isfile(node.paths.secret(secret.name))]


def fetch_secrets_and_delete_unneeded(node: Node, fetch_secret: Fetch = fetch) -> List[str]:
    """Fetch all secrets into their files, and delete the files of those that the configuration no longer
    names; return the names of those that changed.

    Raises NodeError.
    """
    expected = {secret.name: secret for secret in secrets_for_node_role(node)}
    folder = os.path.dirname(node.paths.secret("x"))
    changed = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name not in expected:
            by_descriptor.unlink(os.path.join(folder, name))
            changed.append(name)
    for name, secret in expected.items():
        if _write_secret_if_different(
            node.paths.secret(name), fetch_secret(secret, node.clock), *_owner_ids(node, secret)
        ):
            changed.append(name)
    return changed


def _owner_ids(node: Node, secret: Secret) -> Tuple[int, int]:
    account = getent_entry(node, "passwd", secret.owner)
    if account is None:
        raise NodeError(
            f"secret {secret.name}: its owner {secret.owner} does not exist on this node",
            hint="add the user under hyperpod_kit.users, or name another owner",
        )
    return int(account[2]), int(account[3])


def _write_secret_if_different(path: str, value: bytes, uid: int, gid: int) -> bool:
    """Make `path` hold `value` for that owner alone; True when anything changed. At no moment can others read it."""
    folder = os.path.dirname(path)
    by_descriptor.make_directories(folder)
    # Everybody may open a file whose name they know and whose owner they are; nobody may list the names.
    by_descriptor.set_mode(folder, 0o711)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        handle = -1
    if handle >= 0:
        with open(handle, "rb") as stream:
            status = os.fstat(stream.fileno())
            if (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (
                uid,
                gid,
                0o400,
            ) and stream.read() == value:
                return False
    atomic_file.write_atomically(path, value, 0o400, owner=(uid, gid))
    return True


def _apply_secrets(node: Node) -> StepOutcome:
    changed = fetch_secrets_and_delete_unneeded(node)
    return StepOutcome(bool(changed), ", ".join(changed))


def _describe_pending_changes(node: Node) -> str:
    names = missing_secret_names(node)
    if names:
        return f"fetch {', '.join(names)}"
    return ""


STEP = Step("secrets", _apply_secrets, _describe_pending_changes)
