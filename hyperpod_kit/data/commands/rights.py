"""As whom a command of the admin reads the data that it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hyperpod_kit.data.index.sources import local_base_paths
from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.data.reading.listing import call_bounded, storage_errors_as_data_unavailable
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.untrusted import source_owner


@contextmanager
def reading_as_owner(source_names: Sequence[str], reply_timeout: float = REPLY_SECONDS) -> Iterator[None]:
    """In the block these sources are opened with the rights of whoever owns them, where this process is root.

    `reply_timeout`: seconds after which a mount that gives no answer counts as failed.
    Raises UsageError for sources of two users, Untrusted, DataUnavailable, OSError.
    """
    mounts = SourceMounts(reply_timeout)

    def call_about(path: str, call: Callable[[], int]) -> int:
        with storage_errors_as_data_unavailable(path):
            return call_bounded(mounts, path, call)

    with source_owner.opening_sources_as_owner_of(local_base_paths(source_names), call_about):
        yield
