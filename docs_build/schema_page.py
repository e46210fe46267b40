"""The configuration's keys, from the JSON Schema that the decoder itself gives."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from docs_build.command_pages import cell, prose

LONGEST_LIST = 12
"""Values that a cell names; of a longer list it says how many there are."""

INTRODUCTION = """# Configuration keys

Every key that a configuration may have, with its type and default: `hyperpod-kit config schema`, for people.
What belongs together and why: [The configuration](../configuration.md). Limits that AWS changes from release to release
are not here; `hyperpod-kit validate` takes them from the installed boto3.
"""


def page(schema: Mapping[str, Any]) -> str:
    """The page. `schema`: an object with `properties`, nested as JSON Schema nests them."""
    return "\n".join([INTRODUCTION, *_object(schema, "")])


def _object(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """A table of the object's keys, then each object inside of it."""
    if path:
        yield from (f"## `{path}`", "")
    if schema.get("description") and path:
        yield from (prose(str(schema["description"])), "")
    properties = schema.get("properties", {})
    if properties:
        required = schema.get("required", ())
        yield from ("| key | type | default | |", "| --- | --- | --- | --- |")
        yield from (_row(key, value, key in required) for key, value in properties.items())
        yield ""
    for key, value in properties.items():
        yield from _inside(value, f"{path}.{key}".lstrip("."))


def _inside(value: Mapping[str, Any], path: str) -> Iterator[str]:
    items = value.get("items", {})
    if value.get("properties"):
        yield from _object(value, path)
    elif items.get("properties"):
        yield from _object({"description": value.get("description"), **items}, f"{path}[]")
    for kind in [*items.get("oneOf", ()), *value.get("oneOf", ())]:
        if kind.get("properties"):
            yield from _object(kind, f"{path}[] {kind.get('title', '')}".strip())


def _row(key: str, value: Mapping[str, Any], required: bool) -> str:
    default = "**required**" if required else _default(value)
    return f"| `{key}` | {cell(_type(value))} | {cell(default)} | {cell(prose(str(value.get('description', ''))))} |"


def _default(value: Mapping[str, Any]) -> str:
    if "default" not in value or value["default"] is None:
        return ""
    written = value["default"]
    if isinstance(written, list):
        return ", ".join(f"`{item}`" for item in written) or "none"
    return f"`{str(written).lower() if isinstance(written, bool) else written}`" if written != "" else '`""`'


def _type(value: Mapping[str, Any]) -> str:
    if "const" in value:
        return f"`{value['const']}`"
    choices = [choice for choice in value.get("enum", ()) if choice is not None]
    if choices:
        return (
            " or ".join(f"`{choice}`" for choice in choices)
            if len(choices) <= LONGEST_LIST
            else f"one of {len(choices)} values"
        )
    kinds = value.get("type", "anything")
    kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    items = value.get("items", {})
    if kinds == ["array"]:
        return "list of " + (f"{_type(items)}s" if items.get("type") in ("string", "integer") else "objects")
    return " or ".join(kinds)
