"""Pages for people: whole in one file, with nothing of what others named them after in their markup."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.cli.views import fleet_page, usage_page
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.reports.fleet_status import FleetStatus
from hyperpod_kit.remote.reports.node_report import NodeReport
from hyperpod_kit.remote.target import NodeTarget

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J&\"'"
VOID = {"meta", "rect", "br", "img", "link"}


class Page(HTMLParser):
    """Every tag is closed by its own; what there is of each."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: Dict[str, int] = {}
        self.found: List[Tuple[str, Dict[str, Optional[str]]]] = []
        self._open: List[str] = []
        self.words = ""
        self.feed(document)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def survey() -> FleetStatus:
    mounts = tuple(
        # Full to a part that only counts where it serves.
        MountStatus(name, "lustre", f"/{name}", state, "", HOSTILE, used_bytes=849, free_bytes=151, nearly_full=True)
        for name, state in (("fsx", MountState.OK), ("home", MountState.STALE), ("data", MountState.FULL))
    )
    nodes = [NodeReport(NodeTarget(f"i-{n}", "workers", "compute", f"10.0.0.{n}"), mounts) for n in range(40)]
    return FleetStatus([*nodes, NodeReport(NodeTarget(HOSTILE, "workers", "compute", ""), error=HOSTILE)], 1.7e9, 3.0)


def is_whole(document: str) -> Page:
    """Nothing is asked of anybody, and no script is in it."""
    page = Page(document)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [
        name for _, attributes in page.found for name in attributes if name in ("src", "href") or name[:2] == "on"
    ]
    assert not re.search(r"url\(|@import", document) and "\x1b" not in document
    return page


def test_a_fleet_has_a_square_for_each_mount() -> None:
    page = is_whole(fleet_page.render_fleet_page("ml " + HOSTILE, survey()))
    colours = [attributes["fill"] for tag, attributes in page.found if tag == "rect"]
    assert len(colours) == 40 * 3 + 1 and colours.count(fleet_page.SILENT) == 1
    assert colours.count(fleet_page.BAD) == 40 and "no answer" in page.words
    assert colours.count(fleet_page.NEARLY_FULL) == 40 and "nearly full" in page.words
    assert page.words.count("84 % full") >= 40


def test_a_directory_has_an_area_as_large_as_it_is(tmp_path: Path) -> None:
    for name, mebibytes in (("large", 4), ("small", 1), ("<b>&", 1)):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "f").write_bytes(b"x" * (mebibytes << 20))
    target = tmp_path / "usage.html"
    words = ["storage", "usage", str(tmp_path / "in"), "--html", str(target), "--state", str(tmp_path / "state")]
    assert run_command_line(words) == 0
    page = is_whole(target.read_text())
    areas = [
        float(attributes["width"] or 0) * float(attributes["height"] or 0)
        for tag, attributes in page.found
        if tag == "rect"
    ]
    assert sum(areas) == pytest.approx(usage_page.WIDTH * usage_page.HEIGHT, rel=0.01)
    assert areas[0] / areas[1] == pytest.approx(4, rel=0.05) and "<b>&" in page.words
    assert "Growth is unknown yet: 1 day of history, and 3 are required." in page.words
    assert all(words in page.words for words in ("last written", "less than a day", "last read"))


@pytest.mark.parametrize("values", [[], [0.0], [1.0], [1.0] * 7, [10.0**n for n in range(12)], [5e15, 1.0]])
def test_areas_fill_the_picture_and_do_not_overlap(values: List[float]) -> None:
    areas = usage_page.squarified_treemap([(str(n), value) for n, value in enumerate(values)], 1000.0, 520.0)
    total = sum(value for value in values)
    for area in areas:
        assert area.width * area.height == pytest.approx(area.value / total * 520_000, rel=1e-6, abs=1e-3)
        assert area.x >= -1e-6 and area.x + area.width <= 1000 + 1e-6 and area.y + area.height <= 520 + 1e-6
    for one in areas:
        for other in areas:
            apart = (
                one.x + one.width <= other.x + 1e-6
                or other.x + other.width <= one.x + 1e-6
                or one.y + one.height <= other.y + 1e-6
                or other.y + other.height <= one.y + 1e-6
            )
            assert one is other or apart


@pytest.mark.full
@pytest.mark.needs("chromium")
def test_a_browser_shows_them(tmp_path: Path) -> None:
    """Headless, with no network of its own: what it made of the page, and a picture that is not blank."""
    target = tmp_path / "fleet.html"
    target.write_text(fleet_page.render_fleet_page("ml " + HOSTILE, survey()))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1100,900"]
    browser += ["--disable-background-networking", "--disable-sync", f"--user-data-dir={tmp_path}/profile"]
    seen = subprocess.run(
        [*browser, "--dump-dom", target.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert seen.stdout.count("<rect") == 121 and "<script" not in seen.stdout
    picture = tmp_path / "fleet.png"
    subprocess.run([*browser, f"--screenshot={picture}", target.as_uri()], capture_output=True, timeout=120, check=True)
    assert picture.stat().st_size > 10_000
