"""The kinds of mounts that a node can make.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import collect_kind_objects
from hyperpod_kit.node.mounts.kinds.kind import Kind

KINDS = collect_kind_objects("hyperpod_kit.node.mounts.kinds", Kind)  # type: ignore[type-abstract]


def kind_of(mount: Mount) -> Kind:
    return KINDS[mount.kind]
