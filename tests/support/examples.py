"""How many examples a property test draws: the number that it names, and a fifth of it in `make test`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

GATE = "gate"
"""The profile of `make test` (`--hypothesis-profile`)."""
ALL = 100
SHARE = 20


def examples(number: int, **more: Any) -> settings:
    """The settings of a property test that draws `number` examples in `make test-all`."""
    return settings(max_examples=max(1, number * settings().max_examples // ALL), **more)
