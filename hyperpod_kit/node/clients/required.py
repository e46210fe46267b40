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

    version_arguments: arguments with which the program says its version, () when that is not asked;
    module: the kernel module that must fit the running kernel; mounts, required: whom it is for.
    """

    client: str
    program: str
    minimum: str = ""
    version_arguments: Tuple[str, ...] = ()
    module: str = ""
    mounts: Tuple[str, ...] = ()
    required: bool = True


def required_clients(mounts: Sequence[Mount]) -> List[RequiredClient]:
    """The clients that these mounts need, each program once, in the order of the mounts."""
    mounts_by_kind: Dict[str, List[Mount]] = {}
    for mount in mounts:
        if mount.traits.client:
            mounts_by_kind.setdefault(mount.kind, []).append(mount)
    clients = []
    for kind, mounts_of_kind in mounts_by_kind.items():
        kind_object = KINDS[kind]
        clients.append(
            RequiredClient(
                mounts_of_kind[0].traits.client,
                kind_object.program,
                kind_object.client_check.minimum,
                kind_object.client_check.version_arguments,
                kind_object.client_check.module,
                tuple(mount.name for mount in mounts_of_kind),
                any(mount.required for mount in mounts_of_kind),
            )
        )
    return clients
