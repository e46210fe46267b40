"""Prose is in lines of 120 columns: a changed word is no changed paragraph. Tables and code are as they are."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).parents[2]


def pages() -> List[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, capture_output=True, timeout=60)
    return listed.stdout.split() if listed.returncode == 0 else [str(path) for path in ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", pages())
def test_no_line_of_prose_is_longer_than_120_characters(page: str) -> None:
    fenced, long = False, []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith("|") and len(line) > 120:
            long.append(f"{page}:{number}")
    assert long == []
