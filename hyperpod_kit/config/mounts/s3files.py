"""S3 Files: its ids."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.mounts.file_system_ids import wrong_ids
from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.model.mounts.s3files import S3FilesMount


def ids(settings: Settings) -> Iterator[Finding]:
    """Ids are ids."""
    return wrong_ids(settings.written(S3FilesMount), "S3 Files")


KIND = MountForm(
    fields={},
    nicknames=("s3-files",),
    short_form=None,
    storage_config=None,
    rules=(ids,),  # HPK-E
)
