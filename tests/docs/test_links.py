"""Links of every document lead somewhere, for whoever reads it in the repository; the site has its own check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs_build import pages

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MADE = {ROOT / "docs" / place for place in [*pages.places(), *pages.ADOPTED.values()]}
"""Pages that only the site has."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            path = (document.parent / target).resolve()
            assert path.exists() or path in MADE, f"{document.name} links to {target}"


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    missing = [str(page.relative_to(ROOT / "docs")) for page in DOCUMENTS if page.is_relative_to(ROOT / "docs")]
    missing = [page for page in missing if not re.search(rf"[ -]{re.escape(page)}\s*$", menu, re.MULTILINE)]
    assert not missing, f"add to `nav` of mkdocs.yml: {', '.join(missing)}"


def test_every_file_of_the_walks_is_there() -> None:
    """CONTRIBUTING's "Where do I add": paths below the package or the repository; NAME and TOPIC stand for any."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where do I add")[2]
    found = re.findall(r"`([a-z_]+/[\w./-]*)`", text)
    assert len(found) > 30
    for place in found:
        wanted = re.sub(r"(NAME|TOPIC)\.py$", "", place)
        there = (ROOT / "hyperpod_kit" / wanted).exists() or (ROOT / wanted).exists()
        assert there, f"CONTRIBUTING.md names {place}"
    for walk in re.split(r"(?m)^### ", text)[2:]:
        assert 2 <= len(re.findall(r"(?m)^\| `", walk)) <= 3, f"at most three files: {walk.splitlines()[0]}"
