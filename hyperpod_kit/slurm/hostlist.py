"""Slurm host lists: `ip-10-1-41-[18-20],x[01-03]` to names, and back.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Tuple

from hyperpod_kit.untrusted.text import shortened

MOST = 65536
"""Names that a host list may have: Slurm's own limit for the nodes of a cluster."""

LONGEST = 64 * MOST
LONGEST_NAME = 1024
"""Characters."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z")


def expand(text: str) -> List[str]:
    """Names of a host list, in its order; the leftmost bracket varies slowest.

    Raises ValueError when it is not one, or one of more than MOST names.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a host list of {len(text)} characters, expected at most {LONGEST}")
    names: List[str] = []
    for item in _split(text):
        names.extend(_expand_item(item, MOST - len(names)))
    return names


def compress(names: Iterable[str]) -> str:
    """Shortest host list of these names: ranges over the last number of a name, sorted, each name once."""
    numbers: Dict[str, List[str]] = {}
    plain: List[str] = []
    for name in sorted(set(names)):
        head = name.rstrip("0123456789")
        if head != name:
            numbers.setdefault(head, []).append(name[len(head) :])
        else:
            plain.append(name)
    return ",".join(plain + [_compress_numbers(prefix, digits) for prefix, digits in sorted(numbers.items())])


def _split(text: str) -> List[str]:
    """Split a host list at the commas outside of brackets. Raises ValueError where brackets do not match."""
    items, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:index])
            start = index + 1
        if depth not in (0, 1):
            raise ValueError(f"brackets do not match in host list {shortened(text, 80)!r}")
    if depth:
        raise ValueError(f"brackets do not match in host list {shortened(text, 80)!r}")
    items.append(text[start:])
    return [item.strip() for item in items if item.strip()]


def _expand_item(item: str, max_names: int) -> List[str]:
    names, rest = [""], item
    while rest:
        head, bracket, rest = rest.partition("[")
        inside, _, rest = rest.partition("]")
        if bracket:
            numbers = _expand_ranges(inside, item, max_names)
        else:
            numbers = [""]
        if len(names[-1]) + len(head) > LONGEST_NAME:
            raise ValueError(f"a name of more than {LONGEST_NAME} characters in host list {shortened(item, 80)!r}")
        if len(names) * len(numbers) > max_names:
            raise _too_many_names_error(item)
        names = [name + head + number for name in names for number in numbers]
    if len(names) > max_names:
        raise _too_many_names_error(item)
    return names


def _too_many_names_error(item: str) -> ValueError:
    return ValueError(f"host list {shortened(item, 80)!r} has more than {MOST} names")


def _expand_ranges(ranges: str, item: str, max_names: int) -> List[str]:
    numbers: List[str] = []
    for part in ranges.split(","):
        match = _RANGE.match(part.strip())
        if not match:
            raise ValueError(
                f"{shortened(part, 80)!r} in host list {shortened(item, 80)!r} is neither a number nor a range"
            )
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise ValueError(f"range {part!r} in host list {shortened(item, 80)!r} runs backwards")
        if len(numbers) + int(last) - int(first) >= max_names:
            raise _too_many_names_error(item)
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def _compress_numbers(prefix: str, digits: List[str]) -> str:
    """`n[1-3,007]`: numbers written with leading zeros make ranges only with numbers of their own width."""
    padded = {len(number) for number in digits if len(number) > 1 and number[0] == "0"}
    groups: Dict[int, List[int]] = {}
    for number in digits:
        groups.setdefault(len(number) if len(number) in padded else 0, []).append(int(number))
    parts = []
    for width, values in sorted(groups.items()):
        for first, last in _consecutive_runs(sorted(values)):
            text = str(first).zfill(width)
            parts.append(text if first == last else f"{text}-{str(last).zfill(width)}")
    if len(digits) == 1:
        return prefix + parts[0]
    return f"{prefix}[{','.join(parts)}]"


def _consecutive_runs(values: List[int]) -> List[Tuple[int, int]]:
    runs: List[Tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs
