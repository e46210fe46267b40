"""Public names of 0.1.0 that have changed: they work for one more release, with a DeprecationWarning.

`renamed_arguments` keeps keyword arguments of a function, `renamed_fields` attributes of a class, and `warn_of_renamed`
is for names of a package.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, TypeVar

Callback = TypeVar("Callback", bound=Callable[..., Any])
AnyClass = TypeVar("AnyClass", bound=type)


def renamed_arguments(**new_names: str) -> Callable[[Callback], Callback]:
    """Return a decorator that takes keyword arguments under their names of before, too.

    Args:
        **new_names: The name of today for each name of before.

    Raises:
        TypeError: By the decorated function, when it is given both names of one argument.
    """

    def decorate(function: Callback) -> Callback:
        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            for old in arguments.keys() & new_names.keys():
                new = new_names[old]
                if new in arguments:
                    raise TypeError(f"{function.__qualname__}() got {old}=, which is now {new}=, and {new}= as well")
                _warn_deprecated_name(f"{function.__qualname__}({old}=...)", f"{new}=")
                arguments[new] = arguments.pop(old)
            return function(*args, **arguments)

        return call  # type: ignore[return-value]

    return decorate


def renamed_fields(**new_names: str) -> Callable[[AnyClass], AnyClass]:
    """Return a decorator for a class whose attributes are known by their names of before, too.

    The constructor of a dataclass takes these as well.
    """

    def decorate(decorated: AnyClass) -> AnyClass:
        for old, new in new_names.items():
            setattr(decorated, old, _renamed_attribute(old, new))
        if hasattr(decorated, "__dataclass_fields__"):
            decorated.__init__ = renamed_arguments(**new_names)(decorated.__init__)  # type: ignore[misc]
        return decorated

    return decorate


def warn_of_renamed(package: str, old: str, new: str) -> None:
    """Warn whoever has asked `package` for `old`; the package's `__getattr__` calls it."""
    _warn_deprecated_name(f"{package}.{old}", new, stacklevel=4)


def _renamed_attribute(old: str, new: str) -> property:
    """Return a property that reads the attribute `new` under its name of before."""

    def read_attribute(self: Any) -> Any:
        _warn_deprecated_name(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    return property(read_attribute, doc=f"Deprecated: `{new}`.")


def _warn_deprecated_name(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the caller of the function here that has called this one, or, with 4, the caller of that."""
    message = f"{old} is now called {new}; the old name works in this release for the last time"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
