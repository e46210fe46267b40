"""As whom a command of the admin reads the data that it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hyperpod_kit.data.index.sources import places_of
from hyperpod_kit.data.reading.bounded import ANSWER
from hyperpod_kit.data.reading.listing import bounded, storage_of
from hyperpod_kit.data.reading.mounts import SourceMounts
from hyperpod_kit.untrusted import source_owner


@contextmanager
def reading_as_owner(names: Sequence[str], answer: float = ANSWER) -> Iterator[None]:
    """In the block these sources are opened with the rights of whoever owns them, where this process is root.

    `answer`: seconds after which a mount that gives no answer counts as failed.
    Raises UsageError for sources of two users, Untrusted, DataUnavailable, OSError.
    """
    mounts = SourceMounts(answer)

    def ask(place: str, what: Callable[[], int]) -> int:
        with storage_of(place):
            return bounded(mounts, place, what)

    with source_owner.reading(places_of(names), ask):
        yield
