"""McCabe complexity, with a limit that only falls: `lint.mccabe.max-complexity` of pyproject.toml holds for every
function but those in complexity.txt, of which each has its own limit, and that one falls with the function.

    python .ci/complexity.py [--lower]     --lower writes smaller limits into the table; it raises and adds none
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / ".ci" / "complexity.txt"
_MESSAGE = re.compile(r"`(\w+)` is too complex \((\d+) > (\d+)\)")


class Function(NamedTuple):
    path: str
    name: str


def measure() -> Dict[Function, int]:
    """All functions above the limit of pyproject.toml; of two of one name in a file, the more complex one."""
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--select", "C901", "--ignore-noqa", "--output-format", "json", "."]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300)
    complexity: Dict[Function, int] = {}
    for diagnostic in json.loads(finished.stdout):
        match = _MESSAGE.search(diagnostic["message"])
        if match is None:
            raise SystemExit(f"complexity: ruff's message has another form: {diagnostic['message']}")
        function = Function(str(Path(diagnostic["filename"]).relative_to(ROOT)), match.group(1))
        complexity[function] = max(int(match.group(2)), complexity.get(function, 0))
    return complexity


def read_table(text: str) -> Dict[Function, int]:
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {Function(path, name): int(limit) for limit, path, name in rows}


def write_table(limits: Dict[Function, int]) -> str:
    rows = sorted(limits.items(), key=lambda row: (-row[1], row[0]))
    lines = ["# Functions above the limit of pyproject.toml. Numbers only fall, and no row is added."]
    lines += [f"{limit} {function.path} {function.name}" for function, limit in rows]
    return "\n".join(lines) + "\n"


def lowered(limits: Dict[Function, int], complexity: Dict[Function, int]) -> Dict[Function, int]:
    """The table without functions that keep the general limit, and with smaller numbers where there are some."""
    return {function: min(limit, complexity[function]) for function, limit in limits.items() if function in complexity}


def violations(limits: Dict[Function, int], complexity: Dict[Function, int]) -> List[str]:
    lines = []
    for function, measured in sorted(complexity.items()):
        if function not in limits:
            lines.append(f"{function.path}: {function.name} has a complexity of {measured}: divide it")
        elif measured > limits[function]:
            rise = f"rose from {limits[function]} to {measured}"
            lines.append(f"{function.path}: the complexity of {function.name} {rise}: divide it")
    return lines


def main(arguments: List[str]) -> int:
    limits = read_table(TABLE.read_text(encoding="utf-8"))
    complexity = measure()
    problems = violations(limits, complexity)
    smaller = lowered(limits, complexity)
    if "--lower" in arguments:
        TABLE.write_text(write_table(smaller), encoding="utf-8")
    elif smaller != limits:
        problems.append("functions of complexity.txt are simpler than their limits: python .ci/complexity.py --lower")
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"complexity: {len(smaller)} functions above the limit, none above its own")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
