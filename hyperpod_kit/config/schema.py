"""The JSON Schema of the configuration, for editors: asked from the decoder, so that it cannot be another format.

The decoder is run on a document that grows until it has asked for every key there is. Descriptions come from
config/fields/fields.py, limits and lists of values from the service model of the installed botocore.
"""

from __future__ import annotations

import copy
from typing import Any, Iterator

from hyperpod_kit.aws import request_shape
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.fields.fields import field_at
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.schema_recorder import MOUNTS, KeyPath, KeyRead
from hyperpod_kit.model.mounts.kinds import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "texts_by_key": {"type": "object", "additionalProperties": {"type": "string"}},
    "things_by_key": {"type": "object"},
    "list": {"type": "array"},
    "anything": {},
}


def build_schema(*, limits: bool = True) -> dict[str, Any]:
    """Build the JSON Schema. `limits`: with what the API says about values; without, only what the
    decoder itself demands."""
    built = _object_schema((), list(_collect_all_reads()), "", limits)
    return {"$schema": DIALECT, "title": "hyperpod-kit: provisioning_parameters.json", **built}


def _collect_all_reads() -> tuple[KeyRead, ...]:
    """Return every key that the decoder can ask for, by decoding a growing document; lists have one item,
    mounts one of each kind."""
    values: dict[str, Any] = {}
    while True:
        reads: list[KeyRead] = []
        decode_settings(values, reads=reads)
        grown = False
        for read in reads:
            if read.kind in ("object", "list"):
                grown |= _add_empty_value_if_missing(values, read)
        if not grown:
            return tuple({read.key_path: read for read in reads}.values())


def _add_empty_value_if_missing(values: dict[str, Any], read: KeyRead) -> bool:
    """Write an empty value for an object or list that is missing; return whether it was missing."""
    holder: Any = values
    for step in read.key_path[:-1]:
        if isinstance(step, int):
            holder = holder[step]
        else:
            holder = holder.setdefault(step, {})
    key = read.key_path[-1]
    if key in holder:
        return False
    if read.key_path == MOUNTS:
        items = [{"kind": kind} for kind in KINDS]
    else:
        items = [{}]
    if read.kind == "list":
        holder[key] = items
    else:
        holder[key] = {}
    return True


def _object_schema(key_path: KeyPath, reads: list[KeyRead], kind: str, limits: bool) -> dict[str, Any]:
    """The object at a key_path. `kind`: of the mount that it lies in."""
    inside = [read for read in reads if read.key_path[:-1] == key_path]
    return {
        "type": "object",
        "properties": dict(_property_schemas(inside, reads, kind, limits)),
        "required": [str(read.key_path[-1]) for read in inside if not read.optional],
        "additionalProperties": False,
    }


def _property_schemas(
    inside: list[KeyRead], reads: list[KeyRead], kind: str, limits: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    for read in inside:
        yield str(read.key_path[-1]), _property_schema(read, reads, kind, limits)


def _property_schema(read: KeyRead, reads: list[KeyRead], kind: str, limits: bool) -> dict[str, Any]:
    field = field_at(read.field_path, kind)
    property_schema: dict[str, Any] = {"description": field.text}
    if read.kind == "object":
        property_schema.update(_object_schema(read.key_path, reads, kind, limits))
    elif read.key_path == MOUNTS:
        property_schema.update(type="array", items={"oneOf": [_mount_schema(name, reads, limits) for name in KINDS]})
    elif read.kind == "list":
        property_schema.update(type="array", items=_object_schema((*read.key_path, 0), reads, kind, limits))
    else:
        property_schema.update(copy.deepcopy(_TYPES[read.kind]))
        if limits and read.kind != "anything":
            _add_value_limits(property_schema, field)
    if kind and read.key_path[-1] == "kind":
        property_schema["const"] = kind
    if read.optional and "type" in property_schema:
        # null is what leaving the key out means.
        property_schema["type"] = [property_schema["type"], "null"]
        if "enum" in property_schema:
            property_schema["enum"] = [*property_schema["enum"], None]
    if read.optional and read.default is not None:
        property_schema["default"] = read.default
    return property_schema


def _mount_schema(kind: str, reads: list[KeyRead], limits: bool) -> dict[str, Any]:
    return {"title": kind, **_object_schema((*MOUNTS, list(KINDS).index(kind)), reads, kind, limits)}


def _add_value_limits(property_schema: dict[str, Any], field: Field) -> None:
    """Add the values that there are: those of the field, and those that the API has for it, which come first."""
    target = property_schema["items"] if property_schema["type"] == "array" else property_schema
    if field.choices:
        target["enum"] = list(field.choices)
    if field.pattern is not None:
        target["pattern"] = f"^(?:{field.pattern.regex})$"
    if field.request is None:
        return
    try:
        model = request_shape.field_constraints("sagemaker", "CreateCluster", field.request)
        if model.get("type_name") == "list":
            model = request_shape.field_constraints("sagemaker", "CreateCluster", f"{field.request}[]")
    except ImportError:
        return  # without botocore the schema only says less
    if "enum" in model:
        target.pop("pattern", None)
        target["enum"] = model["enum"]
        return
    low, high = ("minLength", "maxLength") if model.get("type_name") == "string" else ("minimum", "maximum")
    for name, key in (("min", low), ("max", high)):
        if name in model:
            target[key] = model[name]
    if "pattern" in model:
        target["pattern"] = f"^(?:{model['pattern']})$"
