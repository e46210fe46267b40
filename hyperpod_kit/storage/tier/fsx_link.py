"""Where runs lie on an FSx for Lustre file system, and which prefix of S3 is linked to that place."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional, Protocol, Sequence

from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.system import mountinfo

REPORTS = ".hyperpod-kit/tasks"
"""Below the linked prefix: FSx writes there which files a task could not do."""


class FsxTasks(Protocol):
    """The calls of aws/fsx.py that are needed."""

    def file_system(self, file_system_id: str) -> Optional[dict[str, Any]]: ...

    def data_repository_associations(self, file_system_id: str) -> list[dict[str, Any]]: ...

    def create_data_repository_task(
        self, file_system_id: str, kind: str, paths: Sequence[str], report_s3_path: str
    ) -> str: ...

    def describe_data_repository_task(self, task_id: str) -> dict[str, Any]: ...


class LinkedRoot(NamedTuple):
    """A run's root as FSx has it. `path`: from the root of the file system; `report`: where tasks on it report."""

    path: str
    report: str


def locate_linked_roots(
    fsx: FsxTasks, file_system: str, roots: Sequence[str], mountinfo_text: Optional[str] = None
) -> dict[str, LinkedRoot]:
    """Locate roots on FSx: root -> where it is.

    `roots`: without links; `mounts`: the text of mountinfo, this machine's by default.

    Raises UsageError for a root that is not on that file system or in no directory that is linked, AwsError.
    """
    mountinfo_text = mountinfo.read_mountinfo() if mountinfo_text is None else mountinfo_text
    description = fsx.file_system(file_system)
    lustre = (description or {}).get("LustreConfiguration")
    if not lustre:
        raise Absent(
            f"--release {file_system}: FSx has no such Lustre file system in this account and region",
            hint="check the AWS region and profile",
        )
    associations = [
        association
        for association in fsx.data_repository_associations(file_system)
        if association.get("Lifecycle") in ("AVAILABLE", "UPDATING")
    ]
    linked_roots = {}
    for root in roots:
        path = _path_on_file_system(root, mountinfo_text, file_system, str(lustre.get("MountName", "")))
        covering = [
            association
            for association in associations
            if mountinfo.is_same_or_below(path, "/" + str(association["FileSystemPath"]).strip("/"))
        ]
        if not covering:
            linked_paths = ", ".join(str(association["FileSystemPath"]) for association in associations) or "none"
            raise UsageError(
                f"{root}: no data repository association of {file_system} covers {path}; linked directories: "
                f"{linked_paths}",
                hint="aws fsx create-data-repository-association",
            )
        linked_roots[root] = LinkedRoot(path, f"{str(covering[0]['DataRepositoryPath']).rstrip('/')}/{REPORTS}")
    return linked_roots


def _path_on_file_system(root: str, mountinfo_text: str, file_system: str, mount_name: str) -> str:
    """Compute the path from the file system's root: what is mounted may be a directory of it, and a part of that."""
    entry = mountinfo.mount_containing_path(mountinfo_text, root)
    if entry is None or entry.fs_type != "lustre":
        raise UsageError(f"{root} is not on Lustre, as it is mounted here")
    name, _, inside = entry.source.rpartition(":/")[2].partition("/")
    if name != mount_name:
        raise UsageError(f"{root} is on the file system that mounts as {name}, {file_system} as {mount_name}")
    return "/" + os.path.normpath(f"{inside}/{entry.root}/{os.path.relpath(root, entry.path)}").lstrip("/")
