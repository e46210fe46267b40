"""Inputs made of real ones: fields of JSON replaced, moved, deepened and torn, bytes flipped, repeated and spliced."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any, Callable, List, Sequence

ODD_NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**18,
    10**30,
    10**308,
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e308,
    1e15,
    float("inf"),
    float("-inf"),
    float("nan"),
)
ODD_WORDS = (
    "",
    " ",
    "\0",
    "\n",
    "\r\n",
    "\x1b]0;x\x07",
    "\x9b2J",
    "\u202e",
    "\u2028",
    "\ud800",
    "\U0010ffff",
    "..",
    ".",
    "/",
    "../../../etc/shadow",
    "/dev/zero",
    "-rf",
    "--",
    "~",
    "%s%n",
    "{}",
    "{0.__class__}",
    "$(id)",
    "`id`",
    "null",
    "NaN",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "0x10",
    "１２",
    "٣",
    "²",
    "+1",
    "1_000",
    "01",
    "-0",
    "True",
    "x" * 300,
    "a" * 70000,
    "s3://b/k",
    "file.txt\0.json",
    "[" * 300,
    "blake2b:" + "0" * 32,
    "xxh3:",
    "2026-11-20T23:58:03Z",
    "9999-99-99T99:99:99Z",
)
ODD_VALUES: Sequence[Any] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [{}],
    [None],
    {"": None},
    {"a": {}},
    [1, "a", None],
    [[], []],
    list(range(50)),
    *ODD_NUMBERS,
    *ODD_WORDS,
)
RAW = (
    "1e999",
    "-1e999",
    "NaN",
    "-Infinity",
    "9" * 5000,
    "-" + "9" * 4299,
    "[" * 100_000,
    '{"a":' * 20_000,
    "[" * 900 + "]" * 900,
    '{"a":1,"a":2}',
    '"\\ud800"',
    '"\\u0000"',
    "01",
    "1.",
    ".5",
    "'x'",
    "// x",
    "undefined",
    "[1,]",
    "\ufeff{}",
    '"' + "x" * 500_000 + '"',
    "[" + "0," * 50_000 + "0]",
    "{" + ",".join(f'"{n}":0' for n in range(5000)) + "}",
    "1e400",
    "0." + "3" * 3000 + "e-9999",
)
ODD_BYTES = (
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b"\x1b[",
    b"\x9b",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae",
    b"\xef\xbb\xbf",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"=",
    b" ",
    b"\t",
    b"|",
    b"-",
    b"@",
    b'"',
    b"\\",
    b"9" * 25,
    b"9" * 5000,
    b"[0-99999999]",
    b"\x80" * 8,
    b"\xff" * 8,
    b"\0" * 8,
    b"\x7f" + b"\xff" * 7,
)


def a_json(rng: Random, seeds: Sequence[Any]) -> bytes:
    """JSON of one of the values in `seeds`, changed in a few places."""
    value = copy.deepcopy(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        value = _changed(rng, value)
    ascii_only = rng.random() < 0.7
    text = json.dumps(value, ensure_ascii=ascii_only, separators=rng.choice(((",", ":"), (", ", ": "))))
    if rng.random() < 0.04:
        text = _with_raw(rng, text)
    return text.encode("utf-8", "surrogatepass" if rng.random() < 0.5 else "replace")


def _with_raw(rng: Random, text: str) -> str:
    """One token becomes something that no encoder makes."""
    colons = [at for at, char in enumerate(text[:20_000]) if char in ":[,"]
    if not colons:
        return rng.choice(RAW)
    at = rng.choice(colons) + 1
    end = min((found for found in (text.find(sign, at) for sign in ",}]") if found >= 0), default=len(text))
    return text[:at] + rng.choice(RAW) + text[end:]


def value_changed(rng: Random, value: Any) -> Any:
    """A copy of a JSON value with one change."""
    return _changed(rng, copy.deepcopy(value))


def _changed(rng: Random, value: Any) -> Any:
    """The value with one change somewhere in it, in place where it can be."""
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.8:
        try:
            return json.dumps(_changed(rng, json.loads(value)))
        except (ValueError, RecursionError):
            return rng.choice(ODD_VALUES)
    if isinstance(value, dict) and value and rng.random() < 0.93:
        key = rng.choice(list(value))
        draw = rng.random()
        if draw < 0.06:
            del value[key]
        elif draw < 0.12:
            value[str(rng.choice(ODD_WORDS))] = value[key]
        elif draw < 0.16:
            value[key] = value[rng.choice(list(value))]
        else:
            value[key] = _changed(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        draw = rng.random()
        if draw < 0.1:
            del value[at]
        elif draw < 0.2:
            value[at:at] = value[:1] * rng.choice((1, 2, 60))
        else:
            value[at] = _changed(rng, value[at])
        return value
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2, -value, value, 4096, 1 << rng.randrange(70), -(1 << rng.randrange(70))))
    if isinstance(value, str) and rng.random() < 0.4:
        return a_text(rng, value)
    if rng.random() < 0.1:
        return [value] * rng.choice((1, 2, 20))
    return copy.deepcopy(rng.choice(ODD_VALUES))


def a_text(rng: Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    end = min(len(text), at + rng.choice((0, 1, 2, 10, len(text))))
    odd = rng.choice((*ODD_WORDS, text[:20], text, "9" * rng.randrange(1, 40)))
    return text[:at] + odd + text[end:]


def some_bytes(rng: Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """The bytes with a few changes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8, 30))):
        at = rng.randrange(len(out) + 1)
        draw = rng.randrange(9)
        if draw == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
        elif draw == 1:
            del out[at : at + rng.choice((1, 1, 4, 16, 1000))]
        elif draw == 2:
            out[at:at] = rng.choice(ODD_BYTES)
        elif draw == 3 and words:
            out[at:at] = rng.choice(words)
        elif draw == 4:
            part = bytes(out[at : at + rng.choice((1, 4, 30, 300))])
            out[at:at] = part * rng.choice((1, 2, 20, 400 if len(part) < 40 else 2))
        elif draw == 5:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            out[at:] = other[begin:]
        elif draw == 6:
            del out[at:]
        elif draw == 7 and out:
            size = rng.choice((1, 2, 4, 8))
            out[at : at + size] = (
                rng.choice((0, 1, 255, 2**31, 2**63, 2**64 - 1, 2**32 - 1)) % (1 << 8 * size)
            ).to_bytes(size, rng.choice(("little", "big")))
        else:
            out[at : at + 1] = bytes([rng.randrange(256)])
        if len(out) > 1 << 20:
            del out[1 << 20 :]
    return bytes(out)


def some_lines(rng: Random, data: bytes, line: Callable[[Random], bytes]) -> bytes:
    """Lines shuffled, repeated, left out, and some of them made by `line`."""
    lines: List[bytes] = data.split(b"\n")
    for _ in range(rng.choice((1, 2, 4))):
        at = rng.randrange(len(lines) + 1)
        draw = rng.random()
        if draw < 0.6:
            lines[at : at + 1] = [line(rng)]
        elif draw < 0.7 and lines:
            lines[at:at] = lines[:5] * rng.choice((1, 3, 20))
        elif draw < 0.8:
            del lines[at : at + 1]
        else:
            rng.shuffle(lines)
    return b"\n".join(lines)
