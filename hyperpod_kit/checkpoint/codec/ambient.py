"""torch as it is without what a program has put around a call: modes that have something else done for each operation.

Under FakeTensorMode a view of a tensor has no memory, under others each copy would be counted or traced.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

Called = TypeVar("Called", bound=Callable[..., Any])


def disable_dispatch_modes() -> contextlib.AbstractContextManager[object]:
    """Return a context manager in which torch's dispatch modes (FakeTensorMode and others) do not
    apply."""
    if not torch._C._len_torch_dispatch_stack():
        return contextlib.nullcontext()
    modes: contextlib.AbstractContextManager[object] = _disable_current_modes()
    return modes


def with_dispatch_modes_disabled(function: Called) -> Called:
    """Return `function` wrapped so that it runs without torch's dispatch modes; a decorator."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with disable_dispatch_modes():
            return function(*args, **options)

    return cast(Called, call)
