"""ListObjects as a pure function over sorted keys."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Sequence

LAST = "\U0010ffff"
"""Sorts after every character of a key, so `prefix + LAST` is behind everything that starts with `prefix`."""


@dataclass(frozen=True)
class ListingPage:
    """One page. keys: objects; prefixes: rolled up by the delimiter; resume: `after` of the next page, or None."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    resume: str | None


def list_page(
    keys: Sequence[str], prefix: str = "", delimiter: str = "", after: str = "", limit: int = 1000
) -> ListingPage:
    """The first `limit` keys and common prefixes behind `after`.

    A common prefix of which `after` is itself the last one given out (it ends in LAST then) is not repeated.
    """
    keys_on_page: list[str] = []
    common_prefixes: list[str] = []
    position = bisect.bisect_left(keys, prefix)
    if after:
        position = max(position, bisect.bisect_right(keys, after))
    last = after
    while position < len(keys) and keys[position].startswith(prefix):
        key = keys[position]
        if len(keys_on_page) + len(common_prefixes) >= limit:
            return ListingPage(tuple(keys_on_page), tuple(common_prefixes), last or None)
        if delimiter:
            cut = key.find(delimiter, len(prefix))
        else:
            cut = -1
        if cut >= 0:
            group = key[: cut + len(delimiter)]
            common_prefixes.append(group)
            last = group + LAST
            position = bisect.bisect_left(keys, last, position)
        else:
            keys_on_page.append(key)
            last = key
            position += 1
    return ListingPage(tuple(keys_on_page), tuple(common_prefixes), None)
