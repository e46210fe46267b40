"""Where the tensors are in a tree of values as a checkpoint has it (`checkpoint/codec.py` writes it), without torch."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean

Path = Tuple[Any, ...]

_DEEPEST = 256
"""Containers in one another: writers refuse more than 200."""

MOST_CHARACTERS = 64 << 20
"""Of the names of a checkpoint's values together: one long key before thousands of others would make gigabytes."""


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
    characters = 0
    try:
        for way, record in _below(tree, path, kinds):
            if not isinstance(record.get("name"), str):
                raise CheckpointError(f"{clean(spelled(way))!r} is a tensor without a name")
            characters += sum(len(str(key)) + 1 for key in way)
            require_names_in_bounds(characters)
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
        raise CheckpointError(f"{clean(spelled(path))!r} holds values as no program of ours writes them") from None
    for key, item in children:
        yield from _below(item, (*path, key), kinds)


def require_names_in_bounds(characters: int) -> None:
    """Raises CheckpointError where the names of its values are longer together than any program's."""
    if characters > MOST_CHARACTERS:
        raise CheckpointError(f"its values have names of more than {MOST_CHARACTERS} characters together")


def stored_name(tree: Any, name: str) -> Optional[str]:
    """What the tensor is stored as that a user calls by this name; None where there is none. Raises CheckpointError."""
    return next((stored for path, stored in tensors(tree) if spelled(path) == name), None)


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


def require_sound(tree: Any) -> None:
    """That each record is as its readers take it, so that none of them meets anything else: what was not written by a
    program of ours is damage of that checkpoint, and no misfit of the program that reads it. Raises CheckpointError."""
    todo = [(tree, 0)]
    while todo:
        value, depth = todo.pop()
        if not isinstance(value, (dict, list)):
            continue
        if depth > _DEEPEST:
            raise CheckpointError("the tree of its values is nested too deeply")
        kind = value.get("$") if isinstance(value, dict) else None
        try:
            if isinstance(value, dict) and kind is not None and not _is_sound(kind, value):
                raise ValueError("another form")
            todo += [(item, depth + 1) for _, item in _children(value)]
        except (TypeError, ValueError, KeyError, RecursionError):
            raise CheckpointError(f"its tree has a {clean(kind)[:40]} as no program of ours writes it") from None


def _is_sound(kind: Any, record: Dict[str, Any]) -> bool:
    if not isinstance(kind, str):
        return False
    if kind == "tensor":
        return isinstance(record.get("name"), str)
    if kind == "subclass":
        named = isinstance(record.get("name"), str) and isinstance(record.get("class"), str)
        return named and isinstance(record.get("parts"), dict) and isinstance(record.get("context"), (list, type(None)))
    held = record.get("v")
    if kind == "tuple":
        return isinstance(held, list)
    if kind == "dict":
        return isinstance(held, list) and _are_pairs(held)
    if kind in ("float", "bytes"):
        return isinstance(held, str)
    if kind == "complex":
        return isinstance(held, list) and len(held) == 2
    return True


def _are_pairs(held: List[Any]) -> bool:
    """Whether these are items of a dict, each key once."""
    if not all(isinstance(pair, list) and len(pair) == 2 and _is_key(pair[0]) for pair in held):
        return False
    return len({json.dumps(key) if isinstance(key, dict) else key for key, _ in held}) == len(held)


def _is_key(key: Any) -> bool:
    """Whether Python could have it as a key: a tuple of such, but no list and no dict."""
    if not isinstance(key, dict):
        return not isinstance(key, list)
    kind = key.get("$")
    if not isinstance(kind, str) or kind in ("dict", "tensor", "subclass"):
        return False
    held = key.get("v")
    return kind != "tuple" or (isinstance(held, list) and all(map(_is_key, held)))
