"""Questions of newcomers, asked of the built site from disk in headless Chromium: is what answers them found first?

    python -m docs_build.search_check DIRECTORY

Exit codes: 0 each question is answered, 1 some are not, 3 there is no Chromium.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from docs_build.browser import Browser, find_chromium
from hyperpod_kit.cli.views import finding_texts

QUESTIONS = {
    "my node does not mount": "how-to/node-does-not-mount.html",
    "add an S3 bucket": "how-to/add-a-bucket.html",
    "resume after preemption": "how-to/after-preemption.html",
    "upgrade": "how-to/upgrade.html",
    "uninstall": "how-to/uninstall.html",
    "preemption": "how-to/after-preemption.html",
    "pyxis": "how-to/optional-steps.html",
    "docker": "how-to/containers.html",
    "accounting": "how-to/accounting.html",
    "sso": "how-to/beyond-the-kit.html",
    "active directory": "how-to/beyond-the-kit.html",
    "ldap": "how-to/beyond-the-kit.html",
}
"""What newcomers typed -> the page that the first result leads to."""
COUNT = 10
API_NAMES = {
    "checkpoint": ("Manager", "State", "Handle", "load_state", "load_weights", "list_checkpoints", "newest_valid"),
    "data": ("SampleIndex", "IndexedDataset", "ElasticLoader"),
}

ITEMS = 'document.querySelectorAll(".md-search-result__item")'
_IS_SEARCHED = r'/\d|No /.test((document.querySelector(".md-search-result__meta") || {}).textContent || "")'


def place_of(url: str, site: Path) -> str:
    """`how-to/upgrade.html#undo`, of an address with a query for the marks of a search."""
    path, _, anchor = url.removeprefix(f"{site.as_uri()}/").partition("#")
    page = path.partition("?")[0]
    return f"{page}#{anchor}" if anchor else page


def search(browser: Browser, site: Path, question: str) -> None:
    """Have the home page show what the search finds."""
    browser.open(f"{(site / 'index.html').as_uri()}?q={quote(question)}")
    browser.wait_for(_IS_SEARCHED)


def first(browser: Browser, site: Path, question: str) -> str:
    """The page that the first result leads to; "" when nothing is found."""
    search(browser, site, question)
    link = browser.evaluate(f'({ITEMS}[0]?.querySelector("a.md-search-result__link") || {{}}).href || ""')
    return place_of(link, site).partition("#")[0]


def questions() -> dict[str, str]:
    """Those of newcomers, the codes that the program uses most often, and names of the Python API."""
    call_sites = Counter(text.code for text in finding_texts.all_texts() if text.code.startswith("HPK-"))
    codes = {code: "reference/findings.html" for code, _ in call_sites.most_common(COUNT)}
    names = {name: f"reference/python/{package}.html" for package, names in API_NAMES.items() for name in names}
    return {**QUESTIONS, **codes, **names}


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    program = find_chromium()
    if program is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 3
    wrong = 0
    with Browser(program) as browser:
        browser.set_screen(1280, 900)
        for question, wanted in questions().items():
            found = first(browser, site, question)
            wrong += found != wanted
            print(f"{question}: {found or 'nothing'}" + ("" if found == wanted else f", expected {wanted}"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
