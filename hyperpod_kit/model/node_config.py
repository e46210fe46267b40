"""node_config.json: everything of the configuration that a node needs, baked into the bundle.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from hyperpod_kit.model.clients import Package, package_from_dict
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import mount_from_dict, mount_to_dict
from hyperpod_kit.model.optional_steps import OptionalSteps, steps_from_dict
from hyperpod_kit.model.scripts import CustomScript, script_from_dict
from hyperpod_kit.model.secrets import Secret, secret_from_dict
from hyperpod_kit.model.shares import Group, group_from_dict
from hyperpod_kit.model.states import MountState

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
    controllers: int = 1

    def mounts_for(self, role: str, group: str) -> Tuple[Mount, ...]:
        """The mounts that a node of this role in this instance group carries, in configuration order."""
        return tuple(mount for mount in self.mounts if mount.is_carried_by(role, group))

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, two spaces, one final newline."""
        data: Dict[str, Any] = {
            "format": FORMAT,
            "cluster_name": self.cluster_name,
            "lifecycle_mode": self.lifecycle_mode,
            "roles": dict(self.roles),
            "mounts": [mount_to_dict(mount) for mount in self.mounts],
            "users": [asdict(user) for user in self.users],
            "health": asdict(self.health),
            "failure_pause": self.failure_pause,
            "packages": [package.to_dict() for package in self.packages],
            "secrets": [secret.to_dict() for secret in self.secrets],
            "slurm_state": self.slurm_state,
            "scripts": [script.to_dict() for script in self.scripts],
            "steps": self.steps.to_dict(),
            "groups": [group.to_dict() for group in self.groups],
            "metadata_users": None if self.metadata_users is None else list(self.metadata_users),
        }
        if self.controllers > 1:  # the bundle of a cluster with one is what it always was
            data["controllers"] = self.controllers
        return json.dumps(data, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> NodeConfig:
        """Inverse of `to_json`. Raises ValueError for another format."""
        data = json.loads(text)
        if data.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {data.get('format')}")
        return cls(
            cluster_name=data["cluster_name"],
            lifecycle_mode=data["lifecycle_mode"],
            roles=dict(data["roles"]),
            mounts=tuple(mount_from_dict(raw) for raw in data["mounts"]),
            users=tuple(User(**raw) for raw in data["users"]),
            health=HealthPolicy(**data["health"]),
            failure_pause=data["failure_pause"],
            packages=tuple(package_from_dict(raw) for raw in data["packages"]),
            secrets=tuple(secret_from_dict(raw) for raw in data["secrets"]),
            slurm_state=data["slurm_state"],
            metadata_users=None if data["metadata_users"] is None else tuple(data["metadata_users"]),
            # `to_json` leaves out what the configuration does not use.
            scripts=tuple(script_from_dict(raw) for raw in data.get("scripts", ())),
            steps=steps_from_dict(data.get("steps", {})),
            groups=tuple(group_from_dict(raw) for raw in data.get("groups", ())),
            controllers=data.get("controllers", 1),
        )
