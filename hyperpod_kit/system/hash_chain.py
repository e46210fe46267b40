"""Lines that hold each other: each has the digest of the one before it, so that none is changed or taken out unseen.

Who may write the whole file may write a whole new chain: compare the last digest with one that is kept elsewhere.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from hyperpod_kit.untrusted import parse

START = "0" * 64
KEY = "chain"


def chain_digest(previous: str, body: Mapping[str, Any]) -> str:
    """Return the digest of a body that follows the digest `previous`."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{previous}{text}".encode()).hexdigest()


def encode_line(previous: str, body: Mapping[str, Any]) -> Tuple[str, str]:
    """The line to write, without its end, and its digest."""
    digest = chain_digest(previous, body)
    return json.dumps({**body, KEY: digest}, separators=(",", ":"), ensure_ascii=True), digest


def iter_checked_lines(lines: Iterable[str], previous: str = START) -> Iterator[Tuple[int, Dict[str, Any], bool]]:
    """(number of the line from 1, its body, whether it follows from the one before it). A line that is no object is
    `({}, False)`; what follows is measured against the digest that each line has itself."""
    for number, text in enumerate(lines, 1):
        try:
            body = parse.parse_json_object(text)
            digest = body.pop(KEY)
            follows = digest == chain_digest(previous, body)
        except (ValueError, KeyError, RecursionError):
            yield number, {}, False
            continue
        yield number, body, follows
        previous = str(digest)
