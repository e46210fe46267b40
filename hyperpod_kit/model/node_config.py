"""node_config.json: everything of the configuration that a node needs, baked into the bundle.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import Mapping, Optional, Tuple

from hyperpod_kit.model.clients import Package
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import mount_from_dict, mount_to_dict
from hyperpod_kit.model.optional_steps import OptionalSteps
from hyperpod_kit.model.scripts import CustomScript
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.model.shares import Group
from hyperpod_kit.model.states import MountState
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json, json_field

FORMAT = "hpk-node/1"


@dataclass(frozen=True)
class User:
    """An ordinary user that exists with the same ids on every node."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class HealthPolicy:
    """How mounts are watched: seconds between checks, seconds a probe may take, failures before `degraded`.

    drain: whether Slurm is told of a required mount that is degraded; refuse_when_full: whether a file system without
    room counts as one that does not serve; textfile_directory: where the node exporter looks for files of metrics, ""
    for none.
    """

    interval: float = 30.0
    deadline: float = 5.0
    degraded_after: int = 5
    drain: bool = False
    refuse_when_full: bool = False
    textfile_directory: str = "/var/lib/node_exporter/textfile_collector"

    def keeps_jobs_away(self, status: MountStatus) -> bool:
        """Return whether a mount in this state keeps jobs off the node: one that does not serve, `full`
        only with `refuse_when_full`.

        Every user can fill a file system that all share, and must not close a cluster with it.
        """
        return not status.healthy and (status.state != MountState.FULL or self.refuse_when_full)


@dataclass(frozen=True)
class NodeConfig:
    """What a node must become. `roles`: instance group name -> role; `failure_pause`: seconds for CloudWatch;
    `slurm_state`: the mount on which slurmctld keeps its state, "" for the controller's own disk; `metadata_users`: who
    besides root may use the instance metadata service, None for everybody; `controllers`: nodes that run slurmctld."""

    cluster_name: str
    lifecycle_mode: str
    roles: Mapping[str, str]
    mounts: Tuple[Mount, ...] = ()
    users: Tuple[User, ...] = ()
    health: HealthPolicy = field(default_factory=HealthPolicy)
    failure_pause: float = 60.0
    packages: Tuple[Package, ...] = ()
    secrets: Tuple[Secret, ...] = ()
    slurm_state: str = ""
    metadata_users: Optional[Tuple[str, ...]] = None
    scripts: Tuple[CustomScript, ...] = ()
    steps: OptionalSteps = field(default_factory=OptionalSteps)
    groups: Tuple[Group, ...] = ()
    # The bundle of a cluster with one is what it always was.
    controllers: int = field(default=1, metadata=json_field(left_out=1))

    def mounts_for(self, role: str, group: str) -> Tuple[Mount, ...]:
        """The mounts that a node of this role in this instance group carries, in configuration order."""
        return tuple(mount for mount in self.mounts if mount.is_carried_by(role, group))

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, two spaces, one final newline."""
        mounts = [mount_to_dict(mount) for mount in self.mounts]
        data = {"format": FORMAT, **dataclass_to_json(self), "mounts": mounts}
        return json.dumps(data, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NodeConfig:
        """Inverse of `to_json`. Raises ValueError for another format or a field of another type, KeyError."""
        data = json.loads(text)
        if data.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {data.get('format')}")
        names = {node_field.name for node_field in fields(cls)} - {"mounts"}
        mounts = tuple(mount_from_dict(raw) for raw in data["mounts"])
        known = {name: value for name, value in data.items() if name in names}
        return replace(dataclass_from_json(cls, known, any_number=True), mounts=mounts)
