"""The configuration as the rest of the admin's side sees it: typed, complete, every default filled in."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, TypeVar

from hyperpod_kit.config.settings.homes import NO_ACCESS_POINT, Homes
from hyperpod_kit.config.settings.schema_recorder import KeyRead
from hyperpod_kit.config.settings.sourced import SourcedMount
from hyperpod_kit.model.clients import Package
from hyperpod_kit.model.cluster import ClusterSpec
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.node_config import HealthPolicy, NodeConfig, User
from hyperpod_kit.model.optional_steps import OptionalSteps
from hyperpod_kit.model.platform import mark_platform_mounts
from hyperpod_kit.model.scripts import CustomScript
from hyperpod_kit.model.secrets import Secret
from hyperpod_kit.model.shares import Group
from hyperpod_kit.model.slurm_state import choose_slurm_state_mount_name, mount_not_shared_by_all_nodes_reason
from hyperpod_kit.model.states import LifecycleMode, Role

K = TypeVar("K")


@dataclass(frozen=True)
class WorkerGroup:
    """One entry of AWS's `worker_groups`: which instance group serves which partition."""

    instance_group_name: str
    partition_name: str


@dataclass(frozen=True)
class ProvisioningParameters:
    """AWS's own keys, with AWS's meaning. `passthrough`: keys that go into the legacy file unread."""

    version: str
    workload_manager: str
    controller_group: str
    login_group: Optional[str]
    worker_groups: tuple[WorkerGroup, ...]
    fsx_dns_name: Optional[str] = None
    fsx_mountname: Optional[str] = None
    passthrough: Mapping[str, Any] = field(default_factory=dict)
    bucketname: Optional[str] = None


@dataclass(frozen=True)
class BundleLocation:
    """Where bundles are uploaded: s3://`bucket`/`prefix`<cluster>/<bundle_id>/."""

    bucket: str
    prefix: str = "hyperpod-kit/"


@dataclass(frozen=True)
class ListedPackage:
    """A package of a mount client as the file lists it. `file`: beside the configuration, "" when it has a URL."""

    package: Package
    file: str = ""


@dataclass(frozen=True)
class ListedScript:
    """A script as the file lists it. `path`: a file or a directory beside the configuration."""

    script: CustomScript
    path: str


@dataclass(frozen=True)
class Settings:
    """Everything that one configuration file says.

    slurm_state: what the file says of where slurmctld's state is, None for nothing; metadata_users: who besides root
    may use the nodes' metadata service, None for everybody; reads: every key that was asked for; directory: where the
    configuration lies, which paths in it start from.
    """

    parameters: ProvisioningParameters
    cluster: ClusterSpec
    bundle: BundleLocation
    sourced_mounts: tuple[SourcedMount, ...] = ()
    users: tuple[User, ...] = ()
    health: HealthPolicy = field(default_factory=HealthPolicy)
    failure_pause: float = 60.0
    homes: Optional[Homes] = None
    packages: tuple[ListedPackage, ...] = ()
    secrets: tuple[Secret, ...] = ()
    slurm_state: Optional[str] = None
    metadata_users: Optional[tuple[str, ...]] = None
    scripts: tuple[ListedScript, ...] = ()
    steps: OptionalSteps = field(default_factory=OptionalSteps)
    groups: tuple[Group, ...] = ()
    reads: tuple[KeyRead, ...] = field(default=(), compare=False, repr=False)
    directory: Path = field(default=Path("."), compare=False)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The mounts without the places where they are written."""
        return tuple(written.mount for written in self.sourced_mounts)

    def mounts_of_kind(self, kind: type[K]) -> Iterator[tuple[K, str]]:
        """The mounts of one kind, each with the place where it is written."""
        return ((mount, at) for mount, at in self.sourced_mounts if isinstance(mount, kind))

    @property
    def owners_without_access_point(self) -> tuple[str, ...]:
        """Return the owners whose home, or share, has no access point yet: no bundle is made before
        `users apply`."""
        without = [mount for mount in self.mounts if mount.access_point_id == NO_ACCESS_POINT]
        return tuple(mount.owner or posixpath.basename(mount.path) for mount in without)

    @property
    def entry_script(self) -> str:
        """The lifecycle script that HyperPod starts; empty in ami_only mode."""
        scripts: dict[str, str] = {
            LifecycleMode.ON_CREATE: "on_create.sh",
            LifecycleMode.ON_INIT_COMPLETE: "on_init_complete.sh",
        }
        return scripts.get(self.cluster.lifecycle_mode, "")

    @property
    def all_mounts_with_platform_flag(self) -> tuple[SourcedMount, ...]:
        """Return the mounts, with `platform` set where HyperPod makes them by itself."""
        groups = [(group.name, group.role) for group in self.cluster.groups]
        decided = mark_platform_mounts(self.mounts, self.cluster.lifecycle_mode, groups)
        return tuple(SourcedMount(mount, at) for mount, (_, at) in zip(decided, self.sourced_mounts))

    @property
    def controller_count(self) -> int:
        """Count the nodes that run slurmctld."""
        return sum(group.count for group in self.cluster.groups if group.role == Role.CONTROLLER)

    @property
    def slurm_state_mount_name(self) -> str:
        """Name of the mount on which slurmctld keeps its state; "" for the controller's own disk."""
        return choose_slurm_state_mount_name(
            self.mounts, self.slurm_state, self.parameters.controller_group, self.cluster.lifecycle_mode
        )

    @property
    def steps_with_host_key_mount(self) -> OptionalSteps:
        """The optional steps, with the mount of host keys named where the configuration leaves the choice to us."""
        ssh = self.steps.ssh_between_nodes
        if ssh is None or ssh.mount:
            return self.steps
        fitting = [mount.name for mount in self.mounts if not mount_not_shared_by_all_nodes_reason(mount, self.cluster)]
        mount = ""
        if fitting:
            mount = fitting[0]
        return replace(self.steps, ssh_between_nodes=replace(ssh, mount=mount))

    def node_config(self) -> NodeConfig:
        """Make what goes to the nodes."""
        return NodeConfig(
            cluster_name=self.cluster.name,
            lifecycle_mode=self.cluster.lifecycle_mode,
            roles={group.name: group.role for group in self.cluster.groups},
            mounts=tuple(mount for mount, _ in self.all_mounts_with_platform_flag),
            users=self.users,
            health=self.health,
            failure_pause=self.failure_pause,
            packages=tuple(listed.package for listed in self.packages),
            secrets=self.secrets,
            slurm_state=self.slurm_state_mount_name,
            metadata_users=self.metadata_users,
            scripts=tuple(listed.script for listed in self.scripts),
            steps=self.steps_with_host_key_mount,
            groups=self.groups,
            controllers=max(1, self.controller_count),
        )
