"""Local disks: a machine binds its own directories, nothing stands in."""

from __future__ import annotations

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, empty_file_system_registry

KIND = RehearsedMount(
    data="",
    registry=empty_file_system_registry,
    directories={},
    clients=(),
    shown={},
    substitute_command=lambda fs_type, serving: None,
)
