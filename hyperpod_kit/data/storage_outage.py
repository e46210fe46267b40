"""A trainer that does not catch DataUnavailable ends with its exit code, which `job run` reads as lost storage."""

from __future__ import annotations

import sys
from types import TracebackType

from hyperpod_kit.errors import DataUnavailable


class _ExitHook:
    """Shows an exception as the hook before it does, and ends with its code where it is ours."""

    def __init__(self) -> None:
        self._previous_hook = sys.excepthook

    def __call__(self, kind: type[BaseException], err: BaseException, trace: TracebackType | None) -> None:
        self._previous_hook(kind, err, trace)
        if isinstance(err, DataUnavailable):
            raise SystemExit(err.exit_code)


def install_outage_excepthook() -> None:
    """Install an excepthook that ends this process with the exit code of an uncaught DataUnavailable.

    Once is enough; a hook that is set later takes its place.
    """
    if not isinstance(sys.excepthook, _ExitHook):
        sys.excepthook = _ExitHook()
