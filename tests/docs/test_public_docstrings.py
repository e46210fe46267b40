"""Every public name of `hyperpod_kit.checkpoint` and `hyperpod_kit.data` has a docstring in Google's style."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, Callable, List

import pytest

from tests.docs.public_docstrings import entries, public_callables, public_objects, sections

pytest.importorskip("torch")


def parameters(function: Callable[..., Any]) -> List[str]:
    """The names that a caller passes."""
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls")]


def fields(public: type) -> List[str]:
    """The fields of a dataclass or a named tuple that a reader uses."""
    if dataclasses.is_dataclass(public):
        return [field.name for field in dataclasses.fields(public) if not field.name.startswith("_")]
    return list(getattr(public, "_fields", ()))


def returns_something(function: Callable[..., Any]) -> bool:
    annotation = function.__annotations__.get("return", "None")
    return annotation not in ("None", None)


@pytest.mark.parametrize(("name", "public"), list(public_objects()))
def test_a_public_name_has_a_sentence_and_an_example(name: str, public: Any) -> None:
    found = sections(public.__doc__ or "")
    assert found[""] and found[""][0].endswith((".", ":")), f"{name}: the first line is no sentence"
    assert found.get("Example"), f"{name} has no example"


@pytest.mark.parametrize(("name", "function"), list(public_callables()))
def test_a_public_function_explains_each_argument_and_what_it_returns(name: str, function: Callable[..., Any]) -> None:
    found = sections(function.__doc__ or "")
    assert found[""], f"{name} has no docstring"
    assert entries(found.get("Args", [])) == parameters(function), name
    assert ("Returns" in found or "Yields" in found) == returns_something(function), name


@pytest.mark.parametrize(
    ("name", "public"), [(name, public) for name, public in public_objects() if inspect.isclass(public)]
)
def test_a_public_class_explains_its_arguments_or_fields(name: str, public: type) -> None:
    found = sections(public.__doc__ or "")
    if fields(public):
        assert entries(found.get("Attributes", [])) == fields(public), name
    elif "__init__" in vars(public):
        assert entries(found.get("Args", [])) == parameters(vars(public)["__init__"]), name


def test_public_properties_have_a_sentence() -> None:
    bare = [
        f"{name}.{attribute}"
        for name, public in public_objects()
        if inspect.isclass(public)
        for attribute, member in vars(public).items()
        if isinstance(member, (property, functools.cached_property)) and not (member.__doc__ or "").strip()
    ]
    assert bare == []
