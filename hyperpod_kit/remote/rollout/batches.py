"""Which nodes a rollout switches, in which order, how many at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Mapping, Sequence

from hyperpod_kit.model.states import Role
from hyperpod_kit.remote.diagnosis.installed_bundles import NodeBundle
from hyperpod_kit.remote.rollout.node_switch import TargetBundle
from hyperpod_kit.remote.target import NodeTarget

ORDER = (Role.COMPUTE, Role.LOGIN, Role.CONTROLLER)
"""Controllers come last: slurm.conf, which lies on the controller, may name files of the new bundle, and no node may be
asked for one that it does not have. So they come first on the way back."""


@dataclass(frozen=True)
class RolloutPlan:
    """`batches`: the nodes to switch, in order, each with the bundle that it is to have; `same`: those that have it;
    `unanswered`: those that did not say what they run, which are left out."""

    batches: tuple[Mapping[NodeTarget, TargetBundle], ...]
    same: tuple[NodeTarget, ...]
    unanswered: tuple[NodeBundle, ...]

    @property
    def count(self) -> int:
        """How many nodes are to be switched."""
        return sum(len(batch) for batch in self.batches)


def plan_batches(
    bundles: Sequence[NodeBundle],
    target_bundles: Mapping[NodeTarget, TargetBundle],
    size: int,
    at_work: Collection[str] = (),
    *,
    backwards: bool = False,
) -> RolloutPlan:
    """Plan the switch of the nodes in `target_bundles`, `size` at once; nodes of different roles share no batch, and
    controllers are alone.

    `at_work`: instance ids of nodes that may just be switching: whatever they run now, they are among them.
    `backwards`: from the last role of ORDER to the first.
    """
    answered = [node for node in bundles if not node.error]
    settled = [node for node in answered if node.target.instance_id not in at_work]
    same = tuple(node.target for node in settled if runs_it(node, target_bundles[node.target].bundle_id))
    unchanged = frozenset(same)
    targets = [node.target for node in answered if node.target not in unchanged]
    batches: list[Mapping[NodeTarget, TargetBundle]] = []
    roles = [*ORDER]
    if backwards:
        roles.reverse()
    for role in roles:
        members = [target for target in targets if _role_of(target) == role]
        batch_limit = size
        if role == Role.CONTROLLER:
            batch_limit = 1
        for begin in range(0, len(members), batch_limit):
            batches.append({target: target_bundles[target] for target in members[begin : begin + batch_limit]})
    return RolloutPlan(tuple(batches), same, tuple(node for node in bundles if node.error))


def runs_it(node: NodeBundle, bundle_id: str) -> bool:
    """Whether a node runs that bundle, whole, and its last creation with it succeeded."""
    return node.current == node.recorded == bundle_id and node.created_ok and not node.damaged


def batch_size(count: int | None, percent: int | None, nodes: int) -> int:
    """Return how many nodes go at once, of so many; one at least."""
    if count is not None:
        return count
    return max(1, nodes * (percent or 0) // 100)


def _role_of(target: NodeTarget) -> str:
    """Return the role of a node; one of a group that the configuration does not name is taken for a compute node."""
    if target.role in ORDER:
        return target.role
    return Role.COMPUTE
