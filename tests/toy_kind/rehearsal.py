"""The toy filer: the sandbox lists what was asked for."""

from __future__ import annotations

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, no_registry, substitute_mount

KIND = RehearsedMount(
    data="",
    registry=no_registry,
    directories={},
    clients=("usr/sbin/mount.toy",),
    shown={"toy": ("toy", "{source}")},
    substitute_command=substitute_mount("toy", "toy", "filer.example.com:/vol9"),
)
