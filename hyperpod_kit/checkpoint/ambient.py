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


def without_modes() -> contextlib.AbstractContextManager[object]:
    """Operations inside are torch's own."""
    if not torch._C._len_torch_dispatch_stack():
        return contextlib.nullcontext()
    modes: contextlib.AbstractContextManager[object] = _disable_current_modes()
    return modes


def without_modes_around(function: Called) -> Called:
    """The function, with torch's own operations inside."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with without_modes():
            return function(*args, **options)

    return cast(Called, call)
