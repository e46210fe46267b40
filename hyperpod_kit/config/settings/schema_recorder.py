"""What the decoder asked of a configuration: the format as the code reads it, and the values that it came to.

Two things follow from one record and so cannot drift from the decoder: the JSON Schema (config/schema.py) and the
configuration with every default written out (`config show --effective`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Literal, Union

KeyPath = tuple[Union[str, int], ...]
"""Keys and indexes from the top of the file."""

MOUNTS: KeyPath = ("hyperpod_kit", "mounts")

Kind = Literal[
    "text", "integer", "number", "boolean", "texts", "texts_by_key", "things_by_key", "object", "list", "anything"
]


@dataclass(frozen=True)
class KeyRead:
    """One key that was asked for.

    optional: it may be left out; default: its value then (None also where leaving it out means none); value: what the
    decoder got, in JSON's types, None for nothing; written: it stands in the file.
    """

    key_path: KeyPath
    kind: Kind
    optional: bool
    default: Any
    value: Any
    written: bool

    @property
    def path(self) -> str:
        """As findings write it: `hyperpod_kit.mounts[1].path`."""
        return _join_path_steps(f"[{step}]" if isinstance(step, int) else step for step in self.key_path)

    @property
    def field_path(self) -> str:
        """Return the path as fields/fields.py writes it: `hyperpod_kit.mounts[].path`."""
        return _join_path_steps("[]" if isinstance(step, int) else step for step in self.key_path)


def build_effective_values(reads: Iterable[KeyRead]) -> tuple[dict[str, Any], set[KeyPath]]:
    """Return (the configuration with every value that counts, the key paths of those that were not
    written). Pure.

    Read again it is the same configuration: null stands for "none" and is what leaving the key out
    means.
    """
    top: dict[str, Any] = {}
    defaults: set[KeyPath] = set()
    for read in reads:
        holder: Any = top
        for step, following in zip(read.key_path, read.key_path[1:]):
            fresh: Any
            if isinstance(following, int):
                fresh = []
            else:
                fresh = {}
            if isinstance(step, int):
                holder += [None] * (step + 1 - len(holder))
                if holder[step] is None:
                    holder[step] = fresh
            elif holder.get(step) is None:
                holder[step] = fresh
            holder = holder[step]
        key = read.key_path[-1]
        if read.kind == "texts_by_key":
            holder[key] = holder.get(key) or {}
        else:
            holder[key] = read.value
        if not read.written:
            defaults.add(read.key_path)
    return top, defaults


def _join_path_steps(steps: Iterable[str]) -> str:
    text = ""
    for step in steps:
        text += step if step.startswith("[") or not text else f".{step}"
    return text
