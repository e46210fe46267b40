"""Where the tensors are in a tree of values as a checkpoint has it (`checkpoint/codec.py` writes it), without torch."""

from __future__ import annotations

import json
from typing import Any, Iterable, Iterator, Tuple

Path = Tuple[Any, ...]


def tensors(tree: Any, path: Path = ()) -> Iterator[Tuple[Path, str]]:
    """(keys that lead there, stored name) of every tensor; a tied one more than once. A key that is neither text nor a
    number is given as its JSON."""
    if isinstance(tree, dict) and tree.get("$") == "tensor":
        yield path, str(tree["name"])
        return
    for key, item in _children(tree):
        yield from tensors(item, (*path, key))


def spelled(path: Path) -> str:
    """As a user types it: `model.0.weight`."""
    return ".".join(map(str, path))


def _children(tree: Any) -> Iterable[Tuple[Any, Any]]:
    if isinstance(tree, list):
        return enumerate(tree)
    if not isinstance(tree, dict):
        return ()
    kind = tree.get("$")
    if kind is None:
        return tree.items()
    held = tree.get("v")
    if kind == "tuple":
        return enumerate(held or ())
    if kind == "subclass":
        return dict(tree.get("parts") or {}).items()
    if kind in ("deque", "named"):
        return enumerate(held or ())
    if kind == "dataclass":
        return dict(held or {}).items()
    if kind == "dict":
        return [(json.dumps(key) if isinstance(key, (dict, list)) else key, item) for key, item in held or ()]
    return ()
