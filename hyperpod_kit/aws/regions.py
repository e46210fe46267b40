"""The regions of AWS, as the installed botocore knows them."""

from __future__ import annotations

import json
from functools import lru_cache


@lru_cache(maxsize=1)
def region_names() -> frozenset[str]:
    """Return the names of all regions; a newer botocore may know more. Raises ImportError without botocore."""
    # A file of 20 KB: endpoints.json, from which a session takes the same answer, has a megabyte.
    from importlib.resources import files

    partitions = json.loads((files("botocore") / "data" / "partitions.json").read_text(encoding="utf-8"))["partitions"]
    return frozenset(region for partition in partitions for region in partition["regions"])
