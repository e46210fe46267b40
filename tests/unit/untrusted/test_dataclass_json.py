"""Dataclasses as JSON and back: what is written, what is refused, and types that every Python of a node evaluates."""

from __future__ import annotations

import ast
import builtins
import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import pytest

from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json, field_types, json_field
from tests.support.packages import modules, relative
from tests.test_architecture import ships_to_nodes


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Place(NamedTuple):
    row: int
    column: int = 0


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Whole:
    text: str
    count: int
    parts: Tuple[Part, ...]
    place: Place
    colour: Colour
    pair: Tuple[str, int]
    words: List[str] = field(default_factory=list)
    names: Sequence[str] = ()
    level: Level = Level.LOW
    by_name: Mapping[str, Optional[Part]] = field(default_factory=dict)
    counts: Dict[Colour, int] = field(default_factory=dict)
    anything: Any = None
    reason: str = field(default="", metadata=json_field("why", left_out=""))
    full: bool = field(default=False, metadata=json_field(left_out=False))


@dataclass(frozen=True)
class Choices:
    json_only_when_set: ClassVar[bool] = True
    first: Optional[Part] = None
    second: int = 2


PLAIN = Whole("a", 3, (Part("p"),), Place(1), Colour.RED, ("b", 4))
WRITTEN: Dict[str, Any] = {
    "text": "a",
    "count": 3,
    "parts": [{"name": "p", "weight": 1.0}],
    "place": {"row": 1, "column": 0},
    "colour": "red",
    "pair": ["b", 4],
    "words": [],
    "names": [],
    "level": 1,
    "by_name": {},
    "counts": {},
    "anything": None,
}
FULL = Whole(
    "ä",
    -1,
    (),
    Place(2, 3),
    Colour.RED,
    ("", 0),
    ["w"],
    ("n",),
    Level.LOW,
    {"x": Part("q", 2), "y": None},
    {Colour.RED: 5},
    {"k": [1, None]},
    "because",
    True,
)


def test_what_is_written_has_the_order_of_the_fields_and_comes_back() -> None:
    assert list(dataclass_to_json(PLAIN).items()) == list(WRITTEN.items())
    assert dataclass_from_json(Whole, WRITTEN) == PLAIN
    body = dataclass_to_json(FULL)
    assert list(body)[-2:] == ["why", "full"] and body["counts"] == {"red": 5}
    assert body["by_name"] == {"x": {"name": "q", "weight": 2}, "y": None}
    assert dataclass_from_json(Whole, body) == FULL


def test_a_class_may_have_only_what_is_set_written() -> None:
    assert dataclass_to_json(Choices()) == {} and dataclass_from_json(Choices, {}) == Choices()
    assert dataclass_to_json(Choices(Part("p"))) == {"first": {"name": "p", "weight": 1.0}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"text": 1}, "Whole.text is of type int, expected a text"),
        ({"text": None}, "Whole.text is None, expected a text"),
        ({"count": True}, "Whole.count is True, expected a whole number"),
        ({"count": 1.0}, "Whole.count is 1.0, expected a whole number"),
        ({"count": 1 << 63}, "Whole.count is of type int, expected a whole number"),
        ({"parts": {}}, "Whole.parts is of type dict, expected a list"),
        ({"parts": [{"name": "p"}, "x"]}, "Whole.parts[1] is 'x', expected an object"),
        ({"parts": [{"name": "p", "weight": True}]}, "Whole.parts[0].weight is True, expected a number"),
        ({"parts": [{"name": "p", "weight": float("nan")}]}, "Whole.parts[0].weight is nan, expected a number"),
        ({"parts": [{"name": "p", "weight": float("inf")}]}, "Whole.parts[0].weight is inf, expected a number"),
        ({"parts": [{"name": "p", "weight": 10**400}]}, "Whole.parts[0].weight is of type int, expected a number"),
        ({"parts": [{"weight": 1}]}, "Whole.parts[0] lacks name"),
        ({"place": [1, 2]}, "Whole.place is of type list, expected an object"),
        ({"colour": "blue"}, "Whole.colour is 'blue', expected one of red"),
        ({"colour": ["red"]}, "Whole.colour is of type list, expected one of red"),
        ({"level": True}, "Whole.level is True, expected one of 1"),
        ({"pair": ["b"]}, "Whole.pair is of type list, expected a list of 2"),
        ({"pair": ["b", "c"]}, "Whole.pair[1] is 'c', expected a whole number"),
        ({"by_name": {"x": 1}}, "Whole.by_name['x'] is of type int, expected an object"),
        ({"full": 1}, "Whole.full is of type int, expected true or false"),
        ({"more": 1}, "Whole has no more"),
        ({"text": "x" * 1000, "why": 1}, "Whole.why is of type int, expected a text"),
        ({"colour": "x" * 1000}, f"Whole.colour is '{'x' * 79}, expected one of red"),
    ],
)
def test_a_wrong_type_is_refused_with_the_name_of_its_field(change: Dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        dataclass_from_json(Whole, {**WRITTEN, **change})
    assert str(refused.value) == problem


@pytest.mark.parametrize("raw", [None, [], "x", 3])
def test_what_is_no_object_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        dataclass_from_json(Whole, raw)


def test_unknown_keys_and_missing_ones_are_the_callers_choice() -> None:
    body = {**WRITTEN, "more": 1, "parts": [{"name": "p", "more": 2}]}
    assert dataclass_from_json(Whole, body, ignore_unknown=True) == PLAIN
    assert dataclass_from_json(Place, {"row": 1}) == Place(1)
    with pytest.raises(ValueError, match="Place lacks column"):
        dataclass_from_json(Place, {"row": 1}, require_all=True)
    assert dataclass_from_json(Whole, dataclass_to_json(PLAIN), require_all=True) == PLAIN, "what is not written"


def test_the_configuration_may_have_numbers_of_any_size() -> None:
    assert dataclass_from_json(Place, {"row": 1 << 70}, any_number=True) == Place(1 << 70)
    assert dataclass_from_json(Part, {"name": "", "weight": 1e300}, any_number=True) == Part("", 1e300)
    with pytest.raises(ValueError, match=r"Part\.weight is True"):
        dataclass_from_json(Part, {"name": "", "weight": True}, any_number=True)


def test_types_are_found_by_name_and_in_order() -> None:
    assert list(field_types(Place).items()) == [("row", int), ("column", int)]
    assert list(field_types(Choices)) == ["first", "second"]


# --- types that Python 3.8 evaluates ----------------------------------------------------------------------------------

NEVER_JSON = {"node/machine/context.py: Node.requested_state_copy: StateCopy"}
"""A node is a way to run commands and a clock: its enum is imported by the one command that sets it."""


def names_at_run_time(tree: ast.Module) -> Set[str]:
    """What a module binds when it is imported; what is imported for type checkers alone is below an `if`."""
    bound = set(vars(builtins))
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return bound


def is_record(of: ast.ClassDef) -> bool:
    """A dataclass or a NamedTuple."""
    marks = [node.func if isinstance(node, ast.Call) else node for node in of.decorator_list] + of.bases
    return any(ast.unparse(mark).rpartition(".")[2] in ("dataclass", "NamedTuple") for mark in marks)


def unevaluated(path: Path) -> Iterator[str]:
    """The annotations of a file's records that `typing.get_type_hints` of Python 3.8 cannot evaluate."""
    tree = ast.parse(path.read_text())
    bound = names_at_run_time(tree)
    for record in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_record(node)]:
        for declared in [node for node in record.body if isinstance(node, ast.AnnAssign)]:
            for node in ast.walk(declared.annotation):
                union = isinstance(node, ast.BinOp)
                generic = isinstance(node, ast.Subscript) and ast.unparse(node.value) in vars(builtins)
                unbound = isinstance(node, ast.Name) and node.id not in bound
                if union or generic or unbound:
                    yield f"{relative(path)}: {record.name}.{ast.unparse(declared.target)}: {ast.unparse(node)}"


def test_every_node_evaluates_the_types_of_its_records() -> None:
    paths = [path for path in modules() if ships_to_nodes(path)]
    assert len(paths) > 400
    assert [problem for path in paths for problem in unevaluated(path)] == list(NEVER_JSON)


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [("int | None", "int | None"), ("list[int]", "list[int]"), ("Unknown", "Unknown"), ("Tuple[Late, ...]", "Late")],
)
def test_a_type_that_an_older_python_does_not_evaluate_is_seen(
    annotation: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.py"
    path.write_text(
        "from typing import TYPE_CHECKING, Tuple\nif TYPE_CHECKING:\n    from elsewhere import Late\n"
        f"@dataclass(frozen=True)\nclass A:\n    fine: Tuple[int, ...]\n    field: {annotation}\n"
    )
    monkeypatch.setitem(globals(), "relative", str)
    assert [found.rpartition(": ")[2] for found in unevaluated(path)] == [problem]
