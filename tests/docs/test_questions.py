"""The questions that `make docs-search` puts to the site, without a browser: each place is there and has its phrase."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List

import pytest

from docs_build.question_table import QUESTIONS, REVIEW, THREADS, Question

DOCS = Path(__file__).resolve().parents[2] / "docs"
MADE = ("reference/findings.html", "reference/python/checkpoint.html")
"""Pages that are made while the site is built."""


def plain(text: str) -> str:
    """What a reader sees of a paragraph."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"[`*]", "", text)).split())


def sections(page: str) -> Dict[str, str]:
    """Anchor -> text up to the next heading; the page itself is ""."""
    found: Dict[str, List[str]] = {}
    anchor, fenced = "", False
    for line in page.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            words = re.sub(r"[^\w\- ]", "", plain(line.lstrip("#")).lower())
            anchor = words.replace(" ", "-") if found else ""
        found.setdefault(anchor, []).append(line)
    return {name: plain("\n".join(lines)) for name, lines in found.items()}


def test_there_are_twenty_of_each_and_none_twice() -> None:
    assert len(REVIEW) == len(THREADS) == 20
    assert len({question.asked for question in QUESTIONS}) == len({question.source for question in QUESTIONS}) == 40
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", question.source) for question in THREADS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.source)
def test_its_place_is_there_and_says_it(question: Question) -> None:
    page, _, anchor = question.place.partition("#")
    if page in MADE:
        return
    found = sections((DOCS / page).with_suffix(".md").read_text(encoding="utf-8"))
    assert anchor in found, f"{page} has no #{anchor}: {', '.join(found)}"
    assert question.phrase in found[anchor]
