"""Where an adapter's checkpoints lie when nobody names a root."""

from __future__ import annotations

import os

from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT
from hyperpod_kit.errors import CheckpointError

RootPath = str | os.PathLike[str]


def resolve_root(explicit_root: RootPath | None, folder: str | None = None) -> str:
    """Return `explicit_root`, else the root of `hyperpod-kit job run`, else `checkpoints` in the framework's
    own `folder`.

    Raises CheckpointError when there is none of them.
    """
    if explicit_root is not None:
        return os.fspath(explicit_root)
    root = os.environ.get(HPK_CHECKPOINT_ROOT)
    if not root and folder:
        root = os.path.join(folder, "checkpoints")
    if not root:
        raise CheckpointError(
            "no checkpoint root given", hint=f"give a root; hyperpod-kit job run sets it in {HPK_CHECKPOINT_ROOT}"
        )
    return root
