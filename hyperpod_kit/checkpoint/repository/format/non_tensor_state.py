"""Where the tensors are in a tree of values as a checkpoint has it (`codec/codec.py` writes it), without torch."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import clean_one_line

Path = Tuple[Any, ...]

_DEEPEST = 256
"""Containers in one another: writers refuse more than 200."""

MOST_CHARACTERS = 64 << 20
"""Of the names of a checkpoint's values together: one long key before thousands of others would make gigabytes."""


def tensor_paths_and_names(tree: Any, path: Path = ()) -> Iterator[Tuple[Path, str]]:
    """Yield (keys that lead there, stored name) of every tensor; a tied one more than once. A key that is
    neither text nor a number is given as its JSON. Raise CheckpointError."""
    for way, record in _validated_records(tree, path, ("tensor",)):
        yield way, record["name"]


def tensor_and_subclass_records(tree: Any, path: Path = ()) -> Iterator[Tuple[Path, Dict[str, Any]]]:
    """Yield (keys that lead there, record) of every tensor as the program has it: a subclass that was saved by
    its parts is one. Raise CheckpointError."""
    return _validated_records(tree, path, ("tensor", "subclass"))


def _validated_records(tree: Any, path: Path, kinds: Tuple[str, ...]) -> Iterator[Tuple[Path, Dict[str, Any]]]:
    """Yield (path, record) of the given kinds. Any tree may have been written to a root: what is not valid
    raises CheckpointError."""
    characters = 0
    try:
        for way, record in _walk_records(tree, path, kinds):
            if not isinstance(record.get("name"), str):
                raise CheckpointError(f"{clean_one_line(dotted_path(way))!r} is a tensor without a name")
            characters += sum(len(str(key)) + 1 for key in way)
            require_names_in_bounds(characters)
            yield way, record
    except RecursionError:
        raise CheckpointError("the tree of its values is nested too deeply") from None


def _walk_records(tree: Any, path: Path, kinds: Tuple[str, ...]) -> Iterator[Tuple[Path, Dict[str, Any]]]:
    if isinstance(tree, dict) and tree.get("$") in kinds:
        yield path, tree
        return
    try:
        children = list(_children(tree))
    except (TypeError, ValueError):
        raise CheckpointError(
            f"{clean_one_line(dotted_path(path))!r} holds values as no program of ours writes them"
        ) from None
    for key, item in children:
        yield from _walk_records(item, (*path, key), kinds)


def require_names_in_bounds(characters: int) -> None:
    """Raise CheckpointError where the names of the values have more characters together than any program's."""
    if characters > MOST_CHARACTERS:
        raise CheckpointError(f"its values have names of more than {MOST_CHARACTERS} characters together")


def stored_tensor_name(tree: Any, dotted_tensor_path: str) -> Optional[str]:
    """Return the name under which the tensor is stored that a user calls `user_name`; None where there is none.
    Raise CheckpointError."""
    return next(
        (stored for path, stored in tensor_paths_and_names(tree) if dotted_path(path) == dotted_tensor_path), None
    )


def dotted_path(path: Path) -> str:
    """Return the path as a user types it: `model.0.weight`."""
    return ".".join(map(str, path))


def _children(tree: Any) -> Iterable[Tuple[Any, Any]]:
    if isinstance(tree, list):
        return enumerate(tree)
    if not isinstance(tree, dict):
        return ()
    kind = tree.get("$")
    if kind is None:
        return tree.items()
    content = tree.get("v")
    if kind == "tuple":
        return enumerate(content or ())
    if kind == "subclass":
        return dict(tree.get("parts") or {}).items()
    if kind in ("deque", "named"):
        return enumerate(content or ())
    if kind == "dataclass":
        return dict(content or {}).items()
    if kind == "dict":
        return [(json.dumps(key) if isinstance(key, (dict, list)) else key, item) for key, item in content or ()]
    return ()


def require_known_records_well_formed(tree: Any) -> None:
    """Raise CheckpointError unless each record is as its readers expect it, so that none of them meets anything
    else: what was not written by the kit is damage of that checkpoint, and no mismatch of the program that
    reads it."""
    todo = [(tree, 0)]
    while todo:
        value, depth = todo.pop()
        if not isinstance(value, (dict, list)):
            continue
        if depth > _DEEPEST:
            raise CheckpointError("the tree of its values is nested too deeply")
        kind = None
        if isinstance(value, dict):
            kind = value.get("$")
        try:
            if isinstance(value, dict) and kind is not None and not _is_record_well_formed(kind, value):
                raise ValueError("another form")
        except (TypeError, ValueError, KeyError, RecursionError):
            raise CheckpointError(
                f"its tree has a {clean_one_line(kind)[:40]} as no program of ours writes it"
            ) from None
        todo += [(item, depth + 1) for item in _contained_values(value, kind)]


def _contained_values(value: Any, kind: Any) -> List[Any]:
    """Return what a container holds, without the keys of a record itself: of a record whatever it has, for a
    program that is newer than this one may have written it."""
    if isinstance(value, list):
        return value
    if kind is None:
        return list(value.values())
    contained: List[Any] = []
    for part in value.values():
        if isinstance(part, dict) and "$" not in part:
            items = list(part.values())
        else:
            items = part
        if not isinstance(items, list):
            contained.append(part)
        elif kind == "dict":
            contained += [item for pair in items for item in (pair if isinstance(pair, list) else (pair,))]
        else:
            contained += items
    return contained


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_anything(value: Any) -> bool:
    return True


def _is_deque_maxlen(value: Any) -> bool:
    """Return whether a value is a valid maxlen of a deque."""
    return value is None or (type(value) is int and 0 <= value < 1 << 63)


def _is_complex_text_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number_text_or_raise, value))


def _is_number_text_or_raise(value: Any) -> bool:
    """Return whether a value is text of a number. Raise ValueError for other text."""
    return isinstance(value, str) and isinstance(float(value), float)


_FORMS: Dict[str, Dict[str, Callable[[Any], bool]]] = {
    "tensor": {"name": _is_text},
    "subclass": {"name": _is_text, "class": _is_text, "parts": _is_object},
    "tuple": {"v": _is_list},
    "dict": {"v": lambda value: isinstance(value, list) and _are_items_with_unique_keys(value)},
    "float": {"v": _is_number_text_or_raise},
    "bytes": {"v": _is_text},
    "complex": {"v": _is_complex_text_pair},
    "numpy": {"t": _is_text, "v": _is_text},
    "array": {"t": _is_text, "f": _is_anything, "of": _is_object},
    "torch": {"v": _is_text},
    "device": {"v": _is_text},
    "enum": {"c": _is_text, "n": _is_text, "v": _is_anything},
    "deque": {"v": _is_list, "most": _is_deque_maxlen},
    "set": {"v": _is_list},
    "frozenset": {"v": _is_list},
    "time": {"c": _is_text, "v": lambda value: isinstance(value, (str, list))},
    "path": {"c": _is_text, "v": _is_text},
    "named": {"c": _is_text, "v": _is_list},
    "dataclass": {"c": _is_text, "v": _is_object},
    "object": {"c": _is_text, "v": _is_object},
}
"""What each kind of record has, as `codec` and `typed_values` write it."""
_OF_DICT: Dict[str, Callable[[Any], bool]] = {"c": _is_text, "f": _is_text}
_OPTIONAL: Dict[str, Dict[str, Callable[[Any], bool]]] = {
    "tensor": {"g": lambda value: type(value) is int},
    "subclass": {"context": lambda value: value is None or isinstance(value, list)},
    "tuple": _OF_DICT,
    "dict": _OF_DICT,
}
"""What such a record may have besides."""


def _is_record_well_formed(kind: Any, record: Dict[str, Any]) -> bool:
    """Return whether a record has the form of its kind. Of an unknown kind nothing is expected: a newer program
    may have written it."""
    if not isinstance(kind, str):
        return False
    if not all(fits(record[key]) for key, fits in _OPTIONAL.get(kind, {}).items() if key in record):
        return False
    return all(fits(record[key]) for key, fits in _FORMS.get(kind, {}).items())


def _are_items_with_unique_keys(pairs: List[Any]) -> bool:
    """Return whether these are items of a dict, each key once."""
    if not all(isinstance(pair, list) and len(pair) == 2 and _is_key(pair[0]) for pair in pairs):
        return False
    return len({json.dumps(key) if isinstance(key, dict) else key for key, _ in pairs}) == len(pairs)


def _is_key(key: Any) -> bool:
    """Return whether Python could use it as a key: a tuple of such, but no list and no dict."""
    if not isinstance(key, dict):
        return not isinstance(key, list)
    kind = key.get("$")
    if not isinstance(kind, str) or kind in ("dict", "tensor", "subclass"):
        return False
    content = key.get("v")
    return kind != "tuple" or (isinstance(content, list) and all(map(_is_key, content)))
