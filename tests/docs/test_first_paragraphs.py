"""The first paragraph of each page: prose, short, with a full sentence that says for whom the page is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(
    page
    for directory in (DOCS, DOCS / "how-to", DOCS / "explanation", DOCS / "reference")
    for page in directory.glob("*.md")
)
MOST_WORDS = 60

NO_PROSE = re.compile(r"#|\||```|~~~|<|>|!\[|[-*+] |\d+[.)] |    ")
"""How a heading, a table, a block of code, a comment, a quotation, a picture or an item of a list begins."""

SENTENCE = re.compile(r"(?:[A-Z`\[]|hyperpod-kit ).*?[.:](?:\s|$)", re.DOTALL)
AUDIENCE = re.compile(r"\b(?:This page|It) is for [a-z]")


def first_paragraph(text: str) -> str:
    """What follows the title, up to the next empty line."""
    title, _, rest = text.strip().partition("\n")
    assert title.startswith("# "), "a page begins with its title"
    return re.split(r"\n\s*\n", rest.strip("\n"), maxsplit=1)[0]


def fault(paragraph: str) -> str:
    """What is wrong with a first paragraph, or nothing."""
    if NO_PROSE.match(paragraph):
        return "no prose"
    if not SENTENCE.match(paragraph):
        return "no full sentence"
    if len(paragraph.split()) > MOST_WORDS:
        return f"{len(paragraph.split())} words, more than {MOST_WORDS}"
    if not AUDIENCE.search(paragraph):
        return "it does not say for whom the page is (`This page is for …`)"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_first_paragraph_is_prose_and_names_its_readers(page: Path) -> None:
    assert fault(first_paragraph(page.read_text())) == ""


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("| a | b |\n| --- | --- |", "no prose"),
        ("```bash\nhyperpod-kit init\n```", "no prose"),
        ("- an item", "no prose"),
        ("1. an item", "no prose"),
        ("## A heading", "no prose"),
        ("<!-- runs: offline -->", "no prose"),
        ("this page is for users", "no full sentence"),
        ("It lists all commands.", "it does not say for whom the page is (`This page is for …`)"),
        ("This page is for users. " + "word " * 60, "65 words, more than 60"),
        ("This page is for users. It lists all commands:", ""),
    ],
)
def test_a_fault_is_noticed(paragraph: str, expected: str) -> None:
    assert fault(paragraph) == expected
