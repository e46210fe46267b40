"""A YAML text -> plain values and their positions, with the types that JSON has and no others.

YAML's own readings of plain words are not what people mean in a configuration: `no` would be false, `0755` the number
493, an account `012345670123` another number, `12:30` seventy thousand. Here those are text, as in YAML 1.2 without
its octals. Anchors, aliases and merge keys (`<<`) work; what they unfold to is bounded.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from hyperpod_kit.config.reading.source_map import DEEPEST, Position, SourceMap, child_path

MOST_VALUES = 50_000
"""Values that a text may unfold to: aliases of aliases grow without limit."""

_PLAIN = {
    "tag:yaml.org,2002:null": (r"(?:~|null|Null|NULL|)", "~nN\0"),
    "tag:yaml.org,2002:bool": (r"(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
    "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:0|[1-9][0-9]*)?(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|\.|[eE][-+]?[0-9]+)",
        "-+.0123456789",
    ),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}
"""tag -> how a plain word of it looks, and how it begins (for PyYAML's index of resolvers)."""


class Refused(Exception):
    """The text cannot be a configuration. `position`: where, when that is known."""

    def __init__(self, message: str, position: Optional[Position] = None) -> None:
        super().__init__(message)
        self.position = position


def parse_yaml(text: str) -> tuple[Any, SourceMap]:
    """Values and positions of one YAML document, None for an empty one. Raises Refused; ImportError without PyYAML."""
    import yaml

    loader_class = _make_loader_class(yaml)
    try:
        _require_bounded_depth(yaml, loader_class, text)
        loader = loader_class(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        problem = ", ".join(part for part in (err.context, err.problem) if part)
        position = None
        if mark is not None:
            position = Position(mark.line + 1, mark.column + 1)
        raise Refused(problem, position) from err
    except yaml.YAMLError as err:
        raise Refused(" ".join(str(err).split())) from err
    reader = _YamlReader()
    if root is None:
        values = None
    else:
        values = reader.convert_node_within_limits(root, "")
    return (values), reader.source_map


def _make_loader_class(yaml: Any) -> Any:
    """PyYAML's loader, the fast one where it is built in, with our reading of plain words."""
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers: dict[str, list[Any]] = {}
    for tag, (pattern, begins) in _PLAIN.items():
        for letter in begins:
            first = letter
            if letter == "\0":
                first = ""
            resolvers.setdefault(first, []).append((tag, re.compile(f"^{pattern}$")))
    return type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})


def _require_bounded_depth(yaml: Any, loader: Any, text: str) -> None:
    """Raise Refused for a text that nests deeper than DEEPEST levels, before anything walks it
    recursively."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise Refused(f"nested deeper than {DEEPEST} levels", _position_of(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _YamlReader:
    """Walks composed nodes; an alias is walked again at every place that uses it."""

    def __init__(self) -> None:
        self.source_map = SourceMap()
        self._count = 0
        self._open: list[Any] = []

    def convert_node_within_limits(self, node: Any, path: str) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            raise Refused(f"its aliases unfold to more than {MOST_VALUES} values", _position_of(node))
        if any(node is outer for outer in self._open):
            raise Refused("an alias stands inside of what it stands for", _position_of(node))
        self._open.append(node)
        try:
            if node.id == "mapping":
                return self._convert_mapping(node, path)
            if node.id == "sequence":
                return self._convert_sequence(node, path)
            return _convert_scalar(node)
        finally:
            self._open.pop()

    def _convert_sequence(self, node: Any, path: str) -> list[Any]:
        _require_plain_collection(node, "seq")
        values = []
        for index, item in enumerate(node.value):
            item_path = f"{path}[{index}]"
            self.source_map.add(item_path, _position_of(item), _position_of(item))
            values.append(self.convert_node_within_limits(item, item_path))
        return values

    def _convert_mapping(self, node: Any, path: str) -> dict[str, Any]:
        _require_plain_collection(node, "map")
        merged: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                # Of several, the first one counts, and what the mapping says itself counts more than all of them.
                merged = {**self._merged_values(value, path), **merged}
                continue
            if key.id != "scalar":
                raise Refused("a key that is not a text", _position_of(key))
            name = str(key.value)
            key_path = child_path(path, name)
            self.source_map.add(key_path, _position_of(key), _position_of(value), written_before=name in values)
            values[name] = self.convert_node_within_limits(value, key_path)
        return {**merged, **values}

    def _merged_values(self, node: Any, path: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for source in node.value if node.id == "sequence" else [node]:
            if source.id != "mapping":
                raise Refused("`<<` stands before something that is no mapping", _position_of(source))
            merged = {**self.convert_node_within_limits(source, path), **merged}
        return merged


def _convert_scalar(node: Any) -> Any:
    kind = node.tag.rpartition(":")[2]
    text = node.value
    try:
        if kind in ("str", "merge"):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except (ValueError, KeyError) as err:
        raise Refused(f"`{text[:40]}` is not of the type that its tag says", _position_of(node)) from err
    raise Refused(f"a value with the tag {node.tag[:60]}: only what JSON has too is taken", _position_of(node))


def _require_plain_collection(node: Any, kind: str) -> None:
    if node.tag != f"tag:yaml.org,2002:{kind}":
        raise Refused(f"a value with the tag {node.tag[:60]}: only what JSON has too is taken", _position_of(node))


def _position_of(node: Any) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)
