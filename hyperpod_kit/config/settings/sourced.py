"""A mount together with the place in the configuration that asks for it."""

from __future__ import annotations

from typing import NamedTuple

from hyperpod_kit.model.mounts.base import Mount


class SourcedMount(NamedTuple):
    """`at`: where the file says it: `hyperpod_kit.mounts[2]`, the key of a short form such as `bucketname`, or
    `hyperpod_kit.homes` for the mount of a user's home."""

    mount: Mount
    at: str
