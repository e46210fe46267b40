"""Errors that one process sends to another arrive as they were."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any, Iterator, Type

import pytest

from hyperpod_kit import errors

_PARAMETERS = {"reasons": [("seq-1", "damaged"), ("seq-2", "lost")], "rejected": [("seq-1", "damaged")]}


def kinds(base: Type[errors.HyperpodKitError]) -> Iterator[Type[errors.HyperpodKitError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(kinds(errors.HyperpodKitError)), key=str))
def test_it_arrives_as_it_was(kind: Type[errors.HyperpodKitError]) -> None:
    given: Any = inspect.signature(kind).bind_partial()
    for name, parameter in given.signature.parameters.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            given.arguments[name] = _PARAMETERS.get(name, name)
    error = kind(*given.args, **given.kwargs)
    for received in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(received) is kind and str(received) == str(error)
        assert received.__dict__ == error.__dict__ and received.args == error.args
