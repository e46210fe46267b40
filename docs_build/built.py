"""The built site as a browser sees it: every link and every picture leads to a file, every anchor to an element.

    python -m docs_build.built DIRECTORY

Exit codes: 0 all links lead somewhere, 1 some do not. mkdocs checks the Markdown; this sees what templates, raw HTML
and generated pages came to. Links to other servers are not followed.

It also compares each page with what CommonMark, GitHub's Markdown, makes of it: a list or table that only one of the
two sees is a page that somebody reads wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SHAPES = ("table", "tr", "ol", "ul", "li", "pre", "h1", "h2", "h3", "h4")


class _Page(HTMLParser):
    """What is in a page. `shapes`: tag -> how often, in the article; of a fragment, everywhere."""

    def __init__(self, fragment: bool = False) -> None:
        super().__init__()
        self.shapes: Counter[str] = Counter()
        self._in_article = fragment
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._in_article |= tag == "article"
        if self._in_article and tag in SHAPES:
            self.shapes[tag] += 1
        self.anchors |= {value for key in ("id", "name") if (value := values.get(key))}
        if (link := values.get("href")) is not None and tag == "a":
            self.links.append(link)
        elif (link := values.get("src") or (values.get("href") if tag == "link" else None)) is not None:
            self.loads.append(link)

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"


def read(site: Path) -> dict[Path, _Page]:
    """Every page below `site`."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path.resolve()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    return pages


def broken(site: Path) -> list[str]:
    """One sentence for each link that leads nowhere, and for each thing that a page loads from another server."""
    pages = read(site)
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} loads {link} from another server" for link in page.loads if urlsplit(link).netloc]
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or name.name == "404.html":  # 404.html is served for any place
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{name} links to {link}: there is no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {link}: there is no such place on that page")
    return found


def read_differently(site: Path) -> list[str]:
    """One sentence for each page of docs/ whose structure depends on who renders it."""
    from markdown_it import MarkdownIt

    github = MarkdownIt("commonmark").enable("table")
    pages = read(site)
    found = []
    for source in sorted((ROOT / "docs").rglob("*.md")):
        theirs = _Page(fragment=True)
        theirs.feed(github.render(source.read_text(encoding="utf-8")))
        ours = pages[(site / source.relative_to(ROOT / "docs").with_suffix(".html")).resolve()]
        for shape in SHAPES:
            if theirs.shapes[shape] != ours.shapes[shape]:
                found.append(
                    f"{source.relative_to(ROOT)}: {theirs.shapes[shape]} <{shape}> on GitHub, "
                    f"{ours.shapes[shape]} on the site: is a blank line missing, or an indentation of 4?"
                )
    return found


def main(site: Path) -> int:
    """Check a built site."""
    pages = read(site)
    if not pages:
        print(f"error: no page below {site}", file=sys.stderr)
        return 1
    wrong = [*broken(site), *read_differently(site)]
    print(
        "\n".join(wrong)
        or f"{site}: {len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, all lead somewhere"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
