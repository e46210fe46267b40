"""What torch.distributed.checkpoint calls a checkpoint_id: a root of ours, or one attempt under it."""

from __future__ import annotations

import os
from typing import NamedTuple

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.errors import CheckpointError

_SCHEMES = ("s3", "memory")


class DcpLocation(NamedTuple):
    """`root` is empty for the bare name of an attempt, `checkpoint_id` for a root."""

    root: str
    checkpoint_id: str

    def store(self) -> Store:
        """Open the store of the root. Raises CheckpointError for what is no root."""
        if not is_path(self.root) and self.root.partition("://")[0] not in _SCHEMES:
            raise CheckpointError(f"{self.root} is not a checkpoint root, expected a path or s3://bucket/prefix")
        return open_store(self.root)


def parse(checkpoint_id: str | os.PathLike[str]) -> DcpLocation:
    """Parse `ROOT`, `ROOT/ATTEMPT`, or `ATTEMPT`."""
    text = os.fspath(checkpoint_id)
    root, slash, last = text.rstrip("/").rpartition("/")
    if layout.parse_checkpoint_id(last) is None:
        return DcpLocation(text, "")
    if not slash:
        return DcpLocation("", last)
    return DcpLocation(root or "/", last)


def is_wellformed_root_or_checkpoint(checkpoint_id: object) -> bool:
    """Return whether the text can be opened as a root or a checkpoint in one; nothing on storage is
    looked at."""
    if not isinstance(checkpoint_id, (str, os.PathLike)) or not os.fspath(checkpoint_id):
        return False
    try:
        location = parse(checkpoint_id)
        if location.root:
            location.store()
    except (CheckpointError, ValueError, TypeError):
        return False
    return True
