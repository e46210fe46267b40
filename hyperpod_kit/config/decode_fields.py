"""A dataclass of the model, read from one object of the configuration by its fields' types and defaults.

The keys of such an object are the fields, but for those that are marked as derived. A field of a dataclass is an object
of its own, a tuple of them a list of objects; both are None or empty when they are not written.
"""

from __future__ import annotations

import collections.abc
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Optional, TypeVar, cast, get_args, get_origin

from hyperpod_kit.config.section import Section
from hyperpod_kit.model.dataclass_json import field_types

T = TypeVar("T")


def decode_dataclass(cls: type[T], section: Section) -> T:
    """Return what the object says, with a finding for each key that is missing, unknown or of another type."""
    hints = field_types(cast(Any, cls))
    values = {
        field.name: _read_field(section, field, hints[field.name])
        for field in fields(cast(Any, cls))
        if not field.metadata.get("derived")
    }
    section.report_unknown_keys()
    return cls(**values)


def _read_field(section: Section, field: Field[Any], hint: Any) -> Any:
    name = field.name
    arguments = get_args(hint)
    if arguments and is_dataclass(arguments[0]):
        return _read_dataclass_field(section, name, hint, cast(type, arguments[0]))
    if get_origin(hint) is collections.abc.Mapping:
        return dict(section.read_texts_by_key(name))
    if hint == Optional[str]:
        return section.read_optional_text(name)
    if hint == Optional[int]:
        return section.read_optional_integer(name)
    default: Any = None if field.default is MISSING else field.default
    if hint is bool:
        return section.read_boolean_or_report(name, default)
    if hint is int:
        return section.read_integer_or_report(name, default)
    if hint is float:
        return section.read_number_or_report(name, default)
    if hint is str:
        return section.read_text_or_report(name, default)
    return section.read_texts_or_report(name, default)


def _read_dataclass_field(section: Section, name: str, hint: Any, inner: type) -> Any:
    if get_origin(hint) is tuple:
        return tuple(decode_dataclass(inner, entry) for entry in section.read_list_of_sections(name))
    child = section.child_or_empty_stand_in(name, required=False)
    if not section.is_written_and_not_null(name):
        return None  # with its defaults asked for, the configuration written in full would turn it on
    return decode_dataclass(inner, child)
