"""Mounts as data: what the configuration asks for, what a node makes, what a check reports.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Dict, Mapping, Optional, Tuple, Type, Union

ROLES = ("controller", "login", "compute")

STATES = ("ok", "absent", "wrong_target", "stale", "hung", "readonly", "full", "slow", "unknown")
"""States of a mount's health, best first is not implied; only `ok` and `slow` serve a job."""


@dataclass(frozen=True)
class EfsMount:
    """An EFS file system, through an access point when `access_point_id` is set (which needs tls)."""

    kind: ClassVar[str] = "efs"
    name: str
    path: str
    file_system_id: str
    access_point_id: Optional[str] = None
    tls: bool = True
    iam: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES


@dataclass(frozen=True)
class S3Mount:
    """A bucket, or a prefix of it that ends in `/`, through Mountpoint for S3.

    uid, gid: owner shown for every object; dir_mode, file_mode: octal strings such as "0755".
    """

    kind: ClassVar[str] = "mountpoint-s3"
    name: str
    path: str
    bucket: str
    prefix: str = ""
    read_only: bool = True
    allow_delete: bool = False
    allow_overwrite: bool = False
    uid: int = 0
    gid: int = 0
    dir_mode: str = "0755"
    file_mode: str = "0644"
    required: bool = True
    roles: Tuple[str, ...] = ROLES


@dataclass(frozen=True)
class LustreMount:
    """An FSx for Lustre file system: `dns_name`@tcp:/`mount_name`."""

    kind: ClassVar[str] = "lustre"
    name: str
    path: str
    dns_name: str
    mount_name: str
    required: bool = True
    roles: Tuple[str, ...] = ROLES


Mount = Union[EfsMount, S3Mount, LustreMount]

KINDS: Dict[str, Type[Any]] = {cls.kind: cls for cls in (EfsMount, S3Mount, LustreMount)}


def mount_to_dict(mount: Mount) -> Dict[str, Any]:
    """JSON form of a mount: its fields and `kind`."""
    return {"kind": mount.kind, **asdict(mount), "roles": list(mount.roles)}


def mount_from_dict(raw: Mapping[str, Any]) -> Mount:
    """Inverse of `mount_to_dict`. Raises KeyError for an unknown kind, TypeError for unknown or missing fields."""
    data = dict(raw)
    cls = KINDS[data.pop("kind")]
    if "roles" in data:
        data["roles"] = tuple(data["roles"])
    unknown = sorted(set(data) - {field.name for field in fields(cls)})
    if unknown:
        raise TypeError(f"unknown field(s) {', '.join(unknown)} of a {cls.kind} mount")
    mount: Mount = cls(**data)
    return mount


@dataclass(frozen=True)
class MountStatus:
    """What one check of one mount found. `source`: what is mounted there; `checked_at`: Unix seconds."""

    name: str
    kind: str
    path: str
    state: str
    source: str = ""
    detail: str = ""
    latency_ms: float = 0.0
    required: bool = True
    checked_at: float = 0.0

    @property
    def healthy(self) -> bool:
        """Whether a job may use the mount."""
        return self.state in ("ok", "slow")
