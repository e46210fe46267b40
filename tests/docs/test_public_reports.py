"""Each public report has a test that exists, or says that it was only read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/design/public-reports.md"
DIRECTORIES = {"D/": "tests/faults/", "R/": "tests/rehearsal/", "U/": "tests/unit/"}


def rows() -> List[List[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[0]))
def test_a_report_has_a_test_that_exists(row: List[str]) -> None:
    _, _, answer, tests = row
    places = re.findall(r"`([^`]+)`", tests)
    assert places or "*read*" in answer
    for place in places:
        shown, _, name = place.partition("::")
        path = ROOT / (DIRECTORIES.get(shown[:2], shown[:2]) + shown[2:])
        assert path.is_file(), place
        assert not name or f"def {name}(" in path.read_text(), place


def test_thirty_reports_and_no_link_twice() -> None:
    names = [name for row in rows() for name in re.findall(r"#\d+", row[0])]
    assert len(rows()) >= 30 and len(names) >= len(rows())
