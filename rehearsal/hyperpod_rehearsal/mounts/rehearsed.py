"""What a rehearsal knows of a kind of mount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple


@dataclass(frozen=True)
class RehearsedMount:
    """What stands in for one kind of mount, and how it breaks. No field has a default: every kind answers them all.

    data: the directory of the rehearsal that has the file systems and registry.json, "" for a kind that needs none;
    registry: contents of that file, given the address that serves as the storage's; directories: path below `data` ->
    mode; clients: paths in a node's root of the programs that mount it, and that the sandbox puts there;
    shown: TYPE of `mount -t TYPE` -> (file system type, source) as the kernel lists such a mount in the sandbox, where
    `{name}` stands for what is behind the last `:/` of the source, `{source}` for all of it;
    substitute_command: the command, but for the path, that mounts something else of this kind in the place of a mount
    of that file system type which this process serves (words of its command line); None when that mount is of another
    kind.
    """

    data: str
    registry: Callable[[str], Mapping[str, Any]]
    directories: Mapping[str, int]
    clients: Tuple[str, ...]
    shown: Mapping[str, Tuple[str, str]]
    substitute_command: Callable[[str, List[str]], Optional[List[str]]]


def empty_file_system_registry(gateway: str) -> Mapping[str, Any]:
    """Return an empty registry, for kinds that need none."""
    return {}


def foreign_mount_command_builder(
    fs_type: str, *mount_arguments: str
) -> Callable[[str, List[str]], Optional[List[str]]]:
    """A `substitute_command` for mounts of that file system type: `mount -t ARGUMENTS`."""
    return lambda mounted_type, serving: ["/usr/bin/mount", "-t", *mount_arguments] if mounted_type == fs_type else None


def access_point_of_user_trainer(access_point_id: str, file_system: str) -> Dict[str, Any]:
    """Return the access point of the ordinary user `trainer`, in the form of EFS's API."""
    return {
        access_point_id: {
            "FileSystemId": file_system,
            "PosixUser": {"Uid": 2001, "Gid": 2001},
            "RootDirectory": {
                "Path": "/trainer",
                "CreationInfo": {"OwnerUid": 2001, "OwnerGid": 2001, "Permissions": "0750"},
            },
        }
    }
