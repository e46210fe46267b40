"""The toy filer: the sandbox lists what was asked for."""

from __future__ import annotations

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, empty_registry, make_substitute_command

KIND = RehearsedMount(
    data="",
    registry=empty_registry,
    directories={},
    clients=("usr/sbin/mount.toy",),
    shown={"toy": ("toy", "{source}")},
    substitute_command=make_substitute_command("toy", "toy", "filer.example.com:/vol9"),
)
