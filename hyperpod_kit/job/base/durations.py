"""Write seconds as reports and tables show them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations


def describe_duration(seconds: float) -> str:
    """Return seconds in two units at most: `42 s`, `3 min 5 s`, `2 h 10 min`."""
    rounded_seconds = round(seconds)
    if rounded_seconds < 60:
        return f"{rounded_seconds} s"
    if rounded_seconds < 3600:
        return f"{rounded_seconds // 60} min {rounded_seconds % 60} s"
    return f"{rounded_seconds // 3600} h {rounded_seconds % 3600 // 60} min"
