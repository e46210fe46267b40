"""The one line below findings with codes that says where each code is explained.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Iterable

from hyperpod_kit.untrusted import terminal


def print_explain_line(codes: Iterable[str]) -> None:
    """Print on stderr how a code is explained, where there are any.

    A node's installation has no `explain`, so nothing is printed there.
    """
    first = next(iter(codes), None)
    if first is None or find_spec("hyperpod_kit.cli") is None:
        return
    terminal.print_stderr(f"more about a code: hyperpod-kit explain {first}")
