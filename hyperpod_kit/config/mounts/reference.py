"""What the keys of a mount mean: `[]` for every kind, `[KIND]` for one."""

from __future__ import annotations

from typing import Mapping

from hyperpod_kit.config.mounts.registry import FORMS

COMMON: Mapping[str, str] = {
    "kind": "What is mounted.",
    "name": "Name of the mount: part of unit names and of reasons in Slurm.",
    "path": "Where it is mounted.",
    "required": "Whether a node without it has failed, and no job starts there.",
    "roles": "Nodes that have it.",
    "groups": "Instance groups that have it; none means every group of the roles.",
    "region": "Region of the file system or bucket where it is not the cluster's.",
    "file_system_id": "The file system, fs-….",
    "access_point_id": "The access point, fsap-….",
    "dns_name": "DNS name of the file system, as FSx shows it.",
    "suid_and_devices": "Whether set-user-id programs and device files there count (no nosuid, no nodev).",
    "world_writable": "Says that a mode which everybody may write to is meant.",
}
"""Keys that several kinds have; what a kind says itself in its `fields` comes first."""

MOUNT_FIELDS: Mapping[str, str] = {
    **{f"[].{key}": text for key, text in COMMON.items()},
    **{f"[{kind}].{key}": text for kind, form in FORMS.items() for key, text in form.fields.items()},
}
