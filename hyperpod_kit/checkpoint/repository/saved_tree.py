"""Where the tensors are in a tree of values as a checkpoint has it (`checkpoint/codec.py` writes it), without torch."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Iterator, Tuple

from hyperpod_kit.errors import CheckpointError

Path = Tuple[Any, ...]


def tensors(tree: Any, path: Path = ()) -> Iterator[Tuple[Path, str]]:
    """(keys that lead there, stored name) of every tensor; a tied one more than once. A key that is neither text nor a
    number is given as its JSON. Raises CheckpointError."""
    for way, record in _records(tree, path, ("tensor",)):
        yield way, record["name"]


def wholes(tree: Any, path: Path = ()) -> Iterator[Tuple[Path, Dict[str, Any]]]:
    """(keys that lead there, record) of every tensor as the program has it: of a subclass that was saved by its parts
    the subclass. Raises CheckpointError."""
    return _records(tree, path, ("tensor", "subclass"))


def _records(tree: Any, path: Path, kinds: Tuple[str, ...]) -> Iterator[Tuple[Path, Dict[str, Any]]]:
    """Whoever may write to a root may have written any tree: what is none is damage."""
    try:
        for way, record in _below(tree, path, kinds):
            if not isinstance(record.get("name"), str):
                raise CheckpointError(f"{spelled(way)!r} is a tensor without a name")
            yield way, record
    except RecursionError:
        raise CheckpointError("the tree of its values is nested too deeply") from None


def _below(tree: Any, path: Path, kinds: Tuple[str, ...]) -> Iterator[Tuple[Path, Dict[str, Any]]]:
    if isinstance(tree, dict) and tree.get("$") in kinds:
        yield path, tree
        return
    try:
        children = list(_children(tree))
    except (TypeError, ValueError):
        raise CheckpointError(f"{spelled(path)!r} holds values as no program of ours writes them") from None
    for key, item in children:
        yield from _below(item, (*path, key), kinds)


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
