"""S3 Files: its keys."""

from __future__ import annotations

from hyperpod_kit.config.mounts.file_system_ids import ACCESS_POINT_ID, file_system_id_pattern
from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.settings.field import Field

KIND = MountForm(
    fields={
        "file_system_id": Field("The file system, fs-….", pattern=file_system_id_pattern("S3 Files")),
        "access_point_id": Field("The access point, fsap-….", pattern=ACCESS_POINT_ID),
    },
    nicknames=("s3-files",),
    short_form=None,
    storage_config=None,
    rules=(),
)
