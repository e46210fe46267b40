"""Pictures of what people see first, at four widths, light and dark, and a look for what is cut, wide or overlapping.

    python -m docs_build.screenshots SITE DIRECTORY [WORD]

The home page and an API page of the built site, `fleet --html` and `job status --html` of made-up clusters, and
README.md. Into DIRECTORY go PAGE-WIDTH-SCHEME.png. Headless Chromium says of each page at each width:

- whether the page itself scrolls sideways, or a table in it;
- which text is cut by an element that hides what does not fit, or by the edge of a picture;
- which texts of two elements lie over one another.

WORD: only pages whose name has it. Exit codes: 0 nothing was found, 1 something was, 3 there is no Chromium.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from docs_build import sample_pages
from docs_build.browser import Browser, find_chromium

WIDTHS = (400, 800, 1280, 1920)
SCHEMES = ("light", "dark")
HIGHEST = 2400
"""Pixels of a picture; a page may be longer."""


class Page(NamedTuple):
    """`start`: the anchor at which its pictures begin, "" for the top; `tables_scroll`: whether a table may, because
    its page is not ours to lay out."""

    name: str
    path: Path
    start: str = ""
    tables_scroll: bool = False


_FAULTS = r"""(() => {
  const found = [];
  const name = element => {
    const text = (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 60);
    return `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") || ""}"> ${text}`;
  };
  const page = document.scrollingElement;
  if (page.scrollWidth > innerWidth) found.push(`the page is ${page.scrollWidth} wide`);
  for (const table of document.querySelectorAll("table")) {
    const box = table.closest(".md-typeset__scrollwrap, .wide") || table;
    if (box.scrollWidth > box.clientWidth + 1 && box.checkVisibility())
      found.push(`a table is ${box.scrollWidth} in ${box.clientWidth} wide: ${name(table)}`);
  }
  const seen = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  // What of a box can be seen: ancestors that hide or scroll what does not fit cut it.
  const clip = (box, element) => {
    let {left, top, right, bottom} = box;
    for (let up = element; up && up !== document.documentElement; up = up.parentElement) {
      const style = getComputedStyle(up);
      if (up !== document.body && (style.overflowX !== "visible" || up.tagName === "svg")) {
        const edge = up.getBoundingClientRect();
        left = Math.max(left, edge.left); right = Math.min(right, edge.right);
        top = Math.max(top, edge.top); bottom = Math.min(bottom, edge.bottom);
      }
      if (style.position === "fixed") break;
    }
    return {left: Math.max(left, 0), top, right: Math.min(right, innerWidth), bottom};
  };
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    const silent = element.closest("script, style, title, [hidden], .md-clipboard");
    if (!node.data.trim() || silent || !seen(element)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const picture = element.closest("svg");
    for (const box of range.getClientRects()) {
      if (picture) {
        const edge = picture.getBoundingClientRect();
        const beside = box.left < edge.left - 1 || box.right > edge.right + 1;
        if (beside || box.top < edge.top - 2 || box.bottom > edge.bottom + 2)
          found.push(`cut by its picture: ${name(element)}`);
      }
      const part = clip(box, element);
      if (part.right - part.left > 2 && part.bottom - part.top > 2) boxes.push({...part, element});
    }
  }
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element);
    const hides = style.overflowX === "hidden" || style.overflowX === "clip";
    if (!hides || !seen(element) || element.clientWidth < 2 || element.closest("svg")) continue;
    const box = element.getBoundingClientRect();
    if (box.right <= 0 || box.left >= innerWidth) continue;
    if (element.scrollWidth > element.clientWidth + 1 && element.textContent.trim())
      found.push(`cut, ${element.scrollWidth} in ${element.clientWidth}: ${name(element)}`);
  }
  boxes.sort((one, other) => one.top - other.top);
  boxes.forEach((one, number) => {
    for (let next = number + 1; next < boxes.length && boxes[next].top < one.bottom - 3; next++) {
      const other = boxes[next];
      if (one.element === other.element || one.element.contains(other.element) || other.element.contains(one.element))
        continue;
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const high = Math.min(one.bottom, other.bottom) - other.top;
      if (wide > 2 && high > 3) found.push(`over one another: ${name(one.element)} and ${name(other.element)}`);
    }
  });
  return [...new Set(found)].slice(0, 12);
})()"""


def write_pages(site: Path, directory: Path) -> list[Page]:
    """The pages that are looked at; those of no site are written into the directory."""
    samples = {
        "fleet": sample_pages.make_fleet_page(),
        "job": sample_pages.make_job_page(),
        "readme": sample_pages.make_readme_page(),
    }
    pages = [
        Page("home", site / "index.html"),
        Page("api", site / "reference/python/checkpoint.html", "hyperpod_kit.checkpoint.manager"),
    ]
    for name, text in samples.items():
        path = directory / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        pages.append(Page(name, path, tables_scroll=name == "readme"))
    return pages


def look(browser: Browser, page: Page, width: int, scheme: str, directory: Path) -> list[str]:
    """Take the picture, and return what is wrong with the page."""
    dark = scheme == "dark"
    browser.set_screen(width, 1000, dark)
    browser.open(page.path.resolve().as_uri())
    # The site keeps what the first page had, as if a person had chosen it.
    browser.evaluate("localStorage.clear()")
    browser.open(page.path.resolve().as_uri())
    browser.wait_for("document.fonts.status === 'loaded' && [...document.images].every(image => image.complete)")
    faults: list[str] = browser.evaluate(_FAULTS)
    if page.tables_scroll:
        faults = [fault for fault in faults if not fault.startswith("a table is")]
    height = int(browser.evaluate("document.scrollingElement.scrollHeight"))
    browser.set_screen(width, min(HIGHEST, height), dark)
    if page.start:
        browser.evaluate(f"location.hash = '{page.start}'")
    # The head of the site changes with a transition.
    browser.evaluate("new Promise(done => setTimeout(done, 800))")
    browser.save_picture(directory / f"{page.name}-{width}-{scheme}.png")
    return faults


def main(site: Path, directory: Path, word: str = "") -> int:
    program = find_chromium()
    if program is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 3
    directory.mkdir(parents=True, exist_ok=True)
    pages = [page for page in write_pages(site, directory) if word in page.name]
    wrong = 0
    with Browser(program) as browser:
        for page in pages:
            for width in WIDTHS:
                for scheme in SCHEMES:
                    faults = look(browser, page, width, scheme, directory)
                    wrong += bool(faults)
                    print(f"{page.name} {width} {scheme}: {'; '.join(faults) or 'nothing'}", flush=True)
    print(f"{len(pages) * len(WIDTHS) * len(SCHEMES)} pictures in {directory}, {wrong} with faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4]))
