"""What mount(8) passes to its helpers: SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o OPTION,OPTION=VALUE] [-t TYPE]."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Pattern, Sequence, Tuple

from hyperpod_rehearsal.standins.fuse.background import StartFailed

DATA_VARIABLE = "HPK_STANDIN_DATA"
IGNORED = (
    "defaults",
    "rw",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "nofail",
    "_netdev",
    "async",
)


class MountArguments(NamedTuple):
    """positional: source and target; options: by name, empty value for those without one."""

    positional: List[str]
    options: Dict[str, str]


def run_mount_helper(
    argv: Sequence[str],
    version: str,
    mount: Callable[[Sequence[str]], int],
    version_flags: Sequence[str] = ("--version",),
) -> int:
    """Print a mount helper's version, or call `mount`; returns the exit code.

    A StartFailed is printed to standard error, and its code returned.
    """
    if any(flag in argv for flag in version_flags):
        print(version)
        return 0
    try:
        return mount(argv)
    except StartFailed as err:
        print(err.message, file=sys.stderr)
        return err.code


def parse_mount_arguments(argv: Sequence[str]) -> MountArguments:
    """Split a helper's command line; repeated -o add up, a later option wins."""
    positional: List[str] = []
    options: Dict[str, str] = {}
    arguments = iter(argv)
    for argument in arguments:
        if argument.startswith("-o"):
            for option in (argument[2:] or next(arguments, "")).split(","):
                name, _, value = option.partition("=")
                if name:
                    options[name] = value
        elif argument in ("-N", "-t"):
            next(arguments, None)
        elif not argument.startswith("-"):
            positional.append(argument)
    return MountArguments(positional, options)


def parse_efs_arguments(
    argv: Sequence[str], program: str, source_pattern: Pattern[str]
) -> Tuple[str, str, str, Dict[str, str]]:
    """Return (file system, path in it, target, options) of efs-utils' helpers.

    `source_pattern`: how a file system is named. Raises StartFailed.
    """
    positional, options = parse_mount_arguments(argv)
    if len(positional) != 2:
        raise StartFailed(f"Usage: {program} [--version] [-h|--help] <fsname> <mountpoint> [-o <options>]")
    match = source_pattern.fullmatch(positional[0])
    if match is None:
        raise StartFailed(f'Invalid file system name: "{positional[0]}"')
    return match[1], match[2] or "/", positional[1], options


def unknown_options(options: Dict[str, str], supported: Sequence[str]) -> List[str]:
    """Options that neither the helper nor mount(8) knows; systemd's own (x-...) are everyone's."""
    return [name for name in options if name not in supported and name not in IGNORED and not name.startswith("x-")]


def data_directory(kind: str) -> str:
    """Where the rehearsal keeps the data of all file systems of a kind (`efs`, `fsx`, …), shared by all nodes."""
    return os.path.join(os.environ.get(DATA_VARIABLE, "/hpk"), kind)


def read_file_system_registry(kind: str) -> Dict[str, Any]:
    """registry.json of a kind: which file systems there are, in that kind's own form. Raises StartFailed."""
    path = os.path.join(data_directory(kind), "registry.json")
    try:
        with open(path, encoding="utf-8") as file:
            registry: Dict[str, Any] = json.load(file)
            return registry
    except (OSError, ValueError) as err:
        raise StartFailed(f"the rehearsal's {path} cannot be read: {err}", 5) from err
