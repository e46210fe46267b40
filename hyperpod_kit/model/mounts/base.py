"""What every mount has, and the questions that every kind of mount answers.

Whatever the rest of the package wants to know of a kind is a trait here, a method of `Mount`, or stands in the file of
the kind's name in its own layer. Nobody asks for a class or compares a kind's name.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Tuple

from hyperpod_kit.model.states import Role

PROTECTED = ("nosuid", "nodev")
"""Flags of every mount but those with `suid_and_devices`: root of another client of a file system, or whoever its
server takes for root, makes set-user-id programs and device files there; with these flags they are ordinary files."""

DERIVED = {"derived": True}
"""Metadata of a field that follows from the rest of the configuration and cannot be written there."""


@dataclass(frozen=True)
class MountService:
    """The systemd service that carries a mount. `template`: under templates/systemd/; `infix`: of the unit's name;
    daemon: the service is the process that serves the mount, and starting it anew is how it is made otherwise."""

    template: str
    infix: str
    daemon: bool


ONE_SHOT = MountService("mount.service.j2", "mount", daemon=False)
"""Runs the kind's mount command once, at boot."""


@dataclass(frozen=True)
class Traits:
    """What is so of every mount of a kind. No field has a default: a kind that does not answer cannot be imported.

    client: the package that it needs (model/clients.py), "" for none
    service: what carries it
    target: the fields that say what is mounted, not how; () where `service` is started anew for every change
    in_vpc: it is reached by a DNS name in the cluster's own VPC
    nfs: it is spoken over NFS, whose servers believe every user of the node who he says he is
    helper_stays: its mount command leaves a process behind that the mount cannot do without
    kernel_module: mounting may load a module of the kernel
    local_disk: it is the node's own disk, and nothing comes over a network
    tells_capacity: statvfs says how full it is
    one_identity: every user of the node is the same to its server, so what is refused to root is refused to jobs
    cached_stat: stat and statvfs are answered on the node alone, and only listing asks the server
    keeps_versions: whatever was written may stay for ever, even when it is removed
    holds_shares: the numbers of who asks reach its server, so that groups can have directories on it (model/shares.py)
    carries_homes: the image's own home directories are copied to it where it would hide them
    at_home: the platform itself mounts it over /home
    keeps_slurm_state: it has the renames, links and locks that slurmctld's state needs, and all nodes see the same
    storage_config: what InstanceStorageConfigs calls it where HyperPod can mount it by itself, "" where it cannot
    """

    client: str
    service: MountService
    target: Tuple[str, ...]
    in_vpc: bool
    nfs: bool
    helper_stays: bool
    kernel_module: bool
    local_disk: bool
    tells_capacity: bool
    one_identity: bool
    cached_stat: bool
    keeps_versions: bool
    holds_shares: bool
    carries_homes: bool
    at_home: bool
    keeps_slurm_state: bool
    storage_config: str


def lets_users_write(mode: str, uid: int, gid: int) -> bool:
    """Whether a directory of this octal mode, owner and group lets anybody but root write."""
    bits = int(mode, 8)
    owner = bits & 0o200 and uid
    group = bits & 0o020 and gid
    return bool(owner or group or bits & 0o002)


class Mount(ABC):
    """What every kind of mount has: a frozen dataclass with these fields, `kind`, `traits` and the methods below.

    name: part of unit names; required: whether a node without it has failed; roles, groups: who carries it, no groups
    meaning every group of the roles. Kinds that have one of the other seven have it as a field: suid_and_devices, see
    `PROTECTED`; read_only: nothing can be written; region: where it is not the node's; access_point_id: what the file
    system is mounted through; owner: the user whose home this is (model/homes.py); efa: it waits for the node's EFA
    set-up; platform: HyperPod makes it (model/platform.py).
    """

    kind: ClassVar[str]
    traits: ClassVar[Traits]
    name: str
    path: str
    required: bool
    roles: Tuple[str, ...]
    groups: Tuple[str, ...]
    suid_and_devices: bool = False
    read_only: bool = False
    region: Optional[str] = None
    access_point_id: Optional[str] = None
    owner: Optional[str] = None
    efa: bool = False
    platform: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        missing = [attribute for attribute in ("kind", "traits") if attribute not in cls.__dict__]
        if missing:
            raise TypeError(f"{cls.__name__} lacks {' and '.join(missing)}")

    @abstractmethod
    def host(self, region: str, dns_suffix: str) -> str:
        """The host name that must resolve before it can be mounted on a node in `region`; "" when there is none, or
        when it is not known without the region."""

    def platform_can_mount(self) -> bool:
        """Whether InstanceStorageConfigs can express this very mount."""
        return bool(self.traits.storage_config)

    def has_single_owner(self) -> bool:
        """Whether every file of it belongs to one user, whoever writes it."""
        return False

    def probe_may_write(self) -> bool:
        """Whether the probe of a health check may make a small file there and remove it again."""
        return not self.read_only

    def only_root_writes(self) -> bool:
        """Whether the configuration itself leaves writing to root alone; False where that is its file system's word."""
        return False

    @property
    def cache_path(self) -> Optional[str]:
        """Directory on this node that the mount's client keeps a cache in."""
        return None

    def source_field_values(self) -> Tuple[object, ...]:
        """Return the values of the fields that say what is mounted, not how."""
        return tuple(getattr(self, key) for key in self.traits.target)

    def expected_protective_flags(self) -> Tuple[str, ...]:
        """Return the flags that the kernel must show for it: nosuid and nodev, none with
        suid_and_devices."""
        if self.suid_and_devices:
            return ()
        return PROTECTED

    def is_carried_by(self, role: str, group: str) -> bool:
        """Whether a node of that role, in that instance group, has it."""
        return role in self.roles and (not self.groups or group in self.groups)


def is_on_login_or_compute_nodes(mount: Mount) -> bool:
    """Return whether login or compute nodes carry it, where people work or jobs run."""
    return Role.LOGIN in mount.roles or Role.COMPUTE in mount.roles
