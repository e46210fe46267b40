"""Which client each mount needs, and from which version on.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.node.mounts.kinds.registry import KINDS


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


def required_clients(mounts: Sequence[Mount]) -> List[RequiredClient]:
    """The clients that these mounts need, each program once, in the order of the mounts."""
    users: Dict[str, List[Mount]] = {}
    for mount in mounts:
        if mount.traits.client:
            users.setdefault(mount.kind, []).append(mount)
    found = []
    for kind, those in users.items():
        own = KINDS[kind]
        found.append(
            RequiredClient(
                those[0].traits.client,
                own.program,
                own.client_check.minimum,
                own.client_check.ask,
                own.client_check.module,
                tuple(mount.name for mount in those),
                any(mount.required for mount in those),
            )
        )
    return found
