"""Fenced blocks of a document, and what is to be done with each: see docs_build/README.md for the language.

A marker is an HTML comment on the line before a block, which no reader sees: `<!-- runs: offline -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("bash", "text", "json", "yaml", "python", "ini")
MARKERS = {
    "bash": ("runs: offline", "runs: cloud", "job script"),
    "json": ("configuration",),
    "yaml": ("configuration",),
}
"""Language -> its markers. Without one: bash is parsed command by command, json and yaml are read, python compiled."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<info>.*)$")
_MARKER = re.compile(r"^ *<!-- *(.*?) *-->$")


@dataclass(frozen=True)
class Block:
    """`line`: of the opening fence, 1-based. `marker`: "" without one. `text`: what is inside, with its newlines."""

    document: Path
    line: int
    language: str
    marker: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """Every Markdown file that people read."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def blocks_of(document: Path) -> Iterator[Block]:
    """The fenced blocks. Raises ValueError for one that is not closed."""
    lines = document.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        number += 1
        if not opened:
            continue
        start, inside = number, []
        while number < len(lines) and lines[number].strip() != opened["fence"]:
            inside.append(lines[number].removeprefix(opened["indent"]))
            number += 1
        if number == len(lines):
            raise ValueError(f"{document}:{start}: this block is never closed")
        number += 1
        marker = _MARKER.match(lines[start - 2]) if start > 1 else None
        text = "".join(f"{line}\n" for line in inside)
        yield Block(document, start, opened["info"].strip(), marker[1] if marker else "", text)


def inline_commands(document: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each `hyperpod-kit …` in a sentence or a table."""
    inside = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            for text in re.findall(r"`(hyperpod-kit [^`]+)`", line):
                yield number, text
