"""Questions of newcomers and of rivals' users, put to the built site: can a person find and read each answer?

    python -m docs_build.questions DIRECTORY [WORD]

A person starts on the home page, and either types into the search and takes one of the first three results, or follows
links by their words. At most two clicks lead to the section (`PAGE.html#ANCHOR`), all of which counts: a click on the
page's table of contents too. The section has to hold the answer, `phrase`, in at most 250 words, which take a minute.
Headless Chromium clicks with a mouse on what it shows at 1,280 pixels. WORD: only questions that have it.

Exit codes: 0 each question is answered, 1 some are not, 3 there is no Chromium.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from docs_build.browser import Browser, BrowserError, find_chromium
from docs_build.question_table import QUESTIONS, Question
from docs_build.search_check import ITEMS, place_of, search

CLICKS = 2
WORDS = 250
RESULTS = 3

_FOUND = f"""[...{ITEMS}].slice(0, {RESULTS})
  .flatMap(item => [...item.querySelectorAll("a.md-search-result__link")]).filter(link => link.checkVisibility())"""
_LINKS = '[...document.querySelectorAll("a[href]")].filter(link => link.checkVisibility())'
_SECTION = """(anchor => {
  const start = anchor ? document.getElementById(anchor) : document.querySelector("article h1");
  if (start.closest("tr")) return start.closest("tr").innerText;
  let text = start.innerText;
  for (let next = start.nextElementSibling; next && !/^H[1-6]$/.test(next.tagName); next = next.nextElementSibling)
    text += "\\n" + next.innerText;
  return text;
})(%s)"""


def ask(browser: Browser, site: Path, question: Question) -> tuple[int, int, str]:
    """How many clicks it took, how many words there are to read, and what is wrong: "" for an answer."""
    page, _, anchor = question.place.partition("#")
    clicks = 0
    if question.query:
        search(browser, site, question.query)
        places = [place_of(link, site) for link in browser.evaluate(f"{_FOUND}.map(link => link.href)")]
        target = next((place for place in (question.place, page) if place in places), None)
        if target is None:
            return 0, 0, f"not among the first {RESULTS} results: {', '.join(places) or 'none'}"
        browser.click(f"{_FOUND}[{places.index(target)}]")
        _wait_until_at(browser, target)
        clicks = 1
    else:
        browser.open((site / "index.html").as_uri())
    for words in question.links:
        link = f"{_LINKS}.find(link => link.innerText.trim() === {json.dumps(words)})"
        if not browser.evaluate(f"!!{link}"):
            return clicks, 0, f"no link `{words}` on {place_of(browser.evaluate('location.href'), site)}"
        href = browser.evaluate(f"{link}.href")
        browser.click(link)
        _wait_until_at(browser, place_of(href, site))
        clicks += 1
    here = place_of(browser.evaluate("location.href"), site)
    if here == page and anchor:
        link = f'{_LINKS}.find(link => link.href.endsWith({json.dumps("#" + anchor)}) && link.closest(".md-sidebar"))'
        if not browser.evaluate(f"!!{link}"):
            return clicks, 0, f"#{anchor} is not in the table of contents of {page}"
        browser.click(link)
        _wait_until_at(browser, question.place)
        clicks += 1
        here = question.place
    if here != question.place:
        return clicks, 0, f"leads to {here}"
    return (clicks, *_read(browser, anchor, question.phrase))


def _read(browser: Browser, anchor: str, phrase: str) -> tuple[int, str]:
    """How many words the section has, and what is wrong with it."""
    text = " ".join(browser.evaluate(_SECTION % json.dumps(anchor)).replace("¶", "").split())
    count = len(text.split())
    if phrase not in text:
        return count, f"the section does not say `{phrase}`: {text[:300]}"
    if count > WORDS:
        return count, f"the section has {count} words, at most {WORDS} take a minute"
    return count, ""


def _wait_until_at(browser: Browser, place: str) -> None:
    page, _, anchor = place.partition("#")
    browser.wait_for(
        f"document.readyState === 'complete' && location.pathname.endsWith({json.dumps('/' + page)})"
        f" && location.hash === {json.dumps('#' + anchor if anchor else '')}"
    )


def main(site: Path, word: str = "") -> int:
    program = find_chromium()
    if program is None:
        print("there is no Chromium: apt-get install chromium", file=sys.stderr)
        return 3
    asked = [question for question in QUESTIONS if word in f"{question.source} {question.asked} {question.place}"]
    wrong = 0
    with Browser(program) as browser:
        browser.set_screen(1280, 900)
        for question in asked:
            try:
                clicks, words, problem = ask(browser, site.resolve(), question)
            except BrowserError as err:
                clicks, words, problem = 0, 0, str(err)
            wrong += bool(problem or clicks > CLICKS)
            if clicks > CLICKS and not problem:
                problem = f"it takes {clicks} clicks"
            mark = f"WRONG: {problem}" if problem else f"{clicks} clicks, {words} words"
            print(f"{question.source}: {question.asked}\n    {question.place}: {mark}", flush=True)
    print(f"{len(asked) - wrong} of {len(asked)} questions are answered in {CLICKS} clicks and {WORDS} words")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
