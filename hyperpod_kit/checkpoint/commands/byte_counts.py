"""Numbers of bytes as people read them."""

from __future__ import annotations


def format_byte_count(value: float) -> str:
    """Return a number of bytes as people read it; powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            if unit == "B":
                return f"{value:,.0f} {unit}"
            return f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
