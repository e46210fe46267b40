"""Keys that mounts of several kinds have.

`[]` stands for every kind, `[KIND]` for one.
"""

from __future__ import annotations

from typing import Mapping

from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.settings import patterns
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.patterns import Pattern
from hyperpod_kit.model.states import ROLES

COMMON: Mapping[str, Field] = {
    "kind": Field("What is mounted."),
    "name": Field("Name of the mount: part of unit names and of reasons in Slurm."),
    "path": Field("Where it is mounted."),
    "required": Field("Whether a node without it has failed, and no job starts there."),
    "roles": Field("Nodes that have it.", ROLES),
    "groups": Field("Instance groups that have it; none means every group of the roles."),
    "region": Field(
        "Region of the file system or bucket where it is not the cluster's.",
        pattern=Pattern("HPK-M007", patterns.REGION, "`{value}` is not an AWS region", "Write it like us-east-1"),
    ),
    "suid_and_devices": Field("Whether set-user-id programs and device files there count (no nosuid, no nodev)."),
    "world_writable": Field("Says that a mode which everybody may write to is meant."),
}
"""Keys that several kinds have and that mean the same in each."""

MOUNT_FIELDS: Mapping[str, Field] = {
    **{f"[].{key}": field for key, field in COMMON.items()},
    **{f"[{kind}].{key}": field for kind, form in FORMS.items() for key, field in form.fields.items()},
}
