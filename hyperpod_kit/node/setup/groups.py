"""Groups with the same number and the same members on every node: files on shared storage know only numbers.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import List

from hyperpod_kit.errors import NodeError
from hyperpod_kit.model.shares import Group
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.node.setup.users import getent_entry


def required_group_changes(node: Node, group: Group) -> List[str]:
    """Return what must be changed for the group to be as configured, in words. Raises NodeError where its name
    or its gid is taken otherwise: files belong to numbers."""
    group_entry = getent_entry(node, "group", group.name)
    if group_entry is not None and group_entry[2] != str(group.gid):
        raise NodeError(
            f"group {group.name} has the id {group_entry[2]} on this node, expected {group.gid}",
            hint="choose another gid in the configuration: files on shared storage belong to numeric ids",
        )
    if group_entry is None:
        taken = getent_entry(node, "group", str(group.gid))
        if taken is not None:
            raise NodeError(
                f"gid {group.gid} for {group.name} already belongs to {taken[0]}",
                hint="choose another gid in the configuration",
            )
        if not group.members:
            return [f"create {group.name}"]
        return [f"create {group.name}", f"members of {group.name}"]
    here = {name for name in group_entry[3].split(",") if name}
    if here == set(group.members):
        return []
    return [f"members of {group.name}"]


def ensure_group(node: Node, group: Group) -> bool:
    """Make the group and its members what the configuration says; True when something was changed. A user who
    is no member any more loses the group at the next login. Raises NodeError, RunError."""
    missing = required_group_changes(node, group)
    if not missing:
        return False
    if getent_entry(node, "group", group.name) is None:
        node.runner.run(["groupadd", "--gid", str(group.gid), group.name], timeout=30)
    node.runner.run(["gpasswd", "--members", ",".join(group.members), group.name], timeout=30)
    return True


def _apply_groups(node: Node) -> StepOutcome:
    changed = [group.name for group in node.config.groups if ensure_group(node, group)]
    if not changed:
        return StepOutcome()
    return StepOutcome(True, f"changed {', '.join(changed)}")


def _describe_pending_changes(node: Node) -> str:
    return ", ".join(change for group in node.config.groups for change in required_group_changes(node, group))


STEP = Step("groups", _apply_groups, _describe_pending_changes)
