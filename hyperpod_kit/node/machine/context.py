"""Everything that the code of a node touches, passed in as one value.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional, Set, Tuple

from hyperpod_kit.errors import Absent, NoBundle, NodeError
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine import facts as node_facts
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.run import LocalRunner, Runner

if TYPE_CHECKING:
    from hyperpod_kit.model.slurm_state import StateCopy


@dataclass(frozen=True)
class Node:
    """This node: its paths, its configuration, its facts, a way to run commands and a clock.

    requested_state_copy: which copy of Slurm's state a person has chosen where their ages do not tell (`node apply
    --slurm-state`). starting_units: units of systemd that this process has ordered to start and not waited for.
    """

    paths: NodePaths
    config: NodeConfig
    facts: NodeFacts
    runner: Runner
    clock: Clock
    requested_state_copy: Optional[StateCopy] = None
    starting_units: Set[str] = field(default_factory=set, compare=False)

    @property
    def bundle_id(self) -> str:
        """Name of the directory that `current` points to, "" without an installed bundle."""
        try:
            return os.path.basename(os.readlink(self.paths.bundle))
        except OSError:
            return ""

    @property
    def mounts(self) -> Tuple[Mount, ...]:
        """The mounts of this node, by its role and its instance group."""
        return self.config.mounts_for(self.facts.role, self.facts.group)

    def mount(self, name: str) -> Mount:
        """The mount of that name on this node. Raises Absent."""
        for mount in self.mounts:
            if mount.name == name:
                return mount
        names = ", ".join(mount.name for mount in self.mounts) or "none"
        raise Absent(f"no mount {name} on a {self.facts.role} node; it has: {names}")


def read_config(paths: NodePaths) -> NodeConfig:
    """The configuration in the installed bundle. Raises NodeError."""
    text = read_text(paths.node_config)
    if text is None:
        raise NoBundle(
            f"{paths.node_config}: no such file: no bundle is installed on this machine",
            hint="hyperpod-kit create-cluster installs the bundle; on this machine: hyperpod-kit validate-mounts",
        )
    try:
        return NodeConfig.from_json(text)
    except (ValueError, KeyError, TypeError) as err:
        raise NodeError(f"{paths.node_config}: {err}", hint="hyperpod-kit upload with the same version") from err


def open_node(
    *,
    gather: bool = False,
    save_facts: bool = True,
    within: float = node_facts.PLACED_WITHIN,
    paths: Optional[NodePaths] = None,
    runner: Optional[Runner] = None,
    clock: Optional[Clock] = None,
) -> Node:
    """Return this machine as a Node.

    gather: read the facts anew, waiting up to `within` seconds for them, and, unless `save_facts` is
    False, keep them for the node's life, when the environment of the lifecycle script is gone.
    """
    paths = paths or NodePaths.from_environment()
    clock = clock or Clock()
    config = read_config(paths)
    if gather:
        facts = node_facts.gather(paths, config, clock, within=within)
        if save_facts:
            node_facts.save_facts(paths, facts)
    else:
        facts = node_facts.load_or_gather(paths, config, clock)
    return Node(paths, config, facts, runner or LocalRunner(), clock)
