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
