"""When something is nearly full: at 80 %, and until it is below 75 %, so that what goes up and down there is said once.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

UP, DOWN = 0.80, 0.75


def is_nearly_full(share: float, was_nearly_full: bool) -> bool:
    """Return whether `share` (0 to 1 and beyond) is nearly full: from 80 % on, and until it is below 75 %
    where it was nearly full before."""
    return share >= (DOWN if was_nearly_full else UP)
