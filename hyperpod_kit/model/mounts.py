"""Mounts as data: what the configuration asks for, what a node makes, what a check reports.

Fields that every kind has: `name` (part of unit names), `path`, `required` (whether a node without it has failed),
`roles` and `groups` (who carries it; no groups: every group of the roles).
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple, Type, Union

from hyperpod_kit.model.states import ROLES, SERVES, MountState

PROTECTED = ("nosuid", "nodev")
"""Flags of every mount but those with `suid_and_devices`: root of another client of a file system, or whoever its
server takes for root, makes set-user-id programs and device files there; with these flags they are ordinary files."""

DERIVED = {"derived": True}
"""Metadata of a field that follows from the rest of the configuration and cannot be written there."""


@dataclass(frozen=True)
class EfsMount:
    """An EFS file system, through an access point when `access_point_id` is set (which needs tls).

    region: of the file system where it is not the node's; owner: the user whose home this is (see model/homes.py);
    suid_and_devices: see `PROTECTED`.
    """

    kind: ClassVar[str] = "efs"
    name: str
    path: str
    file_system_id: str
    access_point_id: Optional[str] = None
    tls: bool = True
    iam: bool = False
    region: Optional[str] = None
    suid_and_devices: bool = False
    owner: Optional[str] = field(default=None, metadata=DERIVED)
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()


@dataclass(frozen=True)
class S3FilesMount:
    """An S3 Files file system: a bucket with NFS 4.2 in front. TLS and IAM are always on, the helper sees to it."""

    kind: ClassVar[str] = "s3files"
    name: str
    path: str
    file_system_id: str
    access_point_id: Optional[str] = None
    region: Optional[str] = None
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()


@dataclass(frozen=True)
class LustreMount:
    """An FSx for Lustre file system: `dns_name`@tcp:/`mount_name`.

    efa: mounted only after FSx's EFA set-up of this node, which a mount that comes first silently does without;
    platform: HyperPod mounts it, we wait for it and watch it (see model/platform.py).
    """

    kind: ClassVar[str] = "lustre"
    name: str
    path: str
    dns_name: str
    mount_name: str
    efa: bool = False
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()
    platform: bool = field(default=False, metadata=DERIVED)


@dataclass(frozen=True)
class OpenZfsMount:
    """An FSx for OpenZFS volume over NFS 4.2: `dns_name`:`export`. platform: as for Lustre."""

    kind: ClassVar[str] = "openzfs"
    name: str
    path: str
    dns_name: str
    export: str = "/fsx"
    suid_and_devices: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()
    platform: bool = field(default=False, metadata=DERIVED)


@dataclass(frozen=True)
class S3Mount:
    """A bucket, or a prefix of it that ends in `/`, through Mountpoint for S3.

    uid, gid: owner shown for every object; dir_mode, file_mode: octal strings such as "0755", writable by everybody
    only where `world_writable` says so too; cache_dir: directory of a local cache (it relaxes consistency and is not
    encrypted), cache_mib: its limit; read_part_size_mib, write_part_size_mib: None is Mountpoint's 8, and an object
    has at most 10,000 parts; largest_file_gib: what the largest file written will be, for a warning where the parts
    cannot hold it; metadata_ttl: seconds, `minimal` or `indefinite`; incremental_upload: append, on directory buckets
    only.
    """

    kind: ClassVar[str] = "mountpoint-s3"
    name: str
    path: str
    bucket: str
    prefix: str = ""
    read_only: bool = True
    allow_delete: bool = False
    allow_overwrite: bool = False
    incremental_upload: bool = False
    uid: int = 0
    gid: int = 0
    dir_mode: str = "0755"
    file_mode: str = "0644"
    world_writable: bool = False
    cache_dir: Optional[str] = None
    cache_mib: Optional[int] = None
    metadata_ttl: Optional[str] = None
    read_part_size_mib: Optional[int] = None
    write_part_size_mib: Optional[int] = None
    largest_file_gib: Optional[int] = None
    max_threads: Optional[int] = None
    maximum_throughput_gbps: Optional[int] = None
    region: Optional[str] = None
    endpoint_url: Optional[str] = None
    force_path_style: bool = False
    expected_bucket_owner: Optional[str] = None
    requester_pays: bool = False
    storage_class: Optional[str] = None
    sse: Optional[str] = None
    sse_kms_key_id: Optional[str] = None
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()

    def options(self) -> List[Tuple[str, Optional[str]]]:
        """Options of mount-s3, (name, value or None for a flag): the only source of them, first mount or remount."""
        writes = not self.read_only
        flags = [
            ("foreground", True),
            ("allow-other", True),
            ("read-only", self.read_only),
            ("allow-delete", writes and self.allow_delete),
            ("allow-overwrite", writes and self.allow_overwrite),
            ("incremental-upload", writes and self.incremental_upload),
            ("force-path-style", self.force_path_style),
            ("requester-pays", self.requester_pays),
        ]
        valued = [
            ("uid", self.uid),
            ("gid", self.gid),
            ("dir-mode", self.dir_mode),
            ("file-mode", self.file_mode),
            ("prefix", self.prefix or None),
            ("region", self.region),
            ("endpoint-url", self.endpoint_url),
            ("expected-bucket-owner", self.expected_bucket_owner),
            ("cache", self.cache_place),
            ("max-cache-size", self.cache_mib),
            ("metadata-ttl", self.metadata_ttl),
            ("read-part-size", _bytes(self.read_part_size_mib)),
            ("write-part-size", _bytes(self.write_part_size_mib)),
            ("max-threads", self.max_threads),
            ("maximum-throughput-gbps", self.maximum_throughput_gbps),
            ("storage-class", self.storage_class),
            ("sse", self.sse),
            ("sse-kms-key-id", self.sse_kms_key_id),
        ]
        return [(name, None) for name, wanted in flags if wanted] + [
            (name, str(value)) for name, value in valued if value is not None
        ]

    @property
    def cache_place(self) -> Optional[str]:
        """The cache's own directory: Mountpoint empties it when it starts, so no two mounts may share one."""
        return None if self.cache_dir is None else f"{self.cache_dir.rstrip('/')}/{self.name}"


@dataclass(frozen=True)
class NvmeMount:
    """Local NVMe instance store as scratch: empty after a stop or a replacement, and after a reboot on HyperPod.

    uid, gid, mode: of the directory; 1777 (everybody's, sticky) only where `world_writable` says so too.
    """

    kind: ClassVar[str] = "nvme"
    name: str
    path: str
    uid: int = 0
    gid: int = 0
    mode: str = "0755"
    world_writable: bool = False
    required: bool = True
    roles: Tuple[str, ...] = ROLES
    groups: Tuple[str, ...] = ()


Mount = Union[EfsMount, S3FilesMount, LustreMount, OpenZfsMount, S3Mount, NvmeMount]

KINDS: Dict[str, Type[Any]] = {
    cls.kind: cls for cls in (EfsMount, S3FilesMount, LustreMount, OpenZfsMount, S3Mount, NvmeMount)
}


def _bytes(mib: Optional[int]) -> Optional[int]:
    return None if mib is None else mib << 20


def flags_of(mount: Mount) -> Tuple[str, ...]:
    """The flags that the kernel must show of the mount. Mountpoint sets both by itself, and has no option for them."""
    return () if getattr(mount, "suid_and_devices", False) else PROTECTED


def carried_by(mount: Mount, role: str, group: str) -> bool:
    """Whether a node of that role, in that instance group, has the mount."""
    return role in mount.roles and (not mount.groups or group in mount.groups)


def mount_to_dict(mount: Mount) -> Dict[str, Any]:
    """JSON form of a mount: its fields and `kind`."""
    return {"kind": mount.kind, **asdict(mount), "roles": list(mount.roles), "groups": list(mount.groups)}


def mount_from_dict(raw: Mapping[str, Any]) -> Mount:
    """Inverse of `mount_to_dict`. Raises KeyError for an unknown kind, TypeError for unknown or missing fields."""
    data = dict(raw)
    cls = KINDS[data.pop("kind")]
    for key in ("roles", "groups"):
        if key in data:
            data[key] = tuple(data[key])
    unknown = sorted(set(data) - {known.name for known in fields(cls)})
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
    state: MountState
    source: str = ""
    detail: str = ""
    latency_ms: float = 0.0
    required: bool = True
    checked_at: float = 0.0

    @property
    def healthy(self) -> bool:
        """Whether a job may use the mount."""
        return self.state in SERVES
