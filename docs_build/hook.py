"""What mkdocs calls: generated pages join those of docs/, and pages of the repository's root come along."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

from docs_build import command_pages, pages  # noqa: E402

COMMANDS = "reference/commands"
RECORDS = ("changelog.md", "faults.md", "benchmarks.md")
"""What was done and measured, which is rarely the first answer to a search."""
REFERENCES = ("compatibility.md", "metrics.md", "permissions.md", "ports.md")
"""Pages of the reference that are written for people with a question."""
CONTRIBUTORS = "Contributors"
"""The section of the navigation whose pages the search leaves out."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """One page for each section of commands, whatever sections there are."""
    _expand(config.nav)
    return config


def _expand(nav: Any) -> None:
    if isinstance(nav, dict):
        for value in nav.values():
            _expand(value)
    elif isinstance(nav, list):
        if COMMANDS in nav:
            place = nav.index(COMMANDS)
            nav[place : place + 1] = [
                {section: command_pages.place_of(section)} for section in command_pages.sections()
            ]
        for value in nav:
            _expand(value)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made from the code, what is adopted, and the files that pages link to outside of docs/."""
    try:
        made = pages.all_pages()
    except KeyError as err:
        raise PluginError(str(err.args[0])) from err
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for source, place in pages.ADOPTED.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, place, content=text))
    for place in sorted(
        {
            link
            for file in list(files)
            if file.is_documentation_page() and file.abs_src_path
            for link in _outside(Path(file.abs_src_path))
        }
    ):
        files.append(File.generated(config, f"source/{place}", content=(ROOT / place).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository lead to their copies; the search shows pages by task before records."""
    search = page.meta.setdefault("search", {})
    search["boost"] = _boost(page.file.src_uri)
    search["exclude"] = any(ancestor.title == CONTRIBUTORS for ancestor in page.ancestors)
    if page.file.abs_src_path is None:
        return markdown
    here = Path(page.file.abs_src_path)
    up = "../" * page.file.src_uri.count("/")
    for place in _outside(here):
        written = "../" * len(here.relative_to(config.docs_dir).parts) + place
        markdown = markdown.replace(f"]({written})", f"]({up}source/{place})")
    return markdown


def _boost(place: str) -> float:
    """Of a page's words in the search. Manager and State are what most people look for by name."""
    if place == "reference/python/checkpoint.md":
        return 6.0
    if place.startswith("how-to/"):
        return 4.0
    if place.startswith(RECORDS) or place == "reference/states.md":
        return 0.2
    if place.startswith("reference/") and not place.endswith(REFERENCES):
        return 1.0
    return 2.5


def _outside(page: Path) -> list[str]:
    """Files of the repository, outside of docs/, that a page links to; relative to the root."""
    found = []
    for target in re.findall(r"\]\((\.\./[^)#\s]+)\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path.is_file() and ROOT in path.parents and ROOT / "docs" not in path.parents:
            found.append(str(path.relative_to(ROOT)))
    return found
