"""What storage costs, each price with its day and where it is from. `--prices FILE` replaces any of them.

None was read from AWS's price list by this program: they are starting values for US East (N. Virginia), and the plan
says so beside each figure.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from hyperpod_kit.errors import Absent, ConfigError
from hyperpod_kit.untrusted import files
from hyperpod_kit.untrusted.parse import parse_json_object

MAX_FILE_BYTES = 1 << 20


class Price(NamedTuple):
    """A price.

    `usd`: US dollars, None where nobody here knows; `date`: when it was read; `source`: by whom it was published;
    `unit`: what it is for.
    """

    usd: float | None
    date: str
    source: str
    unit: str = "GB-month"


GETS = "aws.amazon.com/s3/pricing, as others print it"
FAQ = "aws.amazon.com/s3/faqs, example 1 of S3 Express One Zone, a stored copy"
NOBODY = "no source that this kit has read"
THOUSAND = "1,000 requests"

PRICES: Mapping[str, Price] = {
    "fsx-lustre-125": Price(0.145, "2026-09", "published by others"),
    "fsx-lustre-250": Price(0.210, "2026-09", "not confirmed"),
    "fsx-lustre-500": Price(0.340, "2026-09", "not confirmed"),
    "fsx-lustre-1000": Price(0.600, "2026-09", "not confirmed"),
    "fsx-intelligent-tiering": Price(None, "2026-11", NOBODY),
    "fsx-intelligent-tiering-throughput": Price(None, "2026-11", NOBODY, "MB/s-month"),
    "efs": Price(0.30, "2026-06-13", "published by others"),
    "efs-write": Price(0.06, "2026-06-13", "published by others", "GB written"),
    "efs-read": Price(0.03, "2026-06-13", "published by others", "GB read"),
    "s3": Price(0.023, "2026-09", "published by others"),
    "s3-put": Price(0.005, "2026-09", "published by others", THOUSAND),
    "s3-get": Price(0.0004, "2026-11", GETS, THOUSAND),
    "s3-express": Price(0.11, "2026-11", FAQ),
    "s3-express-put": Price(0.00113, "2026-11", FAQ, THOUSAND),
    "s3-express-upload": Price(0.0032, "2026-11", FAQ, "GB written"),
    "s3-express-get": Price(0.00003, "2026-11", FAQ, THOUSAND),
    "s3-express-retrieval": Price(0.0006, "2026-11", FAQ, "GB read"),
}


def load_prices_over_defaults(path: Path) -> dict[str, Price]:
    """Load `{"fsx-lustre-250": {"usd": 0.2, "date": "2026-11-01"}}` over PRICES. Raises ConfigError, Absent."""
    try:
        body: Mapping[str, Any] = parse_json_object(files.read_file_or_pipe(str(path), MAX_FILE_BYTES), MAX_FILE_BYTES)
    except FileNotFoundError:
        raise Absent(f"there is no {path}") from None
    except ValueError as err:
        raise ConfigError(f"{path} is not a list of prices: {err}") from None
    out = dict(PRICES)
    for key, row in body.items():
        if key not in PRICES:
            raise ConfigError(f"{path}: {key[:80]!r} is not a price that is used; expected some of {', '.join(PRICES)}")
        usd = date = None
        if isinstance(row, dict):
            usd, date = row.get("usd"), row.get("date")
        if isinstance(usd, bool) or not isinstance(usd, (int, float)) or not 0 <= usd < math.inf:
            raise ConfigError(f"{path}: {key}.usd is {usd!r}: expected US dollars for a {PRICES[key].unit}")
        if not isinstance(date, str) or not date:
            raise ConfigError(f"{path}: {key}.date is {date!r}: expected the day of the price, such as 2026-11-01")
        out[key] = Price(float(usd), date, str(row.get("source", path.name)), PRICES[key].unit)
    return out
