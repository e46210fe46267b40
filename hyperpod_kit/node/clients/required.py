"""Which client each mount needs, and from which version on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.mounts.kinds.registry import kind_of


@dataclass(frozen=True)
class RequiredClient:
    """A client as some mounts need it. `program`: what must be there; `minimum`: "" when every version will do.

    ask: arguments with which the program says its version, () when that is not asked;
    module: the kernel module that must fit the running kernel; mounts, required: whom it is for.
    """

    client: str
    program: str
    minimum: str = ""
    ask: Tuple[str, ...] = ()
    module: str = ""
    mounts: Tuple[str, ...] = ()
    required: bool = True


@dataclass(frozen=True)
class Rule:
    """What a kind of mount needs besides its program."""

    minimum: str = ""
    ask: Tuple[str, ...] = ()
    module: str = ""


RULES: Dict[str, Rule] = {
    # Before 1.34.4 two TLS mounts made at the same time could take the same port (efs-utils' change log).
    "efs": Rule("1.34.4", ("--version",)),
    # mount.s3files came with 3.0.0 (efs-utils' change log).
    "s3files": Rule("3.0.0", ("--version",)),
    # --allow-overwrite came with 1.4.0, --write-part-size with 1.8.0 (Mountpoint's change log).
    "mountpoint-s3": Rule("1.8.0", ("--version",)),
    "openzfs": Rule(),
    # Any client that was built for the running kernel speaks to FSx; mount.lustre's own version says nothing.
    "lustre": Rule(module="lustre"),
}
"""Kind of mount -> what it needs of its client."""


def required_clients(mounts: Sequence[Mount]) -> List[RequiredClient]:
    """The clients that these mounts need, each program once, in the order of the mounts."""
    users: Dict[str, List[Mount]] = {}
    for mount in mounts:
        if mount.traits.client:
            users.setdefault(mount.kind, []).append(mount)
    found = []
    for kind, those in users.items():
        rule = RULES[kind]
        found.append(
            RequiredClient(
                those[0].traits.client,
                kind_of(those[0]).client,
                rule.minimum,
                rule.ask,
                rule.module,
                tuple(mount.name for mount in those),
                any(mount.required for mount in those),
            )
        )
    return found
