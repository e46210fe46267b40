"""What looks at the site in Chromium sees what is wrong with a page, and clicks on what a person could."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator, List

import pytest

from docs_build import screenshots
from docs_build.browser import Browser, BrowserError
from docs_build.screenshots import Page

pytestmark = [pytest.mark.full, pytest.mark.needs("chromium")]
FRAME = (
    '<!DOCTYPE html><meta charset="utf-8"><body style="margin:0;font:16px monospace"><p>long enough a line</p>{}</body>'
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None
    with Browser(program) as started:
        yield started


def faults(browser: Browser, directory: Path, body: str) -> List[str]:
    path = directory / "page.html"
    path.write_text(FRAME.format(body))
    found = screenshots.look(browser, Page("page", path), 400, "light", directory)
    assert (directory / "page-400-light.png").read_bytes().startswith(b"\x89PNG")
    return found


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<div style="width:600px">wide</div>', "the page is 600 wide"),
        ('<div style="width:60px;overflow:hidden;white-space:nowrap">cut in the middle</div>', "cut, 1"),
        ('<svg width="90" height="30"><text x="60" y="20">label</text></svg>', "cut by its picture: <text"),
        ('<div style="position:absolute;top:18px;left:40px">over</div>', "over one another: <p class="),
        ('<div style="overflow-x:auto"><div style="width:600px">scrolls by itself</div></div>', ""),
        ('<div style="position:absolute;top:90px">apart</div>', ""),
        ("<p>a <b>bold</b> <code>word</code></p>", ""),
    ],
)
def test_a_fault_of_a_page_is_seen(browser: Browser, tmp_path: Path, body: str, fault: str) -> None:
    found = faults(browser, tmp_path, body)
    assert [line for line in found if not fault or not line.startswith(fault)] == [], found
    assert bool(found) == bool(fault)


def test_what_is_covered_cannot_be_clicked(browser: Browser, tmp_path: Path) -> None:
    cover = '<a id="b" href="#there">b</a><div style="position:fixed;inset:0"></div>'
    for body, covered in (('<a id="b" href="#there">b</a>', False), (cover, True)):
        (tmp_path / "page.html").write_text(FRAME.format(body))
        browser.open((tmp_path / "page.html").as_uri())
        if covered:
            with pytest.raises(BrowserError, match="something else lies over it"):
                browser.click("document.getElementById('b')")
        else:
            browser.click("document.getElementById('b')")
            assert browser.wait_for("location.hash") == "#there"


def test_dark_is_what_the_system_prefers(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(FRAME.format(""))
    for scheme in screenshots.SCHEMES:
        browser.set_screen(400, 500, scheme == "dark")
        browser.open((tmp_path / "page.html").as_uri())
        assert browser.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches && innerWidth === 400")
