"""A root that root reads with the rights of its owner: for commands whose other half, what they write or another root,
belongs to somebody else, so that no child can do all of it as one user.

Whoever owns a root may let any name in it lead elsewhere, also between two looks. As the owner nothing is read that
the owner could not read.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Sequence

from hyperpod_kit.checkpoint.repository.store.base import SMALL, Capabilities, Store, StoreReader, StoreWriter
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.untrusted import owner, walk


def open_as_owner(root: str) -> Store:
    """Return the store of a root, used with its owner's rights where this process is root: one that opens files
    in one thread alone, and that a mount which does not respond may block.

    Raise Untrusted for a link that leads to what is another's, CheckpointError, OSError.
    """
    store = open_store(root)
    if not is_path(root) or not owner.is_machine_root():
        return store
    uid = walk.uid_for_root_to_act_as(os.path.abspath(root))
    if uid:
        return OwnersStore(store, uid)
    return store


class OwnersStore:
    """See Store. Of what is open already more can be read with any rights."""

    def __init__(self, store: Store, uid: int) -> None:
        self.url = store.url
        self._store = store
        self._uid = uid

    @property
    def capabilities(self) -> Capabilities:
        """See Store."""
        return self._store.capabilities

    def list(self, prefix: str = "", *, after: str = "", until: str = "") -> List[str]:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.list(prefix, after=after, until=until)

    def sizes(self, prefix: str) -> Dict[str, int]:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.sizes(prefix)

    def exists(self, name: str) -> bool:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.exists(name)

    def read(self, name: str, most: int = SMALL) -> bytes:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.read(name, most)

    def open_read(self, name: str) -> StoreReader:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.open_read(name)

    def drop_cached_pages(self, name: str) -> None:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            self._store.drop_cached_pages(name)

    def link_target(self, name: str) -> Optional[str]:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.link_target(name)

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            self._store.create(name, data)

    def open_write(self, name: str, size: int) -> StoreWriter:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            return self._store.open_write(name, size)

    def sync(self, folder: str) -> None:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            self._store.sync(folder)

    def overwrite_non_atomically(self, name: str, data: bytes) -> None:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            self._store.overwrite_non_atomically(name, data)

    def delete(self, name: str) -> None:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            self._store.delete(name)

    def delete_all(self, names: Sequence[str]) -> None:
        """See Store."""
        with owner.acting_as_user_if_root(self._uid):
            self._store.delete_all(names)
