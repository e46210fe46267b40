"""What storage costs, each price with its day and where it is from. `--prices FILE` replaces any of them.

None was read from AWS's price list by this program: they are starting values for US East (N. Virginia), and the plan
says so beside each figure.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from hyperpod_kit.errors import ConfigError, UsageError
from hyperpod_kit.untrusted import files
from hyperpod_kit.untrusted.parse import json_object

LARGEST = 1 << 20


class Price(NamedTuple):
    """`usd`: US dollars for a GB (10^9) kept a month, or moved where the key ends in `-write`; `date`: when it was
    read; `source`: by whom it was published."""

    usd: float
    date: str
    source: str


PRICES: Mapping[str, Price] = {
    "fsx-lustre-125": Price(0.145, "2026-09", "published by others"),
    "fsx-lustre-250": Price(0.210, "2026-09", "not confirmed"),
    "fsx-lustre-500": Price(0.340, "2026-09", "not confirmed"),
    "fsx-lustre-1000": Price(0.600, "2026-09", "not confirmed"),
    "efs": Price(0.30, "2026-06-13", "published by others"),
    "efs-write": Price(0.06, "2026-06-13", "published by others"),
    "s3": Price(0.023, "2026-09", "published by others"),
}


def load(path: Path) -> dict[str, Price]:
    """`{"fsx-lustre-250": {"usd": 0.2, "date": "2026-11-01"}}` over PRICES. Raises ConfigError, UsageError."""
    try:
        body: Mapping[str, Any] = json_object(files.read(str(path), LARGEST), LARGEST)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}") from None
    except ValueError as err:
        raise ConfigError(f"{path} is no list of prices: {err}") from None
    out = dict(PRICES)
    for key, row in body.items():
        if key not in PRICES:
            raise ConfigError(f"{path}: {key[:80]!r} is no price that is used; expected some of {', '.join(PRICES)}")
        usd, date = (row.get("usd"), row.get("date")) if isinstance(row, dict) else (None, None)
        if isinstance(usd, bool) or not isinstance(usd, (int, float)) or not 0 <= usd < math.inf:
            raise ConfigError(f"{path}: {key}.usd is {usd!r}: expected US dollars for a GB")
        if not isinstance(date, str) or not date:
            raise ConfigError(f"{path}: {key}.date is {date!r}: a price without its day is none")
        out[key] = Price(float(usd), date, str(row.get("source", path.name)))
    return out
