"""Decisions have a number each, a status, and a row in the index that says the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, NamedTuple

import pytest

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"
SECTION = re.compile(r"^## ADR-(\d{3}): (.+)\n\nStatus: (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| ADR-(\d{3}) \| (.+) \| (.+) \| \[.+\]\((.+)\) \|$", re.MULTILINE)
STATUS = re.compile(r"accepted|superseded by ADR-(\d{3})")


class Decision(NamedTuple):
    number: int
    title: str
    status: str
    page: str


def sections() -> List[Decision]:
    pages = sorted(page for page in DECISIONS.glob("*.md") if page.name != "index.md")
    return sorted(
        Decision(int(number), title, status, page.name)
        for page in pages
        for number, title, status in SECTION.findall(page.read_text(encoding="utf-8"))
    )


def rows() -> List[Decision]:
    index = (DECISIONS / "index.md").read_text(encoding="utf-8")
    return [Decision(int(number), title, status, page) for number, title, status, page in ROW.findall(index)]


def test_the_index_has_a_row_for_each_decision() -> None:
    assert rows() == sections()


def test_numbers_have_no_gaps_and_none_is_given_twice() -> None:
    assert [decision.number for decision in sections()] == list(range(1, len(sections()) + 1))


def test_each_heading_is_a_decision_with_a_status() -> None:
    pages = [page.read_text(encoding="utf-8") for page in DECISIONS.glob("*.md")]
    headings = sum(len(re.findall(r"^##", text, re.MULTILINE)) for text in pages)
    assert headings == len(sections()) > 100


@pytest.mark.parametrize("decision", sections(), ids=lambda decision: f"ADR-{decision.number:03d}")
def test_what_supersedes_a_decision_is_a_later_one(decision: Decision) -> None:
    status = STATUS.fullmatch(decision.status)
    assert status is not None, decision.status
    if status.group(1) is not None:
        assert decision.number < int(status.group(1)) <= len(sections())
