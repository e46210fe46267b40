"""The access keys of a rehearsal: new for each, known to root and to the nodes, and to nobody else of this machine.

Two of them, as an account has: the admin's may do everything, the nodes' (their role's) only what is S3's.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json
from hyperpod_rehearsal.records import state

FILE = "keys.json"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@dataclass(frozen=True)
class Key:
    """One access key. `token`: session token that must come with it, "" for none; `node`: the role of the nodes."""

    id: str
    secret: str
    token: str = ""
    node: bool = False

    def __repr__(self) -> str:
        return f"Key({self.id}, …)"


@dataclass(frozen=True)
class Keys:
    """Both keys of one rehearsal."""

    admin: Key
    node: Key

    @classmethod
    def generate(cls) -> Keys:
        """Return new random keys."""
        return cls(
            Key(_random_key_id("AKIA"), secrets.token_urlsafe(30)),
            Key(_random_key_id("ASIA"), secrets.token_urlsafe(30), secrets.token_urlsafe(48), node=True),
        )

    @classmethod
    def load(cls, state_directory: Path) -> Keys:
        """Return the keys stored in a rehearsal's state directory. Raises RehearsalError."""
        data = state.read_own_json_object_or_none(state_directory / FILE)
        try:
            return dataclass_from_json(cls, data)
        except ValueError:
            raise RehearsalError(
                f"no keys in {state_directory}: its rehearsal is not up, or another commit of hyperpod-kit made it",
                hint="hyperpod-kit rehearse down, then up",
            ) from None

    def save(self, state_directory: Path) -> None:
        """Write the keys to keys.json, readable by root alone."""
        state.write_json(state_directory / FILE, dataclass_to_json(self))

    def by_id(self) -> Mapping[str, Key]:
        """Return both keys by their id."""
        return {key.id: key for key in (self.admin, self.node)}


def _random_key_id(prefix: str) -> str:
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(16))
