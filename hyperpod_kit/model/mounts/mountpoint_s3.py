"""Mountpoint for S3.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, List, Optional, Tuple

from hyperpod_kit.model.mounts.base import Mount, MountService, Traits, lets_users_write
from hyperpod_kit.model.states import ROLES


@dataclass(frozen=True)
class S3Mount(Mount):
    """A bucket, or a prefix of it that ends in `/`, through Mountpoint for S3.

    uid, gid: owner shown for every object; dir_mode, file_mode: octal strings such as "0755", writable by everybody
    only where `world_writable` says so too; cache_dir: directory of a local cache (it relaxes consistency and is not
    encrypted), cache_mib: its limit; read_part_size_mib, write_part_size_mib: None is Mountpoint's 8, and an object
    has at most 10,000 parts; largest_file_gib: what the largest file written will be, for a warning where the parts
    cannot hold it; metadata_ttl: seconds, `minimal` or `indefinite`; incremental_upload: append, on directory buckets
    only.
    """

    kind: ClassVar[str] = "mountpoint-s3"
    traits: ClassVar[Traits] = Traits(
        client="mount-s3",
        service=MountService("mount-s3.service.j2", "s3", daemon=True),
        target=(),
        in_vpc=False,
        nfs=False,
        helper_stays=False,
        kernel_module=False,
        local_disk=False,
        tells_capacity=False,
        one_identity=True,
        cached_stat=True,
        keeps_versions=True,
        holds_shares=False,
        carries_homes=False,
        at_home=False,
        keeps_slurm_state=False,
        storage_config="",
    )
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
            ("cache", self.cache_path),
            ("max-cache-size", self.cache_mib),
            ("metadata-ttl", self.metadata_ttl),
            ("read-part-size", _mib_to_bytes(self.read_part_size_mib)),
            ("write-part-size", _mib_to_bytes(self.write_part_size_mib)),
            ("max-threads", self.max_threads),
            ("maximum-throughput-gbps", self.maximum_throughput_gbps),
            ("storage-class", self.storage_class),
            ("sse", self.sse),
            ("sse-kms-key-id", self.sse_kms_key_id),
        ]
        return [(name, None) for name, enabled in flags if enabled] + [
            (name, str(value)) for name, value in valued if value is not None
        ]

    @property
    def cache_path(self) -> Optional[str]:
        """The cache's own directory: Mountpoint empties it when it starts, so no two mounts may share one."""
        if self.cache_dir is None:
            return None
        return f"{self.cache_dir.rstrip('/')}/{self.name}"

    def host(self, region: str, dns_suffix: str) -> str:
        if self.endpoint_url:
            from urllib.parse import urlsplit  # not for a health check, which costs less than this

            return urlsplit(self.endpoint_url).hostname or ""
        where = self.region or region
        if where:
            return f"s3.{where}.{dns_suffix}"
        return ""

    def probe_may_write(self) -> bool:
        return self.allow_delete and not self.read_only

    def only_root_writes(self) -> bool:
        return not self.read_only and not lets_users_write(self.dir_mode, self.uid, self.gid)


def _mib_to_bytes(mib: Optional[int]) -> Optional[int]:
    if mib is None:
        return None
    return mib << 20
