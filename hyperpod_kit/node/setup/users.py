"""Users with the same ids on every node: files on shared storage know only numbers.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List, Optional

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.node_config import User
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.machine.timing import poll_until
from hyperpod_kit.node.mounts import homes

HOME_NOT_MADE = 12
"""useradd's exit status when it could not make the home (useradd(8)); it has then added nobody."""

HOME_SEEN_WITHIN = 70.0
"""Seconds until an NFS client asks the server again about a name that was not there: acdirmax, nfs(5), is 60."""


def getent_entry(node: Node, database: str, key: str) -> Optional[List[str]]:
    """Fields of the first line that `getent` finds; None when there is none."""
    done = node.runner.run(["getent", database, key], timeout=20, check=False)
    if done.returncode == 0 and done.stdout:
        return done.stdout.splitlines()[0].split(":")
    return None


def is_account_as_configured(node: Node, user: User) -> bool:
    """Whether `user` exists with these ids and the right home. Raises NodeError when it has other ids."""
    account = getent_entry(node, "passwd", user.name)
    if account is not None and (account[2], account[3]) != (str(user.uid), str(user.gid)):
        raise NodeError(
            f"user {user.name} has ids {account[2]}:{account[3]} on this node, expected {user.uid}:{user.gid}",
            hint="choose other ids in the configuration: files on shared storage belong to numeric ids",
        )
    home = homes.expected_passwd_home_if_on_mount(node, user)
    return account is not None and home in (None, account[5])


def create_user_or_correct_home(node: Node, user: User) -> bool:
    """Create `user`, or correct its home, unless it is there as configured; True when it was changed. Raises
    NodeError for other ids."""
    if is_account_as_configured(node, user):
        return False
    home = homes.expected_passwd_home_if_on_mount(node, user)
    if home is not None and getent_entry(node, "passwd", user.name) is not None:
        node.runner.run(["usermod", "--home", home, user.name], timeout=30)
        return True
    taken = getent_entry(node, "passwd", str(user.uid))
    if taken is not None:
        raise NodeError(
            f"uid {user.uid} for {user.name} already belongs to {taken[0]}",
            hint="choose another uid in the configuration",
        )
    if getent_entry(node, "group", str(user.gid)) is None:
        node.runner.run(["groupadd", "--gid", str(user.gid), user.name], timeout=30)
    # A home on shared storage gets its first files once it is mounted.
    if home is None:
        home_options = ["--create-home"]
    else:
        home_options = ["--no-create-home", "--home-dir", home]
    argv = ["useradd", "--uid", str(user.uid), "--gid", str(user.gid), *home_options, "--shell", "/bin/bash", user.name]
    # Where /home is shared, another node may make the same home between useradd's look and its mkdir; two nodes of a
    # cluster that is created do this within the same second. A later look finds it there, once the client of the file
    # system no longer believes its own look before that one.
    done = poll_until(
        lambda: node.runner.run(argv, timeout=30, check=False),
        lambda done: done.returncode != HOME_NOT_MADE,
        seconds=HOME_SEEN_WITHIN,
        clock=node.clock,
        longest=5.0,
    )
    if done.returncode != 0:
        raise RunError(argv, done.returncode, done.stdout, done.stderr)
    return True


def _apply_users(node: Node) -> StepOutcome:
    created = [user.name for user in node.config.users if create_user_or_correct_home(node, user)]
    if not created:
        return StepOutcome()
    return StepOutcome(True, f"created {', '.join(created)}")


def _describe_pending_changes(node: Node) -> str:
    missing = [user.name for user in node.config.users if not is_account_as_configured(node, user)]
    if missing:
        return f"create {', '.join(missing)}"
    return ""


STEP = Step("users", _apply_users, _describe_pending_changes)
