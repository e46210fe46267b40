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
    "bash": (
        *("runs: offline", "runs: empty directory", "runs: training", "runs: cloud", "runs: account"),
        *("runs: empty account", "runs: rehearsal", "runs: logs", "runs: sessions", "runs: node"),
        *("runs: job", "runs: full", "job script", "parsed"),
    ),
    "json": ("configuration",),
    "yaml": ("configuration",),
}
"""Language -> its markers. A bash block needs one. Without one json and yaml are read, python is compiled."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<info>.*)$")
_MARKER = re.compile(r"^ *<!-- *(.*?) *-->$")


@dataclass(frozen=True)
class Block:
    """`line`: of the opening fence, 1-based. `marker`: "" without one. `text`: what is inside, with its newlines.

    `reason`: why a block is parsed and not run, in one sentence.
    """

    document: Path
    line: int
    language: str
    marker: str
    text: str
    reason: str = ""

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
        words = marker[1] if marker else ""
        reason = words.removeprefix("parsed: ") if words.startswith("parsed: ") else ""
        yield Block(document, start, opened["info"].strip(), "parsed" if reason else words, text, reason)


def pages(marker: str) -> dict[str, list[Block]]:
    """Blocks with that marker by page, in the order in which a reader types them."""
    found = {
        document.relative_to(ROOT).as_posix(): [block for block in blocks_of(document) if block.marker == marker]
        for document in documents()
    }
    return {page: blocks for page, blocks in found.items() if blocks}


def before(block: Block, language: str, marker: str) -> Iterator[Block]:
    """Blocks of a kind that stand above a block on its page."""
    for other in blocks_of(block.document):
        if (other.language, other.marker) == (language, marker) and other.line < block.line:
            yield other


def inline_commands(document: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each `hyperpod-kit …` in a sentence or a table."""
    inside = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            for text in re.findall(r"`(hyperpod-kit [^`]+)`", line):
                yield number, text
