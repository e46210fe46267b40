"""When something is nearly full: at 80 %, and until it is below 75 %, so that what goes up and down there is said once.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

UP, DOWN = 0.80, 0.75


def nearly_full(share: float, was: bool) -> bool:
    """`share`: what is used, 0 to 1 and beyond; `was`: whether it was nearly full when it was last looked at."""
    return share >= (DOWN if was else UP)
