"""The toy filer: the sandbox lists what was asked for."""

from __future__ import annotations

from hyperpod_rehearsal.mounts.rehearsed import RehearsedMount, mounts_anew, no_registry

KIND = RehearsedMount(
    data="",
    registry=no_registry,
    directories={},
    clients=("usr/sbin/mount.toy",),
    shown={"toy": ("toy", "{source}")},
    another=mounts_anew("toy", "toy", "filer.example.com:/vol9"),
)
