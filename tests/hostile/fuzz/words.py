"""Seeds as their readers get them, and how inputs are drawn from them."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Callable, List, Sequence

from hyperpod_kit.run import Completed
from tests.hostile.fuzz.mutate import a_json, some_bytes, some_lines


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class Said:
    """A runner that answers the same to everything."""

    target = "n"

    def __init__(self, said: str) -> None:
        self.said = said

    def run(self, argv: Sequence[str], *, timeout: float, check: bool = True, input: Any = None, **_: Any) -> Completed:
        return Completed(tuple(argv), 0, self.said, self.said)


def of_json(*values: Any) -> Callable[[Random], bytes]:
    return lambda rng: a_json(rng, values)


def of_rows(*values: Any) -> Callable[[Random], bytes]:
    seed = b"\n".join(map(js, values)) + b"\n"
    return lambda rng: some_lines(rng, seed, lambda inner: a_json(inner, values))


def of_bytes(seeds: List[bytes], words: Sequence[bytes] = ()) -> Callable[[Random], bytes]:
    return lambda rng: some_bytes(rng, rng.choice(seeds), seeds, words)
