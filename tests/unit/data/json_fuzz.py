"""Lines of JSON, and of what is nearly JSON, decoded as a loader does and by `json.loads`: both must give the same.

    python -m tests.unit.data.json_fuzz --lines 1000000 --rows build/json-fuzz.jsonl

Portions of 10,000 lines, each of a seed of its own; a row is added for each, and one that has a row is not done again.
"""

from __future__ import annotations

import argparse
import json
import marshal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from hyperpod_kit.data.formats import json_lines

PORTION = 10_000
ODD_NUMBERS = (
    "0",
    "-0",
    "-0.0",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "-18446744073709551616",
    "9223372036854775808.0",
    "9.223372036854775808e18",
    "1e400",
    "-1e400",
    "1e-400",
    "5e-324",
    "2.4703282292062328e-324",
    "1.7976931348623157e308",
    "1.7976931348623159e308",
    "9007199254740993",
    "9007199254740993.0",
    "0.1e1",
    "1E+5",
    "123456789012345678901234567890e-20",
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "1.",
    ".5",
    "+1",
    "1e",
    "-",
    "0x10",
    "1_0",
    "9" * 400,
    "9" * 5000,
    "0." + "3" * 3000,
    "1" + "0" * 30 + "." + "0" * 30,
)
ESCAPES = (
    "\\n",
    '\\"',
    "\\\\",
    "\\/",
    "\\b",
    "\\u0000",
    "\\u00e9",
    "\\uD83D\\uDE00",
    "\\ud800",
    "\\udc00",
    "\\udc00\\ud800",
    "\\ud800\\u0041",
    "\\u12",
    "\\x41",
    "\\",
    "é",
    "\u2028",
    "😀",
    "\x00",
    "\x1f",
    "\x7f",
    "\t",
)
BLANKS = ("", "", "", " ", "\t", "\r", "  ", "\x0b", "\xa0", "\ufeff")
PIECES = (
    b"\x00",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xf4\x90\x80\x80",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"\\",
    b" ",
    b"\r",
    b"-",
    b"e5",
    b"1" * 19,
    b"9" * 20,
    b"null",
    b"tru",
    b"// x",
    b",,",
)
WORDS = ("true", "false", "null", "true", "false", "null", "True", "nul", "undefined", "None")
DEPTHS = (2, 5, 30, 98, 99, 100, 101, 102, 250, 600, 1100, 1500, 5000)
"""Not those at which it depends on who calls whether `json` takes them."""


def a_number(dice: Random) -> str:
    kind = dice.random()
    if kind < 0.15:
        return dice.choice(ODD_NUMBERS)
    if kind < 0.6:
        return str(dice.randrange(-(10 ** dice.randrange(1, 7)), 10 ** dice.randrange(1, 7)))
    if kind < 0.7:
        return str(dice.choice((-1, 1)) * (2 ** dice.choice((31, 32, 53, 62, 63, 64, 65, 127)) + dice.randrange(-2, 3)))
    if kind < 0.8:
        return str(dice.randrange(10 ** dice.randrange(15, 25)))
    if kind < 0.9:
        return repr(dice.uniform(-1, 1) * 10.0 ** dice.randrange(-320, 300))
    digits = "".join(dice.choices("0123456789", k=dice.randrange(1, 30)))
    return f"{dice.randrange(10)}.{digits}{dice.choice(('', '', 'e', 'E-', 'e+'))}{dice.choice(('', '1', '12', '300'))}"


def a_string(dice: Random) -> str:
    parts = []
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        if dice.random() < 0.12:
            parts.append(dice.choice(ESCAPES))
        elif dice.random() < 0.1:
            parts.append("".join(dice.choices("0123456789", k=dice.randrange(1, 30))))
        else:
            parts.append("".join(dice.choices("abc déf", k=dice.randrange(12))))
    if dice.random() < 0.01:
        parts.append("long " * dice.randrange(400, 4000))
    return '"' + "".join(parts) + '"'


def a_value(dice: Random, room: int) -> str:
    """The text of a value with containers of `room` levels at most."""
    kind = dice.random()
    if room <= 0 or kind < 0.5:
        pick = dice.random()
        if pick < 0.45:
            return a_string(dice)
        return a_number(dice) if pick < 0.85 else dice.choice(WORDS[: 6 if dice.random() < 0.95 else None])
    blank = dice.choice(BLANKS) if dice.random() < 0.05 else ""
    comma = f"{blank},{dice.choice(('', ' '))}"
    if kind < 0.72:
        return f"[{comma.join(a_value(dice, room - 1) for _ in range(dice.randrange(5)))}{blank}]"
    if kind < 0.78:
        return f"[{comma.join(a_number(dice) for _ in range(dice.choice((3, 40, 900))))}]"
    names = [a_string(dice) if dice.random() < 0.3 else f'"{dice.choice("abcde")}"' for _ in range(dice.randrange(6))]
    return "{" + comma.join(f"{name}{blank}: {a_value(dice, room - 1)}" for name in names) + "}"


def deep(dice: Random) -> str:
    """Containers in each other."""
    depth = dice.choice(DEPTHS)
    core = dice.choice(("", "1", "18446744073709551616", '"x"'))
    if dice.random() < 0.7:
        return "[" * depth + core + "]" * (depth if dice.random() < 0.9 else depth - 1)
    return '{"a":' * depth + (core or "null") + "}" * depth


def changed(dice: Random, line: bytes, other: bytes) -> bytes:
    """A line with a fault."""
    at = dice.randrange(len(line) + 1)
    kind = dice.randrange(8)
    if kind == 0:
        return line[:at]
    if kind == 1:
        return line[:at] + line[at + dice.randrange(1, 4) :]
    if kind == 2:
        return line[:at] + bytes([dice.randrange(256)]) + line[at + 1 :]
    if kind == 3:
        return line[:at] + other[dice.randrange(len(other) + 1) :]
    if kind == 4:
        end = dice.randrange(len(line) + 1)
        return line[:at] + line[min(at, end) : max(at, end)] * 2 + line[at:]
    if kind == 5:
        return line.decode("utf-8", "replace").encode(dice.choice(("utf-8-sig", "utf-16", "utf-16-be", "utf-32-le")))
    return line[:at] + dice.choice(PIECES) + line[at:]


def lines_of(seed: int, count: int) -> Iterator[bytes]:
    """Lines of a seed, a third of them faulty."""
    dice = Random(f"json-{seed}")
    before = b"null"
    for _ in range(count):
        text = deep(dice) if dice.random() < 0.01 else a_value(dice, 4)
        if dice.random() < 0.05:
            text = dice.choice(BLANKS) + text + dice.choice(BLANKS)
        line = text.encode("utf-8", "surrogatepass")
        faulty = line
        while dice.random() < 0.33 and len(faulty) < 100_000:
            faulty = changed(dice, faulty, before)
        before = line
        yield faulty


def outcome(decode: Callable[[bytes], Any], line: bytes) -> tuple[str, bytes]:
    """What a decoder makes of a line, so that values of other types, other orders of keys, -0.0 and NaN differ."""
    try:
        # Version 0 knows no references, which would tell whether two equal texts are one object.
        return "value", marshal.dumps(decode(line), 0)
    except (ValueError, RecursionError) as err:
        return type(err).__name__, str(err).encode("utf-8", "surrogatepass")


def reference(line: bytes) -> Any:
    """As deep in calls as the decoders call it."""
    return json.loads(line)


def differences(seed: int, count: int, decode: Callable[[bytes], Any]) -> tuple[Counter[str], list[bytes]]:
    """(how many lines came to which end, those that a decoder takes in another way than `json.loads`)."""
    ends: Counter[str] = Counter()
    wrong = []
    for line in lines_of(seed, count):
        expected = outcome(reference, line)
        ends[expected[0]] += 1
        if outcome(decode, line) != expected:
            wrong.append(line)
    return ends, wrong


def main() -> int:
    """All portions that have no row yet."""
    options = argparse.ArgumentParser()
    options.add_argument("--lines", type=int, default=1_000_000)
    options.add_argument("--rows", type=Path, required=True)
    given = options.parse_args()
    if json_lines.decode is json_lines.decode_by_json:
        print("orjson is not installed")
        return 1
    given.rows.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(row) for row in given.rows.read_text().splitlines()] if given.rows.exists() else []
    done = {row["seed"]: row for row in rows}
    for seed in range(-(-given.lines // PORTION)):
        if seed in done:
            continue
        begun = time.process_time()
        ends, wrong = differences(seed, PORTION, json_lines.decode)
        row = {
            "seed": seed,
            "lines": PORTION,
            "ends": dict(ends),
            "wrong": [line.decode("latin-1") for line in wrong[:20]],
            "seconds": round(time.process_time() - begun, 2),
        }
        done[seed] = row
        with given.rows.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    ends = Counter()
    for row in done.values():
        ends.update(row["ends"])
    wrong_rows = sum(bool(row["wrong"]) for row in done.values())
    lines = sum(row["lines"] for row in done.values())
    print(f"{lines:,} lines: {dict(ends)}; {wrong_rows} portions with a difference")
    return int(wrong_rows > 0)


if __name__ == "__main__":
    sys.exit(main())
