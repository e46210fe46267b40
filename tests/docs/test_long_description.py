"""What an index shows of the package: no link and no picture of it needs the repository."""

from __future__ import annotations

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import List, Optional, Tuple

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci/long_description.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("long_description", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Targets(HTMLParser):
    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: List[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Optional[str]]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "srcset")]


def rendered(text: str) -> str:
    html: str = MarkdownIt("commonmark").enable("table").render(text)
    return html


def relative(text: str) -> List[str]:
    return [target for target in Targets(rendered(text)).found if not re.match(r"https?://|#", target)]


def test_no_link_of_it_is_relative(script: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(relative(readme)) > 10
    description = script.of_readme(readme)
    assert relative(description) == []
    assert "docs.aws.amazon.com" in rendered(description)


def test_each_file_that_it_names_is_there(script: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    # The picture's files are left out, and nobody is told of them.
    linked = {target for target in relative(readme) if not target.endswith(".svg")}
    description = " ".join(script.of_readme(readme).split())
    assert [path for path in linked if f"`{path}`" not in description or not (ROOT / path).is_file()] == []


def test_the_build_takes_it(script: ModuleType) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version", "readme"]' in project and "\nreadme =" not in project
    assert f'[tool.hatch.metadata.hooks.custom]\npath = "{SCRIPT.relative_to(ROOT)}"' in project
