"""The file systems of the rehearsal: plain directories of the host, with the registries that the stand-ins read.

Of each kind there are two: the second is what a mistake, or a fault on purpose, mounts in the first one's place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping

from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.mounts.registry import REHEARSED
from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.records.layout import Layout


def initial_registries(gateway: str) -> Dict[str, Mapping[str, Any]]:
    """Return the initial content of registry.json by directory.

    `gateway`: address that serves as the servers'.
    """
    return {its.data: its.registry(gateway) for its in REHEARSED.values() if its.data}


def make_file_system_directories_and_registries(layout: Layout, gateway: str) -> None:
    """Make the data directories, and the registries where there are none yet: the endpoint adds to them later."""
    for name, registry in initial_registries(gateway).items():
        directory = layout.file_systems[name]
        _make_directory(directory, 0o755)
        if not (directory / "registry.json").exists():
            state.write_json(directory / "registry.json", registry, 0o644)
    for its in REHEARSED.values():
        for path, mode in its.directories.items():
            _make_directory(layout.file_systems[its.data] / path, mode)


def _make_directory(path: Path, mode: int) -> None:
    by_descriptor.make_directories(path, shared=True)
    by_descriptor.set_mode(path, mode)
