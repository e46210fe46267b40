"""What mount(8) passes to its helpers: SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o OPTION,OPTION=VALUE] [-t TYPE]."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Sequence

DATA_VARIABLE = "HPK_STANDIN_DATA"
IGNORED = ("defaults", "rw", "auto", "noauto", "user", "nouser", "users", "exec", "noexec", "suid", "nosuid", "dev",
           "nodev", "nofail", "_netdev", "async")


class MountArguments(NamedTuple):
    """positional: source and target; options: by name, empty value for those without one."""

    positional: List[str]
    options: Dict[str, str]


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


def unknown_options(options: Dict[str, str], known: Sequence[str]) -> List[str]:
    """Options that neither the helper nor mount(8) knows; systemd's own (x-...) are everyone's."""
    return [name for name in options if name not in known and name not in IGNORED and not name.startswith("x-")]


def data_directory(kind: str) -> str:
    """Where the rehearsal keeps the data of all EFS (`efs`) or Lustre (`fsx`) file systems, shared by all nodes."""
    return os.path.join(os.environ.get(DATA_VARIABLE, "/hpk"), kind)
