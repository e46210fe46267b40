"""The toy filer: the sandbox lists what was asked for."""

from __future__ import annotations

from hyperpod_rehearsal.mounts.rehearsed import (
    RehearsedMount,
    empty_file_system_registry,
    foreign_mount_command_builder,
)

KIND = RehearsedMount(
    data="",
    registry=empty_file_system_registry,
    directories={},
    clients=("usr/sbin/mount.toy",),
    shown={"toy": ("toy", "{source}")},
    substitute_command=foreign_mount_command_builder("toy", "toy", "filer.example.com:/vol9"),
)
