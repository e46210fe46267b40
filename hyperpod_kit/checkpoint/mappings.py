"""Dicts of other classes than dict: what their records say of the class, and how one is made again.

No code of a program runs: a class of its own is one that adds methods to dict and keeps nothing besides the items.
"""

from __future__ import annotations

import collections
from typing import Any

from hyperpod_kit.checkpoint import typed_values
from hyperpod_kit.errors import CheckpointError

CLASS, FACTORY = "c", "f"
"""Keys of a dict's record: the name of its class, and of what a defaultdict makes its values with."""

_OF_COLLECTIONS: dict[str, type] = {kind.__name__: kind for kind in (collections.Counter, collections.OrderedDict)}
_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, bytes, list, dict, set, tuple)}


def record_fields_naming_class(value: dict[Any, Any]) -> dict[str, str]:
    """What the record of a dict says of its class: nothing of one that comes back as a plain dict."""
    kind = type(value)
    if kind is dict:
        return {}
    if _OF_COLLECTIONS.get(kind.__name__) is kind:
        return {CLASS: kind.__name__}
    if isinstance(value, collections.defaultdict):
        return _record_fields_naming_defaultdict(value)
    name = None
    if _is_dict_subclass_without_lifecycle_code(kind) and not vars(value):
        name = typed_values.class_name_if_found_in_modules(kind)
    if name is None:
        return {}
    return {CLASS: name}


def _record_fields_naming_defaultdict(value: collections.defaultdict[Any, Any]) -> dict[str, str]:
    factory: Any = value.default_factory
    if type(value) is not collections.defaultdict:
        return {}
    if factory is None:
        return {CLASS: "defaultdict"}
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is factory:
        return {CLASS: "defaultdict", FACTORY: name}
    return {}


def rebuild_dict_of_saved_class(record: dict[str, Any], items: dict[Any, Any], *, plain: bool) -> dict[Any, Any]:
    """The dict of a record. With `plain` one of a class that the program does not have is a plain dict.

    Raises CheckpointError.
    """
    name = record.get(CLASS)
    if name is None:
        return items
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES.get(record.get(FACTORY, "")), items)
    if name in _OF_COLLECTIONS:
        mapping: dict[Any, Any] = _OF_COLLECTIONS[name]()
        mapping.update(items)
        return mapping
    try:
        kind = typed_values.imported_class_by_name(name)
    except CheckpointError:
        if plain:
            return items
        raise
    if not _is_dict_subclass_without_lifecycle_code(kind):
        raise CheckpointError(f"{name} is not of the kind that it was when it was saved (dict)")
    mapping = dict.__new__(kind)
    dict.update(mapping, items)
    return mapping


def _is_dict_subclass_without_lifecycle_code(kind: type) -> bool:
    """Whether an object of that class is the items of a dict, as `copy` and `pickle` see it."""
    *classes, base, _ = kind.__mro__
    return base is dict and bool(classes) and not any(map(typed_values.has_custom_lifecycle_code, classes))
