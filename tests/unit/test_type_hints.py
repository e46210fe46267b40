"""What beartype, pydantic and typeguard ask of a function: the types that its annotations name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit import checkpoint, data


def functions_of(public: Any) -> Iterator[Any]:
    """The function itself, or all that our classes define: methods, properties, class and static methods."""
    if not inspect.isclass(public):
        yield public
        return
    for base in public.__mro__:
        if base.__module__.startswith("hyperpod_kit."):
            for member in vars(base).values():
                function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if inspect.isfunction(function) and function.__module__ == base.__module__:
                    yield function


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in (checkpoint, data) for name in package.__all__]
)
def test_the_annotations_of_what_is_public_can_be_resolved(package: ModuleType, name: str) -> None:
    public = getattr(package, name)
    functions = list(functions_of(public))
    assert functions or inspect.isclass(public)
    for function in functions:
        typing.get_type_hints(function)
    if inspect.isclass(public):
        ours = [base for base in public.__mro__ if base.__module__.startswith("hyperpod_kit.")]
        if all(base in ours or not vars(base).get("__annotations__") for base in public.__mro__):
            typing.get_type_hints(public)  # torch's DataLoader has annotations that cannot be resolved


def test_a_manager_names_the_classes_that_its_callers_use() -> None:
    hints = typing.get_type_hints(checkpoint.Manager.restore)
    assert hints["state"] is checkpoint.State
    assert hints["return"] == typing.Union[checkpoint.Restored, checkpoint.Fresh]
    assert typing.get_args(typing.get_type_hints(checkpoint.Manager.save)["on_busy"]) == ("skip", "wait", "replace")
